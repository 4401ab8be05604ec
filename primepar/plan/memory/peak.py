"""Peak memory of every device of a plan in a training step, predicted operator by operator.

Parameters and AdamW's moments are live from the start. A stash is live until backward has read it,
a gradient from backward to its update. Every tensor has the layout that the plan defines, in the
blocks in which operators work on it.
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
from primepar.plan.cost.linear import MASTER
from primepar.plan.layouts import Edge, edges, gradient_groups
from primepar.plan.memory.lifetimes import Ints, PlacedTensor
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
"""`Operator.kind` -> the tensors that it reads and writes."""


LIKE = 4
"""Layers that are followed of a run of equal ones: the first two and the last two."""


def peak_bytes(plan: Plan, batch: int, positions: int, dtype: str) -> tuple[int, ...]:
    """Peak bytes of every rank, with AdamW's moments and copies of short types in float32.

    Raises `PlanError` for a batch that the plan cannot cut.
    """
    item = BYTES[dtype]
    copy = Fraction(MASTER if item < MASTER else 0, item)
    elements = peak(plan, batch, positions, Fraction(max(item, MASTER), item), copy)
    return tuple(item * int(of_rank) for of_rank in elements)


def peak(
    plan: Plan,
    batch: int,
    positions: int,
    moment: Fraction = Fraction(1),
    copy: Fraction = Fraction(0),
) -> Ints:
    """Peak elements of every rank in a step of `batch` sequences of `positions` tokens.

    Per element of a parameter, each of AdamW's two moments takes `moment` elements, and the copy of
    the parameter `copy`. Raises `PlanError` for a batch that the plan cannot cut, or a plan with
    a pipeline.
    """
    plan.check_without_pipeline()
    plan.check_batch(batch, positions)
    plan, times = folded(plan)
    step = StepMemory(plan, batch, positions, times, moment, copy)
    parts = {item.name: FOLLOWED[item.kind](step, item) for item in plan.operators}
    redistributions = {
        (item.producer, item.consumer): item for item in edges(plan) if item.rows is None
    }
    _forward(step, parts, redistributions)
    _backward(step, parts, redistributions)
    _gradient_norm(step)
    for layer, names in groupby(plan.model.parameter_shapes, key=layer_of):
        for name in names:
            step.update(name)
        step.events.repeat(times.get(layer, 0))
    return step.events.peak_R


def _gradient_norm(step: StepMemory) -> None:
    """A sum of squares for the gradients of each layout, and the norm: one number each."""
    number = PlacedTensor(Cells.even((1,)), 1, np.ones(step.plan.ranks, np.int64))
    gradients = list(step.gradients.values())
    squares = [step.events.make(replace(number), *gradients) for _ in gradient_groups(step.plan)]
    step.events.keep(step.events.make(number, *squares))


def folded(plan: Plan) -> tuple[Plan, dict[int, int]]:
    """The plan with fewer layers, and how many equal ones each remaining layer stands for.

    In a run of equal layers, live memory grows or falls evenly from the second layer to the last
    but one. So if the peak is among these, it is in the first or the last of them.
    """
    layers: dict[int, dict[str, str]] = {}
    for name, text in plan.sequences.items():
        if layer_of(name) >= 0:
            layers.setdefault(layer_of(name), {})[name.split(".", 2)[2]] = text
    stays: list[dict[str, str]] = []
    times = {}
    for _, run in groupby((layers[layer] for layer in sorted(layers)), key=dict.items):
        equal = list(run)
        if len(equal) > LIKE:
            times[len(stays) + 1] = len(equal) - LIKE
        stays += equal[:LIKE]
    if not times:
        return plan, times
    sequences = {name: text for name, text in plan.sequences.items() if layer_of(name) < 0}
    for layer, texts in enumerate(stays):
        sequences |= {f"blocks.{layer}.{name}": text for name, text in texts.items()}
    settings = {name.name: getattr(plan.model, name.name) for name in fields(ModelConfig)}
    model = ModelConfig(**settings | {"layers": len(stays)})
    return Plan(model=model, ranks=plan.ranks, sequences=sequences), times


Ways = Mapping[tuple[str, str], Edge]


def _forward(step: StepMemory, parts: Mapping[str, Followed], redistributions: Ways) -> None:
    outputs: dict[str, PlacedTensor] = {}
    consumers = Counter(source for operator in step.plan.operators for source in operator.inputs)
    for layer, operators in groupby(
        step.plan.operators, key=lambda operator: layer_of(operator.name)
    ):
        for operator in operators:
            name, part = operator.name, parts[operator.name]
            inputs = [
                step.events.moved(
                    outputs[source],
                    redistributions[source, name].forward,
                    part.takes,
                    shared=consumers[source] > 1,
                )
                for source in operator.inputs
            ]
            outputs[name] = part.forward(*inputs)
        step.events.repeat(step.times.get(layer, 0))
    step.events.keep(outputs["loss"])


def _backward(step: StepMemory, parts: Mapping[str, Followed], redistributions: Ways) -> None:
    """Backward, in reverse order; gradients from several consumers of a tensor are added."""
    gradients: dict[str, list[PlacedTensor]] = {
        operator.name: [] for operator in step.plan.operators
    }
    in_reverse = reversed(step.plan.operators)
    for layer, operators in groupby(in_reverse, key=lambda operator: layer_of(operator.name)):
        for operator in operators:
            incoming = gradients[operator.name]
            dy = incoming[0] if incoming else None
            if len(incoming) > 1:
                dy = step.events.make(replace(incoming[0]), *incoming)
            for source, dx in zip(operator.inputs, parts[operator.name].backward(dy), strict=True):
                way = redistributions[source, operator.name].backward
                gradient = step.events.moved(dx, way, Cells.even(way.target.grid))
                gradients[source].append(gradient)
        step.events.repeat(step.times.get(layer - 1, 0))
