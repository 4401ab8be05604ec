"""A whole training step under a plan, as one program: forward, loss, backward, sums and updates.

Operators come in the order of execution, backward in reverse, and last the updates. Everything is
where the plan's layouts say and moves as they say; no method is known here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Literal

from primepar.errors import PlanError
from primepar.models.graph import Operator
from primepar.operators.activation import ActivationLowering
from primepar.operators.addition import AdditionLowering
from primepar.operators.attention import AttentionLowering
from primepar.operators.builder import ProgramBuilder, View
from primepar.operators.embedding import EmbeddingLowering
from primepar.operators.linear import LinearLowering
from primepar.operators.loss import LossLowering
from primepar.operators.norm import NormLowering
from primepar.operators.redistribution import moved
from primepar.operators.step_context import OperatorLowering, StepContext
from primepar.operators.update import lower_gradient_norm, lower_update
from primepar.passes import PASSES, apply
from primepar.plan.layouts import Edge, edges
from primepar.plan.plan import Plan
from primepar.schedule.program import Program

LOWERINGS: Mapping[str, Callable[[StepContext, Operator], OperatorLowering]] = {
    "embedding": EmbeddingLowering,
    "norm": NormLowering,
    "linear": LinearLowering,
    "attention": AttentionLowering,
    "activation": ActivationLowering,
    "add": AdditionLowering,
    "loss": LossLowering,
}
"""`Operator.kind` -> how it is lowered."""

Until = Literal["logits", "loss", "gradients", "update"]
"""What a program ends with."""


def lower_step(
    plan: Plan,
    batch: int,
    positions: int,
    until: Until = "update",
    clip: bool = False,
    passes: Iterable[str] = tuple(PASSES),
) -> Program:
    """The program of one training step of `batch` sequences of `positions` tokens.

    Every rank starts with its blocks of the parameters and of AdamW's moments, its tokens and its
    targets, and ends with the new parameters and moments where the old ones were, the loss and the
    norm of the gradient. With `clip` AdamW takes the gradient clipped by its norm. A program that
    ends earlier leaves the parameters as they were: `until` the "gradients" with these beside
    them, until the "loss" or the "logits" with nothing else. `passes` are applied to it, in the
    order of `PASSES`; without them blocks stay where they are to the end.
    Raises `PlanError` for a batch that the plan does not divide, or positions that the model lacks.
    """
    if not 1 <= positions <= plan.model.context:
        raise PlanError(
            f"positions: expected 1 to context={plan.model.context}, got {positions}: "
            "cut the sequences"
        )
    plan.check_batch(batch, positions)
    builder = ProgramBuilder(plan.ranks)
    step = StepContext(plan, builder, batch, positions, trains=until in ("gradients", "update"))
    known = plan.operators[: -1 if until == "logits" else None]
    parts = {each.name: LOWERINGS[each.kind](step, each) for each in known}
    ways = {(each.producer, each.consumer): each for each in edges(plan) if each.rows is None}
    builder.end_with(_forward(step, parts, ways))
    if step.trains:
        _backward(step, parts, ways)
    if until == "update":
        _update(step, clip)
    else:
        for view in (*step.parameters.values(), *step.gradients.values()):
            builder.end_with(view)
    return apply(builder.program(), passes)


def parameter_views(plan: Plan) -> dict[str, View]:
    """Every parameter of a plan's programs: its cuts, and the blocks that every rank holds.

    They are those of its moments too, and the same for every batch.
    """
    positions = plan.model.context
    batch = plan.batch or plan.row_cuts.smallest_batch(positions)
    step = StepContext(plan, ProgramBuilder(plan.ranks), batch, positions)
    for operator in plan.operators:
        LOWERINGS[operator.kind](step, operator)
    return {name: step.parameters[name] for name in plan.model.parameter_shapes}


def _update(step: StepContext, clip: bool) -> None:
    norm = lower_gradient_norm(step)
    step.builder.end_with(norm)
    for name in step.plan.model.parameter_shapes:
        lower_update(step, name, norm if clip else None)


Ways = Mapping[tuple[str, str], Edge]


def _forward(step: StepContext, parts: Mapping[str, OperatorLowering], ways: Ways) -> View:
    """Lower every operator; returns what the last one makes."""
    outputs: dict[str, View] = {}
    consumers = _consumers(step)
    for operator in step.plan.operators[: len(parts)]:
        name, part = operator.name, parts[operator.name]
        inputs = [
            moved(
                step.builder,
                outputs[source],
                ways[source, name].forward,
                part.takes,
                f"{name}/I" if place == 0 else f"{name}/I{place + 1}",
                shared=consumers[source] > 1,
            )
            for place, source in enumerate(operator.inputs)
        ]
        outputs[name] = part.forward(*inputs)
    return outputs[step.plan.operators[len(parts) - 1].name]


def _backward(step: StepContext, parts: Mapping[str, OperatorLowering], ways: Ways) -> None:
    """Lower backward in reverse; gradients of a tensor that went to several operators are added."""
    found: dict[str, list[View]] = {each.name: [] for each in step.plan.operators}
    consumers = _consumers(step)
    for operator in reversed(step.plan.operators):
        dy = _fan_in(step, operator, found[operator.name])
        for source, dx in zip(operator.inputs, parts[operator.name].backward(dy), strict=True):
            one = consumers[source] == 1
            name = f"{source}.grad" if one else f"{source}.grad{len(found[source]) + 1}"
            edge = ways[source, operator.name]
            cuts = step.space(edge.backward.target, edge.features).cuts
            found[source].append(moved(step.builder, dx, edge.backward, cuts, name))


def _fan_in(step: StepContext, operator: Operator, found: list[View]) -> View | None:
    """The gradient of an operator's output; None for the loss, where it is one."""
    if len(found) < 2:
        return found[0] if found else None
    at = step.space(step.ends(operator.name).output, operator.K)
    writes = f"{operator.name}.grad[M,K]"
    return step.builder.compute(operator.name, "sum.fan-in", at, found, writes)


def _consumers(step: StepContext) -> Counter[str]:
    """How many operators take the output of each."""
    return Counter(source for each in step.plan.operators for source in each.inputs)
