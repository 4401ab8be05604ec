"""Time against memory for models of few layers: exactly, by labels along all operators.

A few layers leave wide gaps between mixtures of plans. The labels of all their operators are few.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from itertools import pairwise

import numpy as np

from primepar.plan.search.layers import segments
from primepar.plan.search.pareto_front import Box, Chain, ChainNode, FrontPoint, pareto_front
from primepar.plan.search.planner import Planner
from primepar.plan.search.result import SearchResult
from primepar.plan.search.segments import Choice, Matrix

TICK = 1e-12
"""Seconds to which costs are rounded, so that equal costs are equal to the last bit."""
MOST = 1e30
"""More ticks and more bytes than any plan takes."""


class FewLayers:
    """Plans of a planner with few layers by cost and memory, as `Tradeoff` has them.

    Costs are rounded to picoseconds.
    """

    def __init__(self, planner: Planner, least_memory: float) -> None:
        self.planner, self.least_memory = planner, least_memory

    def fastest(self, memory: float) -> SearchResult:
        """The cheapest plan within `memory` bytes of a device, of which there must be one."""
        bound = Box(-1.0, memory)
        chains = [Chain.of(nodes, bound) for nodes in self._chains]
        fitting = [point.cost for chain in chains for point in chain.near if point.memory <= memory]
        best, fastest = min(fitting, default=MOST), list[SearchResult]()
        for start, chain in enumerate(chains):
            for point in chain.within(Box(best, memory)):
                if point.memory <= memory and point.cost <= best:
                    best = point.cost
                    fastest.append(self._result(start, point))
        return fastest[-1]

    def smallest(self, seconds: float) -> SearchResult | None:
        """The plan of least memory that costs at most `seconds`; None if there is none."""
        bound = Box(seconds / TICK, -1.0)
        chains = [Chain.of(nodes, bound) for nodes in self._chains]
        fitting = [point.memory for chain in chains for point in chain.near
                   if point.cost <= bound.cost]  # fmt: skip
        best, smallest = min(fitting, default=MOST), None
        for start, chain in enumerate(chains):
            for point in reversed(chain.within(Box(bound.cost, best))):
                if point.cost <= bound.cost and point.memory <= best:
                    best, smallest = point.memory, self._result(start, point)
        return smallest

    def front(self) -> list[SearchResult]:
        """The Pareto front of cost and memory, the fastest first; one plan for each point.

        The plans of least weighted sums divide the front into boxes. Each box is searched alone,
        since a small box prunes most labels. Example: plans (1 s, 9 GB) and (4 s, 3 GB) are known;
        what is between them costs below 4 s and takes below 9 GB.
        """
        chains = [Chain.of(nodes) for nodes in self._chains]
        points = [(start, point) for start, chain in enumerate(chains) for point in chain.near]
        least = self.least_memory
        near = [(point.cost, point.memory) for _, point in _front(points) if point.memory > least]
        slowest = self.fastest(least)
        ends = [(0.0, MOST), *near, (slowest.cost / TICK + 1, least)]
        boxes = [Box(slow, large) for (_, large), (slow, _) in pairwise(ends)]
        candidates = [(start, point) for start, chain in enumerate(chains) for box in boxes
                 for point in chain.within(box)]  # fmt: skip
        return [self._result(start, point) for start, point in _front(candidates)]

    @cached_property
    def _starts(self) -> list[Choice]:
        """Options of the first operator, in groups with equal layouts of a tied table."""
        options = self.planner.options(self.planner.first)
        if not self.planner.tied:
            return [np.arange(len(options))]
        return [np.flatnonzero(options.weights == table) for table in np.unique(options.weights)]

    @cached_property
    def _chains(self) -> list[list[ChainNode]]:
        return [list(_nodes(self.planner, start)) for start in self._starts]

    def _result(self, start: int, point: FrontPoint) -> SearchResult:
        first, *others = point.choices
        choices = [int(self._starts[start][first]), *others]
        named = dict(zip(self.planner.named, choices, strict=True))
        return SearchResult(self.planner, self.planner.cost(named), named)


def _front(points: list[tuple[int, FrontPoint]]) -> list[tuple[int, FrontPoint]]:
    costs, sizes = (np.array([getattr(point, name) for _, point in points])
                    for name in ("cost", "memory"))  # fmt: skip
    return [points[place] for place in pareto_front(costs, sizes).tolist()]


def _nodes(planner: Planner, start: Choice) -> Iterator[ChainNode]:
    """The operators as nodes, with the options `start` of the first one."""

    def edge(producer: str, consumer: str) -> Matrix:
        seconds = np.rint(planner.edge(producer, consumer) / TICK)
        return seconds[start] if producer == planner.first else seconds

    ends = {segment[-1].name for segment in segments(planner.operators)}
    before = first = planner.first
    for operator in planner.operators:
        name, options = operator.name, planner.options(operator.name)
        cost = planner.objective(name)
        if name == planner.first:
            kept, rest = options.kept[start], options.running[start]
            none = np.zeros((1, len(start)))
            yield ChainNode(np.rint(cost[start] / TICK), kept, rest, none, None, ends=True)
            continue
        if name == "head" and planner.tied:
            cost = cost + planner.tie()[start[0]]
        passing = edge(first, name) if len(operator.inputs) > 1 else None
        yield ChainNode(np.rint(cost / TICK), options.kept, options.running, edge(before, name),
                   passing, name in ends)  # fmt: skip
        before, first = name, name if name in ends else first
