"""Plans with fewer layers, from which what a step sends and holds follows for equal layers.

In a run of equal layers, each layer adds the same number of bytes to what is sent, and to what is
live at any other place of the step. So two plans, with two and with three layers of a run, give
those of any number: what the third one adds, times the layers that were left out. Example: layers
0 to 79 are equal. Plans of the layers 0, 79 and of 0, 1, 79 are lowered, and what layer 1 adds is
counted 78 times. In a pipeline the same number of layers is left out of every chunk, so that the
chunks stay those of the schedule.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from itertools import groupby

from msgspec.structs import replace as replaced

from primepar.plan.pipeline_layout import layer_of
from primepar.plan.plan import Plan

FEW = 2
"""Layers that stay of a run: the first and the last."""


@dataclass(frozen=True)
class ShortPlan:
    """A plan with some of the layers of another: `layers` are their numbers there."""

    plan: Plan
    layers: tuple[int, ...]

    @classmethod
    def without(cls, plan: Plan, left_out: Collection[int]) -> ShortPlan:
        """The plan without some layers."""
        layers = tuple(layer for layer in range(plan.model.layers) if layer not in left_out)
        number = {layer: place for place, layer in enumerate(layers)}
        sequences = {}
        for name, text in plan.sequences.items():
            layer = layer_of(name)
            if layer is None:
                sequences[name] = text
            elif layer in number:
                sequences[f"blocks.{number[layer]}.{_in_layer(name)}"] = text
        model = replace(plan.model, layers=len(layers))
        return cls(replaced(plan, model=model, sequences=sequences), layers)

    def phase(self, name: str) -> str:
        """The name of a phase, with the number of its layer in the whole plan."""
        layer = layer_of(name)
        return name if layer is None else f"blocks.{self.layers[layer]}.{_in_layer(name)}"


@dataclass(frozen=True)
class Shortened:
    """A plan without equal layers, and for each run the plan with one more layer of it.

    `longer` also has how many layers of the run were left out; in a pipeline, out of each chunk.
    """

    short: ShortPlan
    longer: tuple[tuple[ShortPlan, int], ...]

    @classmethod
    def of(cls, plan: Plan) -> Shortened:
        """The shortest plans that what a step of `plan` sends and holds follows from."""
        runs = list(_left_out(plan))
        everything = {layer for run in runs for part in run for layer in part}
        longer = (
            (ShortPlan.without(plan, everything - {part[0] for part in run}), len(run[0]))
            for run in runs
        )
        return cls(ShortPlan.without(plan, everything), tuple(longer))


Run = list[list[int]]
"""Layers that are left out: of each chunk of the model, equally many."""


def _left_out(plan: Plan) -> Iterator[Run]:
    """Yield the layers that are left out, run by run; in a pipeline, one run of each chunk.

    None where weight gradients come later than the rest of backward: a block that is made late is
    then made later than other layers.
    """
    if plan.schedule is not None and plan.schedule.splits_backward:
        return
    chunks = [_runs(plan, layers) for layers in _chunks(plan)]
    if len(chunks) == 1:
        yield from ([run[1:-1]] for run in chunks[0] if len(run) > FEW + 1)
        return
    longest = [max(runs, key=len) for runs in chunks]
    count = min(map(len, longest)) - FEW
    if count > 1:
        yield [run[1 : 1 + count] for run in longest]


def _chunks(plan: Plan) -> Iterator[range]:
    """Yield the layers of every chunk of the model."""
    if plan.schedule is None:
        yield range(plan.model.layers)
        return
    for operators in plan.schedule.chunk_operators(plan.operators, plan.model.layers):
        layers = [layer for item in operators if (layer := layer_of(item.name)) is not None]
        yield range(layers[0], layers[-1] + 1)


def _runs(plan: Plan, layers: range) -> list[list[int]]:
    """The layers in runs of equal ones."""
    texts: dict[int, list[tuple[str, str]]] = {layer: [] for layer in layers}
    for name, text in plan.sequences.items():
        layer = layer_of(name)
        if layer in texts:
            texts[layer].append((_in_layer(name), text))
    return [list(run) for _, run in groupby(layers, key=lambda layer: sorted(texts[layer]))]


def _in_layer(name: str) -> str:
    return name.split(".", 2)[2]
