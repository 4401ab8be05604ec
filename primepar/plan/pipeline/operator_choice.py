"""Which operators of a layer run again: the fastest choice whose memory fits.

All layers make the same choice. Its costs are seconds, bytes that are kept, and bytes that are made
again at once, for every kind of layer. One that another beats in all of them is left out. Of the
others all are tried. So with given sequences no choice that fits is faster.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from itertools import chain, combinations

import numpy as np
from msgspec.structs import replace as changed

from primepar.models.graph import Operator
from primepar.plan.pipeline.computed_again import KEEP_INPUT, repeated
from primepar.plan.pipeline.layer_activations import LayerActivations
from primepar.plan.pipeline.pipeline_cost import Pipeline
from primepar.plan.pipeline.training_options import Recompute
from primepar.plan.pipeline_layout import layer_operator

Names = tuple[str, ...]


def fastest_choice(pipeline: Pipeline) -> Pipeline | None:
    """The pipeline with the fastest choice of operators that fits; None where none fits."""
    every = (with_choice(pipeline, recompute) for recompute in choices(pipeline))
    fitting = (chosen for chosen in every if chosen.memory <= pipeline.cluster.memory)
    return min(fitting, key=lambda chosen: chosen.seconds, default=None)


def with_choice(pipeline: Pipeline, recompute: Recompute) -> Pipeline:
    """The pipeline with the same sequences where some operators run again."""
    return replace(pipeline, options=changed(pipeline.options, recompute=recompute))


def choices(pipeline: Pipeline) -> list[Recompute]:
    """The choices that no other beats, in all kinds of layers of a pipeline.

    Of choices with the same costs the first is taken, of `none`, `full` and the others by length.
    """
    layers = [layer for chunk in pipeline.distinct for layer, _ in chunk.layers]
    received = frozenset(
        layer_operator(chosen.name) for layer in layers for chosen in layer.chosen
        if chosen.forward or chosen.cost.stash > chosen.cost.unmoved
    )  # fmt: skip
    possible: list[Recompute] = ["none", "full", *_possible(layers[0].operators, received)]
    costs = np.array([[*chain.from_iterable(_cost(layer, names) for layer in layers)]
                      for names in possible])  # fmt: skip
    best: list[int] = []
    for number in np.lexsort(costs.T[::-1]):
        if not (costs[best] <= costs[number]).all(axis=1).any():
            best.append(int(number))
    return [possible[number] for number in best]


def _cost(layer: LayerActivations, recompute: Recompute) -> tuple[float, ...]:
    return (sum(layer.seconds(recompute)), *layer.bytes(recompute))


@lru_cache(maxsize=64)
def _possible(operators: tuple[Operator, ...], received: frozenset[str]) -> tuple[Names, ...]:
    """All choices in which every operator runs again, or receives its input again."""
    return tuple(_all_useful(operators, received))


def _all_useful(operators: tuple[Operator, ...], received: frozenset[str]) -> Iterator[Names]:
    names = [layer_operator(operator.name) for operator in operators]
    keep = {layer_operator(known.name) for known in operators if known.kind in KEEP_INPUT}
    for count in range(1, len(names)):
        for chosen in combinations(names, count):
            again = {layer_operator(name) for name in repeated(operators, chosen).again}
            if again | (received & keep) >= {*chosen}:
                yield chosen
