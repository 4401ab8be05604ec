"""The most that every device of a plan holds in a training step: predicted, operator by operator.

Parameters and AdamW's moments are there from the start. What forward stashes stays until backward
has read it; gradients come one by one, and stay until their update. Every tensor lies where the
plan's layouts say, in the blocks in which it is worked on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from fractions import Fraction
from itertools import groupby

import numpy as np

from primepar.models.config import ModelConfig
from primepar.models.graph import Operator
from primepar.plan.cluster import BYTES
from primepar.plan.cost.linear import MASTER, MOMENTS
from primepar.plan.layouts import Edge, edges, gradients_alike
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
from primepar.plan.memory.step_memory import StepMemory, layer_of
from primepar.plan.plan import Plan
from primepar.schedule.layout import Cells

FOLLOWED: Mapping[str, Callable[[StepMemory, Operator], Followed]] = {
    "embedding": Embedding,
    "norm": Norm,
    "linear": LinearOperator,
    "attention": Attention,
    "activation": Activation,
    "add": Add,
    "loss": Loss,
}
"""`Operator.kind` -> what it makes and reads."""


LIKE = 4
"""Layers that are followed of several that are alike: the first two and the last two."""


def peak_bytes(plan: Plan, batch: int, positions: int, dtype: str) -> tuple[int, ...]:
    """The most bytes on every rank, with moments of AdamW, and a copy of short types, in float32.

    Raises `PlanError` for a batch that the plan does not divide.
    """
    item = BYTES[dtype]
    copy = Fraction(MASTER if item < MASTER else 0, item)
    found = peak(plan, batch, positions, Fraction(MOMENTS, 2 * item), copy)
    return tuple(item * int(each) for each in found)


def peak(
    plan: Plan,
    batch: int,
    positions: int,
    moment: Fraction = Fraction(1),
    copy: Fraction = Fraction(0),
) -> Ints:
    """The most elements on every rank in a step of `batch` sequences of `positions` tokens.

    A moment of AdamW is `moment` elements for each of a parameter's, a further copy of it `copy`.
    Raises `PlanError` for a batch that the plan does not divide.
    """
    plan.check_batch(batch, positions)
    plan, times = folded(plan)
    step = StepMemory(plan, batch, positions, times, moment, copy)
    parts = {each.name: FOLLOWED[each.kind](step, each) for each in plan.operators}
    ways = {(each.producer, each.consumer): each for each in edges(plan) if each.rows is None}
    _forward(step, parts, ways)
    _backward(step, parts, ways)
    _gradient_norm(step)
    for layer, names in groupby(plan.model.parameter_shapes, key=layer_of):
        for name in names:
            step.update(name)
        step.events.repeat(times.get(layer, 0))
    return step.events.peak_R


def _gradient_norm(step: StepMemory) -> None:
    """A sum of squares for the gradients that lie alike, and the norm: one number each."""
    one = Lies(Cells.even((1,)), 1, np.ones(step.plan.ranks, np.int64))
    gradients = list(step.gradients.values())
    squares = [step.events.make(replace(one), *gradients) for _ in gradients_alike(step.plan)]
    step.events.keep(step.events.make(one, *squares))


def folded(plan: Plan) -> tuple[Plan, dict[int, int]]:
    """The plan with fewer layers, and for which layer of it how many like it were left out.

    In a run of layers that are alike, what they hold grows or falls evenly from the second to the
    last but one, so that the most is there in one of these if it is among them.
    """
    own: dict[int, dict[str, str]] = {}
    for name, text in plan.sequences.items():
        if layer_of(name) >= 0:
            own.setdefault(layer_of(name), {})[name.split(".", 2)[2]] = text
    stays: list[dict[str, str]] = []
    times = {}
    for _, run in groupby((own[layer] for layer in sorted(own)), key=dict.items):
        alike = list(run)
        if len(alike) > LIKE:
            times[len(stays) + 1] = len(alike) - LIKE
        stays += alike[:LIKE]
    if not times:
        return plan, times
    sequences = {name: text for name, text in plan.sequences.items() if layer_of(name) < 0}
    for layer, texts in enumerate(stays):
        sequences |= {f"blocks.{layer}.{each}": text for each, text in texts.items()}
    own_fields = {each.name: getattr(plan.model, each.name) for each in fields(ModelConfig)}
    model = ModelConfig(**own_fields | {"layers": len(stays)})
    return Plan(model=model, ranks=plan.ranks, sequences=sequences), times


Ways = Mapping[tuple[str, str], Edge]


def _forward(step: StepMemory, parts: Mapping[str, Followed], ways: Ways) -> None:
    made: dict[str, Lies] = {}
    consumers = Counter(source for each in step.plan.operators for source in each.inputs)
    for layer, operators in groupby(step.plan.operators, key=lambda each: layer_of(each.name)):
        for operator in operators:
            name, part = operator.name, parts[operator.name]
            inputs = [
                step.events.moved(made[source], ways[source, name].forward, part.takes,
                                  shared=consumers[source] > 1)
                for source in operator.inputs
            ]  # fmt: skip
            made[name] = part.forward(*inputs)
        step.events.repeat(step.times.get(layer, 0))
    step.events.keep(made["loss"])


def _backward(step: StepMemory, parts: Mapping[str, Followed], ways: Ways) -> None:
    """In reverse; gradients of a tensor that went to several operators are added."""
    found: dict[str, list[Lies]] = {each.name: [] for each in step.plan.operators}
    in_reverse = reversed(step.plan.operators)
    for layer, operators in groupby(in_reverse, key=lambda each: layer_of(each.name)):
        for operator in operators:
            own = found[operator.name]
            dy = own[0] if own else None
            if len(own) > 1:
                dy = step.events.make(replace(own[0]), *own)
            for source, dx in zip(operator.inputs, parts[operator.name].backward(dy), strict=True):
                way = ways[source, operator.name].backward
                gradient = step.events.moved(dx, way, Cells.even(way.target.grid))
                found[source].append(gradient)
        step.events.repeat(step.times.get(layer - 1, 0))
