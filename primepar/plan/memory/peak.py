"""The most that every device of a plan holds in a training step: predicted, operator by operator.

Parameters and AdamW's moments are there from the start. What forward stashes stays until backward
has read it; gradients come one by one, and stay until their update. Every tensor lies where the
plan's layouts say, in the blocks in which it is worked on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

from primepar.models.graph import Operator
from primepar.plan.layouts import Edge, edges
from primepar.plan.memory.lifetimes import Ints, Lies
from primepar.plan.memory.operators import (
    Activation,
    Add,
    Attention,
    Embedding,
    Followed,
    LinearOperator,
    Loss,
    Norm,
)
from primepar.plan.memory.step import Step
from primepar.plan.plan import Plan
from primepar.schedule.layout import Cells

FOLLOWED: Mapping[str, Callable[[Step, Operator], Followed]] = {
    "embedding": Embedding,
    "norm": Norm,
    "linear": LinearOperator,
    "attention": Attention,
    "activation": Activation,
    "add": Add,
    "loss": Loss,
}
"""`Operator.kind` -> what it makes and reads."""


def peak(plan: Plan, batch: int, positions: int) -> Ints:
    """The most elements on every rank in a step of `batch` sequences of `positions` tokens.

    Raises `PlanError` for a batch that the plan does not divide.
    """
    plan.check_batch(batch, positions)
    step = Step(plan, batch, positions)
    parts = {each.name: FOLLOWED[each.kind](step, each) for each in plan.operators}
    ways = {(each.producer, each.consumer): each for each in edges(plan) if each.rows is None}
    consumers = Counter(source for each in plan.operators for source in each.inputs)
    _forward(step, parts, ways, consumers)
    _backward(step, parts, ways)
    for name in plan.model.parameter_shapes:
        step.update(name)
    return step.events.peak_R


Ways = Mapping[tuple[str, str], Edge]


def _forward(
    step: Step, parts: Mapping[str, Followed], ways: Ways, consumers: Mapping[str, int]
) -> None:
    made: dict[str, Lies] = {}
    for operator in step.plan.operators:
        name, part = operator.name, parts[operator.name]
        inputs = [
            step.events.moved(made[source], ways[source, name].forward, part.takes,
                              shared=consumers[source] > 1)
            for source in operator.inputs
        ]  # fmt: skip
        made[name] = part.forward(*inputs)
    step.events.keep(made["loss"])


def _backward(step: Step, parts: Mapping[str, Followed], ways: Ways) -> None:
    """In reverse; gradients of a tensor that went to several operators are added."""
    found: dict[str, list[Lies]] = {each.name: [] for each in step.plan.operators}
    for operator in reversed(step.plan.operators):
        own = found[operator.name]
        dy = own[0] if own else None
        if len(own) > 1:
            dy = step.events.make(Lies(own[0].cells, own[0].size, own[0].own_R), *own)
        for source, dx in zip(operator.inputs, parts[operator.name].backward(dy), strict=True):
            edge = ways[source, operator.name].backward
            cells = Cells.even(edge.target.grid)
            found[source].append(step.events.moved(dx, edge, cells))
