"""Time against memory: the best plan within a bound, and all plans that none beats in both."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from itertools import pairwise

import numpy as np

from primepar.errors import PlanError
from primepar.plan.search.pareto_front import Box, Chain, ChainNode, FrontPoint, unbeaten
from primepar.plan.search.planner import Planner
from primepar.plan.search.result import SearchResult
from primepar.plan.search.search import EXACT
from primepar.plan.search.segments import Choice, Matrix

TICK = 1e-12
"""Seconds to which costs are rounded, so that what costs the same does so to the last bit."""
MOST = 1e30
"""More ticks, and more bytes, than any plan takes."""


class Tradeoff:
    """Plans of a planner by time and memory; the planner is made with `tradeoffs`.

    The cost of a plan is the planner's, seconds and what its `alpha` makes of bytes.
    """

    def __init__(self, planner: Planner) -> None:
        devices = planner.training.wires.devices
        if devices > EXACT:
            raise PlanError(
                f"expected at most {EXACT} devices where memory and time are both bounded or "
                f"listed, got {devices}: take --devices {EXACT}, or --alpha for less memory"
            )
        self.planner = planner

    def fastest(self, memory: float) -> SearchResult | None:
        """The plan with the least cost of those within so many bytes of a device, if any is."""
        bound = Box(-1.0, memory)
        chains = [Chain.of(nodes, bound) for nodes in self._chains]
        fitting = [each.cost for chain in chains for each in chain.near if each.memory <= memory]
        best, found = min(fitting, default=MOST), None
        for at, chain in enumerate(chains):
            for each in chain.within(Box(best, memory)):
                if each.memory <= memory and each.cost <= best:
                    best, found = each.cost, self._found(at, each)
        return found

    def least_memory(self) -> float:
        """Bytes of a device that the smallest of all plans takes."""
        every = np.arange(len(self.planner.options(self.planner.first)))
        nodes = [each.free for each in _nodes(self.planner, every)]
        chain = Chain.of(nodes)
        best = min(each.memory for each in chain.near)
        return min(each.memory for each in chain.within(Box(MOST, best)))

    def smallest(self, seconds: float) -> SearchResult | None:
        """The plan with the least memory of those that cost so many seconds at most, if any is."""
        bound = Box(seconds / TICK, -1.0)
        chains = [Chain.of(nodes, bound) for nodes in self._chains]
        fitting = [each.memory for chain in chains for each in chain.near
                   if each.cost <= bound.cost]  # fmt: skip
        best, found = min(fitting, default=MOST), None
        for at, chain in enumerate(chains):
            for each in reversed(chain.within(Box(bound.cost, best))):
                if each.cost <= bound.cost and each.memory <= best:
                    best, found = each.memory, self._found(at, each)
        return found

    def front(self) -> list[SearchResult]:
        """All plans that none beats in both, the fastest first; of equal ones there is one."""
        chains = [Chain.of(nodes) for nodes in self._chains]
        points = [(at, each) for at, chain in enumerate(chains) for each in chain.near]
        least = self.least_memory()
        near = [(each.cost, each.memory) for _, each in _front(points) if each.memory > least]
        slowest = self.fastest(least)
        assert slowest is not None, "a plan takes the least memory of all"
        ends = [(0.0, MOST), *near, (slowest.cost / TICK + 1, least)]
        boxes = [Box(slow, large) for (_, large), (slow, _) in pairwise(ends)]
        found = [(at, each) for at, chain in enumerate(chains) for box in boxes
                 for each in chain.within(box)]  # fmt: skip
        return [self._found(at, each) for at, each in _front(found)]

    @cached_property
    def _starts(self) -> list[Choice]:
        """Options of the first operator that go together: an embedding's by its shared table."""
        options = self.planner.options(self.planner.first)
        if not self.planner.tied:
            return [np.arange(len(options))]
        return [np.flatnonzero(options.weights == each) for each in np.unique(options.weights)]

    @cached_property
    def _chains(self) -> list[list[ChainNode]]:
        return [list(_nodes(self.planner, start)) for start in self._starts]

    def _found(self, at: int, point: FrontPoint) -> SearchResult:
        first, *others = point.choices
        choices = [int(self._starts[at][first]), *others]
        named = dict(zip(self.planner.named, choices, strict=True))
        return SearchResult(self.planner, self.planner.cost(named), named)


def _front(points: list[tuple[int, FrontPoint]]) -> list[tuple[int, FrontPoint]]:
    costs, sizes = (np.array([getattr(each, name) for _, each in points])
                    for name in ("cost", "memory"))  # fmt: skip
    return [points[place] for place in unbeaten(costs, sizes).tolist()]


def _nodes(planner: Planner, start: Choice) -> Iterator[ChainNode]:
    """The operators as nodes, with some of the options of the first."""

    def edge(producer: str, consumer: str) -> Matrix:
        found = np.rint(planner.edge(producer, consumer) / TICK)
        return found[start] if producer == planner.first else found

    ends = {segment[-1].name for segment in planner.segments()}
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
