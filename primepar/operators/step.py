"""Lowers a whole training step under a plan to one program: forward, loss, backward and updates.

Operators are lowered in the order of execution, backward in reverse order, and the updates last.
All layouts and communication come from the plan; no partition method is mentioned here.
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
from primepar.operators.optimizers import Optimizer
from primepar.operators.redistribution import moved
from primepar.operators.step_context import OperatorLowering, StepContext
from primepar.operators.update import lower_gradient_norm, lower_update
from primepar.passes import PASSES, Chunks, apply
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
"""The last part of a program."""


def lower_step(
    plan: Plan,
    batch: int,
    positions: int,
    until: Until = "update",
    clip: bool = False,
    passes: Iterable[str] = tuple(PASSES),
    chunks: Chunks = None,
    optimizer: Optimizer = "adamw",
) -> Program:
    """Return the program of one training step of `batch` sequences of `positions` tokens.

    Every rank starts with its blocks of the parameters and of AdamW's moments, its tokens and its
    targets. It ends with the new parameters and moments in the layouts of the old ones, the loss
    and the norm of the gradient. With `clip` the gradient is clipped by its norm before the update.
    A program that ends earlier keeps the parameters: `until` "gradients" it ends with these too,
    until "loss" or "logits" with only that. `passes` are applied in the order of `PASSES`; without
    them no block is freed early. With `chunks` transfers and the products next to them are cut into
    that number.
    Raises `PlanError` for a batch that the plan does not divide, or more positions than the
    model's context.
    """
    if not 1 <= positions <= plan.model.context:
        raise PlanError(
            f"positions: expected 1 to context={plan.model.context}, got {positions}: "
            "cut the sequences"
        )
    plan.check_batch(batch, positions)
    builder = ProgramBuilder(plan.ranks)
    trains = until in ("gradients", "update")
    step = StepContext(plan, builder, batch, positions, trains, optimizer)
    known = plan.operators[: -1 if until == "logits" else None]
    parts = {operator.name: LOWERINGS[operator.kind](step, operator) for operator in known}
    ways = {(edge.producer, edge.consumer): edge for edge in edges(plan) if edge.rows is None}
    builder.end_with(_forward(step, parts, ways))
    if step.trains:
        _backward(step, parts, ways)
    if until == "update":
        _update(step, clip)
    else:
        for view in (*step.parameters.values(), *step.gradients.values()):
            builder.end_with(view)
    return apply(builder.program(), passes, chunks)


def parameter_views(plan: Plan) -> dict[str, View]:
    """Return the views of all parameters of a plan: cuts, and the blocks that every rank holds.

    The moments have the same views. They do not depend on the batch.
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
    """Lower every operator; returns the output of the last one."""
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
    """Lower backward in reverse order; gradients from several consumers of a tensor are added."""
    gradients: dict[str, list[View]] = {operator.name: [] for operator in step.plan.operators}
    consumers = _consumers(step)
    for operator in reversed(step.plan.operators):
        dy = _fan_in(step, operator, gradients[operator.name])
        for source, dx in zip(operator.inputs, parts[operator.name].backward(dy), strict=True):
            single = consumers[source] == 1
            name = f"{source}.grad" if single else f"{source}.grad{len(gradients[source]) + 1}"
            edge = ways[source, operator.name]
            cuts = step.space(edge.backward.target, edge.features).cuts
            gradients[source].append(moved(step.builder, dx, edge.backward, cuts, name))


def _fan_in(step: StepContext, operator: Operator, gradients: list[View]) -> View | None:
    """Return the gradient of an operator's output: the sum over consumers; None for the loss."""
    if len(gradients) < 2:
        return gradients[0] if gradients else None
    space = step.space(step.ends(operator.name).output, operator.K)
    writes = f"{operator.name}.grad[M,K]"
    return step.builder.compute(operator.name, "sum.fan-in", space, gradients, writes)


def _consumers(step: StepContext) -> Counter[str]:
    """Return the number of consumers of every operator's output."""
    return Counter(source for operator in step.plan.operators for source in operator.inputs)
