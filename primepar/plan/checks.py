"""Checks that the sequences of a plan fit its model and its mesh.

Each operator is checked alone. Where each of two operators cuts a tensor evenly, the tensor between
them is cut evenly too.

Rows are tokens, sequence after sequence; `RowCuts` has the batches that fit. Most operators work
row by row: their blocks may begin inside a sequence and hold, for example, one and a half. A block
of attention holds whole sequences, or one of several equal parts of a single sequence. In the
second case the ranks that share the sequence all-gather its keys and values, and reduce the
gradients of these. That is all-gather context parallelism; choosing it by the batch alone is
ours.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import count
from math import lcm, prod

from primepar.errors import PlanError, PrimitiveError, SequenceError, TargetError, nearest
from primepar.models.config import ModelConfig
from primepar.models.graph import Operator, layer_operators, operators
from primepar.partition.by_dimension import ByBatch, ByInput
from primepar.plan.operator_layouts import ends_of, sequence_of
from primepar.schedule.operators import Dim
from primepar.schedule.sequence import Sequence


@dataclass(frozen=True)
class RowCuts:
    """Slices of the rows: `every` is the least common multiple, `attention` has them by name.

    A step fits where `every` divides its tokens, and the slices of each attention divide the number
    of sequences or are a multiple of it. With `micro_batches` that must hold for each of them.
    """

    every: int
    attention: Mapping[str, int]
    micro_batches: int = 1

    def refusal(self, batch: int, positions: int) -> str | None:
        """Why `batch` sequences of `positions` tokens do not fit; None where they do."""
        wrong = self._wrong(batch, positions)
        return wrong and f"{wrong}: take {self.smallest_batch(positions, batch)}"

    def smallest_batch(self, positions: int, least: int = 1) -> int:
        """The smallest number of sequences, `least` or more, that fits."""
        return next(
            batch for batch in count(max(1, least)) if self._wrong(batch, positions) is None
        )

    def _wrong(self, batch: int, positions: int) -> str | None:
        if batch < 1:
            return f"expected 1 sequence or more, got {batch}"
        size, rest = divmod(batch, self.micro_batches)
        if rest:
            return f"expected a multiple of the {self.micro_batches} micro-batches, got {batch}"
        wrong = self._wrong_rows(size, positions)
        if wrong and self.micro_batches > 1:
            return f"micro-batch of {size}: {wrong}"
        return wrong

    def _wrong_rows(self, batch: int, positions: int) -> str | None:
        for name, slices in self.attention.items():
            if batch % slices and slices % batch:
                return (
                    f"expected a multiple or a divisor of the {slices} slices of the rows in "
                    f"{name}, got {batch}"
                )
        rows = batch * positions
        if rows % self.every:
            return (
                f"expected rows in a multiple of {self.every}, as the operators cut them, "
                f"got {rows}, {batch} x {positions} tokens"
            )
        return None


def row_cuts(
    operators: Iterable[Operator], sequences: Mapping[str, str], micro_batches: int = 1
) -> RowCuts:
    """How operators cut the rows; `sequences` are by the names of the operators."""
    cuts, attention = [1], {}
    for operator in operators:
        sequence = sequence_of(operator, sequences[operator.name])
        if operator.kind == "linear":
            cuts.append(sequence.grid["M"])
        layouts = ends_of(operator.kind, str(sequence))
        cuts += [
            layout.grid[0] for layout in (layouts.input, layouts.output, layouts.input_gradient)
        ]
        if operator.kind == "attention":
            attention[operator.name] = layouts.output.grid[0]
    return RowCuts(lcm(*cuts), attention, micro_batches)


def check_sequences(
    model: ModelConfig, ranks: int, sequences: Mapping[str, str], stages: int = 1
) -> None:
    """Raise `PlanError`, with the JSON path, where a sequence does not fit the model or mesh.

    `ranks` are the devices of each of the `stages`.
    """
    _check_names(model, ranks, sequences)
    for operator in operators(model):
        try:
            check_sequence(model, ranks, operator, sequences[operator.name], stages)
        except (SequenceError, PlanError, TargetError, PrimitiveError) as error:
            raise PlanError(f'$.sequences["{operator.name}"]: {error}') from None


def check_recomputed(model: ModelConfig, names: tuple[str, ...]) -> None:
    """Raise `PlanError` unless these are some operators of a layer, each once."""
    known = layer_operators(model)
    for place, name in enumerate(names):
        if name not in known or name in names[:place]:
            got = f"{name!r} twice" if name in known else repr(name)
            write = nearest(name, known) if name not in known else ": write it once"
            raise PlanError(
                f"$.recompute: expected some of {', '.join(known)}, got {got}"
                f"{write or ': write one of these'}"
            )
    if not names:
        raise PlanError(
            '$.recompute: expected "full", "selective", or names of operators of a layer, got []: '
            f'leave it out, or write ["{known[0]}"]'
        )


def operator_named(model: ModelConfig, name: str) -> Operator:
    """The operator of that name. Raises `PlanError` where the model has none."""
    named = {operator.name: operator for operator in operators(model)}
    if name not in named:
        near = get_close_matches(name, named, n=1)
        write = f"write {near[0]}" if near else f"write one like {list(named)[1]}"
        layers = f"{model.layers} layer{'s' * (model.layers != 1)}"
        raise PlanError(f"expected an operator of this model of {layers}, got {name!r}: {write}")
    return named[name]


def _check_names(model: ModelConfig, ranks: int, sequences: Mapping[str, str]) -> None:
    known = [operator.name for operator in operators(model)]
    unknown = next((name for name in sequences if name not in set(known)), None)
    if unknown is not None:
        try:
            operator_named(model, unknown)
        except PlanError as error:
            raise PlanError(f"$.sequences: {error}") from None
    missing = [name for name in known if name not in sequences]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise PlanError(
            f"$.sequences: expected a sequence for every operator of the model, got none for "
            f'{missing[0]}{more}: for example, add "{missing[0]}": "M{ranks}"'
        )


def check_sequence(
    model: ModelConfig, ranks: int, operator: Operator, text: str, stages: int = 1
) -> None:
    """Raise `PlanError` or `SequenceError` where one operator cannot have a sequence."""
    sequence = sequence_of(operator, text)
    devices = prod(sequence.axis_lengths)
    if devices != ranks:
        where = "$.ranks" if stages == 1 else f"a stage, {ranks * stages} in {stages} stages"
        raise PlanError(
            f"expected a sequence for the {ranks} device{'s' * (ranks != 1)} of {where}, got "
            f"{devices} in {str(sequence)!r}: their lengths multiply to the number of devices"
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
    if operator.kind == "linear":
        ends_of(operator.kind, str(sequence))
        _check_linear(operator, sequence)
    else:
        slices = ends_of(operator.kind, str(sequence)).output.grid[1]
        _check_columns(model, operator, sequence, slices)


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


def _check_columns(model: ModelConfig, operator: Operator, sequence: Sequence, slices: int) -> None:
    """Raise `PlanError` unless every slice of the columns holds whole heads or hidden elements."""
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
