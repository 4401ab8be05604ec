"""Plans mixed from two others: the first layers of the one, the later layers of the other.

Cost and memory of such plans are between those of both. There is one for every number of layers, so
that a model of many layers has a plan near every point between two others. Example: of plans with
(4 s, 9 GB) and (6 s, 5 GB) over 80 layers, half of the layers each give about (5 s, 7 GB). This is
ours.

Legend: L layers, K plans, T the three totals (cost, kept, rest).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Several
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from primepar.models.graph import Operator
from primepar.plan.search.pareto_front import pareto_front
from primepar.plan.search.planner import Planner
from primepar.plan.search.segments import Choices

Totals = NDArray[np.float64]


class LayerChoices(NamedTuple):
    """The choices of a plan: of the operators before the layers, of every layer, and after them."""

    before: Choices
    layers: tuple[Choices, ...]
    after: Choices

    @property
    def flat(self) -> Choices:
        """The choices of all operators in their order."""
        return (*self.before, *(choice for layer in self.layers for choice in layer), *self.after)


class Mixture(NamedTuple):
    """A plan with the first `layers` layers of `begin`, and the others of `end`.

    The first of these others has `cut` operators of `begin` too. What is before the layers is that
    of `opening`, what comes after them that of `closing`.
    """

    begin: LayerChoices
    end: LayerChoices
    opening: LayerChoices
    closing: LayerChoices
    layers: int
    cut: int

    @property
    def choices(self) -> LayerChoices:
        """The choices of the plan."""
        begin, end, count = self.begin.layers, self.end.layers, self.layers
        middle = [begin[count][: self.cut] + end[count][self.cut :]] if count < len(end) else []
        layers = (*begin[:count], *middle, *end[count + 1 :])
        return LayerChoices(self.opening.before, layers, self.closing.after)


class PlanTotals:
    """Cost, sum and largest rest of plans and of their mixtures, each layer evaluated once."""

    def __init__(self, planner: Planner) -> None:
        self.planner, graph = planner, planner.graph
        size = len(graph.second) or sum(
            operator.name.startswith("blocks.") for operator in graph.operators
        )
        first = graph.second.start - size
        self.before, self.after = graph.operators[:first], graph.operators[graph.second.stop :]
        self.first_layer = graph.operators[first : first + size]
        self.later_layer = graph.operators[graph.second.start : graph.second.stop]
        self.layers = graph.layers
        self._known: dict[object, Totals] = {}

    def of_flat(self, choices: Choices) -> LayerChoices:
        """The parts of the choices of all operators."""
        start, size = len(self.before), len(self.first_layer)
        end = start + self.layers * size
        layers = (tuple(choices[place : place + size]) for place in range(start, end, size))
        return LayerChoices(tuple(choices[:start]), tuple(layers), tuple(choices[end:]))

    def of(self, plan: LayerChoices) -> Totals:
        """Cost, sum and largest rest of a plan."""
        begin = self._opening(plan.before)
        streams = [plan.before[-1], *(layer[-1] for layer in plan.layers)]
        layers = [
            self._layer(number, streams[number], layer) for number, layer in enumerate(plan.layers)
        ]
        return _joined([begin, *layers, self._closing(plan, streams[-1])])

    def mixtures(self, one: LayerChoices, two: LayerChoices) -> tuple[list[Mixture], Totals]:
        """The undominated mixtures of two plans, in both orders, and their totals (K, T)."""
        families = [family for family in product((one, two), repeat=4)
                    if family[0] is not family[1]]  # fmt: skip
        totals = [self._family(*family) for family in families]
        stacked = np.concatenate(totals)
        kept = pareto_front(stacked[:, 0], stacked[:, 1] + stacked[:, 2])
        mixtures = []
        for place in kept.tolist():
            family, member = divmod(place, len(totals[0]))
            layers, cut = divmod(member, len(self.first_layer))
            begin, end, opening, closing = families[family]
            mixtures.append(Mixture(begin, end, opening, closing, layers, cut))
        return mixtures, stacked[kept]

    def _family(
        self, begin: LayerChoices, end: LayerChoices, opening: LayerChoices, closing: LayerChoices
    ) -> Totals:
        """Totals by how many layers are those of `begin`, and how many operators of the next."""
        size = len(self.first_layer)
        until = _accumulated(np.stack([self._opening(opening.before),
                                       *self._layers(begin, opening)]))  # fmt: skip
        after = _accumulated(np.stack([np.zeros(3), *self._layers(end, opening)[:0:-1]]))[::-1]
        streams = [opening.before[-1], *(layer[-1] for layer in begin.layers)]
        middle = np.stack([
            self._layer(count, streams[count], begin.layers[count][:cut] + end.layers[count][cut:])
            for count in range(self.layers) for cut in range(size)
        ])  # fmt: skip
        ends = _joined(
            [np.repeat(until[:-1], size, axis=0), middle, np.repeat(after, size, axis=0)]
        )
        last, whole = (self._closing(closing, plan.layers[-1][-1], opening)
                       for plan in (end, begin))  # fmt: skip
        mixed = _joined([ends, np.broadcast_to(last, ends.shape)])
        return np.concatenate([mixed, _joined([until[-1], whole])[None]])

    def _layers(self, plan: LayerChoices, opening: LayerChoices) -> list[Totals]:
        streams = [opening.before[-1], *(layer[-1] for layer in plan.layers)]
        return [self._layer(number, streams[number], layer)
                for number, layer in enumerate(plan.layers)]  # fmt: skip

    def _layer(self, number: int, stream: int, choices: Choices) -> Totals:
        operators = self.later_layer if number else self.first_layer
        return self._part(operators, choices, {operators[0].inputs[0]: stream})

    def _opening(self, choices: Choices) -> Totals:
        return self._part(self.before, choices, {})

    def _closing(
        self, plan: LayerChoices, stream: int, opening: LayerChoices | None = None
    ) -> Totals:
        if not self.after:
            return np.zeros(3)
        outside = {self.after[0].inputs[0]: stream}
        if self.planner.tied:
            outside["embedding"] = (opening or plan).before[0]
        return self._part(self.after, plan.after, outside)

    def _part(
        self, operators: Several[Operator], choices: Choices, outside: Mapping[str, int]
    ) -> Totals:
        """Totals of some operators and of the edges that end at them."""
        key = operators[0].name, choices, tuple(outside.items())
        if key not in self._known:
            names = [operator.name for operator in operators]
            chosen = {**outside, **dict(zip(names, choices, strict=True))}
            self._known[key] = _joined(list(self._each(operators, chosen)))
        return self._known[key]

    def _each(self, operators: Several[Operator], chosen: Mapping[str, int]) -> Iterator[Totals]:
        planner = self.planner
        for operator in operators:
            name, number = operator.name, chosen[operator.name]
            cost = float(planner.objective(name)[number])
            for producer in operator.inputs:
                cost += float(planner.edge(producer, name)[chosen[producer], number])
            if name == "head" and planner.tied:
                cost += float(planner.tie()[chosen["embedding"], number])
            options = planner.options(name)
            yield np.array([cost, options.kept[number], options.running[number]])


def _joined(parts: Several[Totals]) -> Totals:
    """Totals of consecutive parts: costs and sums add up, the largest rest counts."""
    stacked = np.stack(parts)
    return np.concatenate([stacked[..., :2].sum(axis=0), stacked[..., 2:].max(axis=0)], axis=-1)


def _accumulated(parts: Totals) -> Totals:
    return np.concatenate(
        [np.cumsum(parts[:, :2], axis=0), np.maximum.accumulate(parts[:, 2:], axis=0)], axis=1
    )
