"""A plan with fewer layers, from which what a step sends and holds follows for equal layers.

In a run of equal layers, each layer adds the same number of bytes to what is sent, and to what is
live while other layers run. So four layers of a run give those of any number: first, second, third
and last. The second is live as those left out are, while any layer runs that is not next to it, and
so is the third. Example: layers 0 to 79 are equal. A plan of the layers 0, 1, 78 and 79 is lowered.
What layer 78 holds while layer 0 runs is counted 76 times more, and what layer 1 holds while layer
79 runs.

With several micro-batches all layers are lowered. There forward of one micro-batch keeps what
backward of another frees, so that a block may be made later than all of a layer in between.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from msgspec.structs import replace

from primepar.plan.pipeline_layout import layer_of
from primepar.plan.plan import Plan

LOWERED = 4
"""Layers of a run that are lowered; a run of no more is lowered whole."""


class ShortRun(NamedTuple):
    """A run of equal layers, by the number of the first one in a short plan.

    `left_out` of the layers between the second and the third are not in that plan.
    """

    first: int
    left_out: int

    @property
    def alike(self) -> tuple[int, int]:
        """The second and the third layer: those between them are as they are."""
        return self.first + 1, self.first + 2

    @property
    def layers(self) -> range:
        """The layers of the short plan that are in the run."""
        return range(self.first, self.first + LOWERED)


@dataclass(frozen=True)
class Shortened:
    """A plan with at most four layers of each run of equal ones."""

    plan: Plan
    runs: tuple[ShortRun, ...]

    @classmethod
    def of(cls, plan: Plan) -> Shortened:
        """The shortest plan that what a step of `plan` sends and holds follows from."""
        if plan.pipeline is not None:
            return cls(plan, ())
        kept, runs = list[int](), list[ShortRun]()
        for run in _runs(plan):
            if len(run) > LOWERED:
                runs.append(ShortRun(len(kept), len(run) - LOWERED))
                run = [*run[:2], *run[-2:]]
            kept += run
        return cls(_with_layers(plan, kept), tuple(runs)) if runs else cls(plan, ())


def _with_layers(plan: Plan, layers: list[int]) -> Plan:
    """The plan with some of its layers alone."""
    number = {layer: place for place, layer in enumerate(layers)}
    sequences = {}
    for name, text in plan.sequences.items():
        layer = layer_of(name)
        if layer is None:
            sequences[name] = text
        elif layer in number:
            sequences[f"blocks.{number[layer]}.{_in_layer(name)}"] = text
    model = dataclasses.replace(plan.model, layers=len(layers))
    return replace(plan, model=model, sequences=sequences)


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
