"""Plans with fewer layers, from which what a step sends and holds follows for equal layers.

In a run of equal layers, each layer adds the same number of bytes to what is sent, and to what is
live at any other place of the step. So two plans, with two and with three layers of a run, give
those of any number: what the third one adds, times the layers that were left out. Example: layers
0 to 79 are equal. Plans of the layers 0, 79 and of 0, 1, 79 are lowered, and what layer 1 adds is
counted 78 times.

With several micro-batches all layers are lowered. There forward of one micro-batch keeps what
backward of another frees, so that a block may be made later than all of a layer in between.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import groupby

from msgspec.structs import replace

from primepar.plan.pipeline_layout import layer_of
from primepar.plan.plan import Plan

MOST_WHOLE = 3
"""Equal layers up to which all are lowered: three are not fewer than two and again three."""


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
        model = plan.model.with_sizes(layers=len(layers))
        return cls(replace(plan, model=model, sequences=sequences), layers)

    def phase(self, name: str) -> str:
        """The name of a phase, with the number of its layer in the whole plan."""
        layer = layer_of(name)
        return name if layer is None else f"blocks.{self.layers[layer]}.{_in_layer(name)}"


@dataclass(frozen=True)
class Shortened:
    """A plan with two layers of each run, and for each run the plan with a third one.

    `longer` also has how many layers of the run are left out of the short plan.
    """

    short: ShortPlan
    longer: tuple[tuple[ShortPlan, int], ...]

    @classmethod
    def of(cls, plan: Plan) -> Shortened:
        """The shortest plans that what a step of `plan` sends and holds follows from."""
        runs = (
            []
            if plan.pipeline is not None
            else [run[1:-1] for run in _runs(plan) if len(run) > MOST_WHOLE]
        )
        left_out = {layer for run in runs for layer in run}
        longer = ((ShortPlan.without(plan, left_out - {run[0]}), len(run)) for run in runs)
        return cls(ShortPlan.without(plan, left_out), tuple(longer))


def _runs(plan: Plan) -> Iterator[list[int]]:
    """The layers in runs of equal ones."""
    texts: list[list[tuple[str, str]]] = [[] for _ in range(plan.model.layers)]
    for name, text in plan.sequences.items():
        layer = layer_of(name)
        if layer is not None:
            texts[layer].append((_in_layer(name), text))
    layers = range(plan.model.layers)
    for _, run in groupby(layers, key=lambda layer: sorted(texts[layer])):
        yield list(run)


def _in_layer(name: str) -> str:
    return name.split(".", 2)[2]
