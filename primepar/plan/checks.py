"""What a plan must fit: its model and its mesh.

Two operators that each divide the rows and columns between them divide them together too.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from primepar.errors import PlanError, SequenceError
from primepar.models.graph import Operator
from primepar.partition.by_dimension import ByBatch, ByInput
from primepar.plan.layouts import ends
from primepar.schedule.operators import Dim
from primepar.schedule.sequence import Sequence

if TYPE_CHECKING:
    from primepar.plan.plan import Plan


def check_plan(plan: Plan) -> None:
    """Raise `PlanError` naming the JSON path of what does not fit."""
    _check_names(plan)
    for operator in plan.operators:
        try:
            _check_sequence(plan, operator)
        except (SequenceError, PlanError) as error:
            raise PlanError(f"{_path(operator.name)}: {error}") from None
    if plan.batch is not None:
        refusal = plan.row_cuts.refusal(plan.batch, plan.model.context)
        if refusal is not None:
            raise PlanError(f"$.batch: {refusal}")


def _path(name: str) -> str:
    return f'$.sequences["{name}"]'


def _check_names(plan: Plan) -> None:
    for name in plan.sequences:
        try:
            plan.operator(name)
        except PlanError as error:
            raise PlanError(f"$.sequences: {error}") from None
    missing = [each.name for each in plan.operators if each.name not in plan.sequences]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise PlanError(
            f"$.sequences: expected a sequence for every operator of the model, got none for "
            f'{missing[0]}{more}: add "{missing[0]}": "M{plan.ranks}", say'
        )


def _check_sequence(plan: Plan, operator: Operator) -> None:
    sequence = plan.sequence(operator.name)
    ranks = prod(sequence.axis_lengths)
    if ranks != plan.ranks:
        raise PlanError(
            f"expected a sequence for the {plan.ranks} devices of $.ranks, got {ranks} "
            f"in {str(sequence)!r}: their lengths multiply to the number of devices"
        )
    for element in sequence.elements:
        side = element.sides[0]
        if isinstance(element.primitive, ByBatch):
            raise PlanError(
                "expected no split of B, as rows of all sequences of a batch are one dim here, "
                f"got {str(sequence)!r}: write M{side} for B{side}"
            )
        summed = operator.kind in ("linear", "embedding")
        if isinstance(element.primitive, ByInput) and not summed:
            raise PlanError(
                f"expected no split of N, as this operator sums over no dim, "
                f"got {str(sequence)!r}: write R{side} for N{side}"
            )
    slices = ends(plan, operator.name).output.grid[1]
    if operator.kind == "linear":
        _check_linear(operator, sequence)
    else:
        _check_columns(plan, operator, sequence, slices)


def _check_linear(operator: Operator, sequence: Sequence) -> None:
    sizes: dict[Dim, int] = {"N": operator.N}
    if operator.name != "head":  # its columns are the vocabulary, which is padded
        sizes["K"] = operator.K
    for dim, size in sizes.items():
        slices = sequence.grid[dim]
        if size % slices:
            raise PlanError(
                f"expected {dim}={size} to be a multiple of its {slices} slices in "
                f"{str(sequence)!r}: take a sequence that cuts {dim} in fewer, or a model with "
                f"{dim}={-(-size // slices) * slices}"
            )


def _check_columns(plan: Plan, operator: Operator, sequence: Sequence, slices: int) -> None:
    """Raise `PlanError` unless a cut of the columns is one of whole heads or hidden elements."""
    model = plan.model
    cut = {
        "attention": {"heads": model.heads, "kv_heads": model.kv_heads},
        "activation": {"ffn": model.ffn},
        "loss": {},
    }.get(operator.kind, {"hidden": model.hidden})
    for name, size in cut.items():
        if size % slices:
            raise PlanError(
                f"expected {name}={size} to be a multiple of the {slices} slices of the columns "
                f"in {str(sequence)!r}: take a sequence that cuts them in fewer, or a model with "
                f"{name}={-(-size // slices) * slices}"
            )
