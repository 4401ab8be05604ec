"""Least time within a memory limit, and least memory within a time limit.

A byte that is kept gets a price: for a weight in seconds per byte the exact search finds the least
of cost + weight * kept. That least, less the weight times a limit of bytes, is a lower bound of all
plans within the limit (Lagrange's relaxation). Between a faster and a smaller plan the next weight
is that under which both have the same sum, until no plan is below the line through them.

Example: plans (4 s, 9 GB) and (7 s, 3 GB) have equal sums at 0.5 s per GB. If no plan is below
that line, no plan within 5 GB takes less than 6 s. All layers of a plan for one weight are mostly
alike; so the first operators of the one plan and the later ones of the other are joined, at every
operator. What is left between the best of these and the bound is the certified gap.

Memory is what operators keep plus the largest rest. Plans are divided by their largest rest into
intervals. In one, a plan has at least its lowest rest, and options have at most its highest. An
interval is divided where a plan of its line has more than the lowest rest. This is ours.

The least memory of any plan is known without a search, in closed form (`least_sums`).
Redistribution takes time and no memory here. So once the largest rest is fixed, every operator is
free to keep its least. Example: options (keeps 5, rest 1) and (keeps 3, rest 4) of two equal
operators: with a rest of 1 a plan takes 5 + 5 + 1 bytes, with a rest of 4 it takes 3 + 3 + 4, which
is the least.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from heapq import heappop, heappush
from math import inf
from typing import NamedTuple

import numpy as np

from primepar.errors import PlanError
from primepar.plan.search.options import Catalogue, Choices, Options, Vector, kind_of
from primepar.plan.search.planner import Planner
from primepar.plan.search.result import SearchResult
from primepar.plan.search.search import Costs, Exact, refuse_many, search
from primepar.plan.search.sequence_space import SequenceSpace

AT_ONCE = ("parameters", "gradients", "states"), ("parameters", "states", "stash")
"""Terms of `Cost` that a device holds at once: before the update, and at the end of forward."""


def least_at_once(planner: Planner) -> float:
    """A lower bound of the bytes that a device holds at once in any plan, without a search.

    Sequences of one class hold the same, so that one of each class is considered. A tied head has
    no parameters of its own.
    """
    links, catalogue = planner.training.links, planner.catalogue
    space = SequenceSpace(planner.space, links.levels)
    catalogue = Catalogue(planner.model, planner.training, space.of, catalogue.layouts)
    sums = np.zeros(len(AT_ONCE))
    for operator in planner.operators:
        options = catalogue.options(operator)
        if len(options) and not (operator.name == "head" and planner.tied):
            sums += [
                np.sum([options.terms[term] for term in terms], axis=0).min() for terms in AT_ONCE
            ]
    return float(sums.max())


def least_sums(
    counts: Mapping[object, int], options: Mapping[object, Options], peaks: Vector
) -> Vector:
    """The least sum that all operators keep, for each largest rest of `peaks` in ascending order.

    Infinite where an operator has no option whose own peak is so small.
    """
    total = np.zeros(len(peaks))
    for kind, count in counts.items():
        order = np.argsort(options[kind].running, kind="stable")
        least = np.minimum.accumulate(options[kind].kept[order])
        place = np.searchsorted(options[kind].running[order], peaks, side="right")
        total += count * np.concatenate([[np.inf], least])[place]
    return total


NEAR = 0.0005
"""The gap at which a search within a limit ends early."""


class Extent(NamedTuple):
    """A plan with its cost, what its operators keep, and their largest rest."""

    choices: Choices
    cost: float
    kept: float
    rest: float

    @property
    def memory(self) -> float:
        """Bytes of a device."""
        return self.kept + self.rest


class Interval(NamedTuple):
    """Plans whose largest rest is one of `peaks`, from the places `first` to `last`.

    `bound` is a lower bound of them, at `weight`.
    """

    bound: float
    first: int
    last: int
    weight: float


class WithinLimits:
    """Plans of a planner within limits, out of options that cost more and take less memory too.

    Raises `PlanError` for more than `EXACT` devices.
    """

    def __init__(self, planner: Planner) -> None:
        refuse_many(planner)
        self.planner = planner = planner.like(planner, tradeoffs=True)
        counts: Counter[object] = Counter(map(planner.key, planner.named))
        options: dict[object, Options] = {
            planner.key(name): planner.options(name) for name in planner.named
        }
        needed = max(float(some.running.min()) for some in options.values())
        peaks = np.unique(np.concatenate([some.running for some in options.values()]))
        self.peaks: Vector = peaks[peaks >= needed]
        self.least_memory = float((least_sums(counts, options, self.peaks) + self.peaks).min())
        self._searched: dict[tuple[float, float], tuple[float, Extent]] = {}
        self._joined: dict[tuple[Choices, Choices], list[Vector]] = {}

    def fastest(self, memory: float) -> SearchResult | None:
        """The cheapest plan that takes at most `memory` bytes of a device; None without one."""
        if memory < self.least_memory:
            return None
        plan, lowest = self._best(memory, inf)
        assert plan is not None, "the smallest plan is within the limit"
        return self._result(plan, plan.cost / lowest.bound - 1)

    def smallest(self, seconds: float) -> SearchResult | None:
        """The plan of least memory that costs at most `seconds`; None without one."""
        plan, lowest = self._best(inf, seconds)
        return None if plan is None else self._result(plan, plan.memory / lowest.bound - 1)

    def _result(self, plan: Extent, gap: float) -> SearchResult:
        return SearchResult.of(self.planner, plan.choices, plan.cost, max(0.0, gap))

    def _best(self, memory: float, seconds: float) -> tuple[Extent | None, Interval]:
        """The best plan within one of two limits, and the interval with the lowest bound of all.

        With a limit of `memory` cost is least, else memory. The interval with the lowest bound is
        divided next, until it is near the best plan or cannot be divided.
        """
        by_time = memory < inf or seconds == inf
        best, value = None, inf
        ahead, done = [Interval(0.0, 0, len(self.peaks) - 1, 0.0)], list[Interval]()
        while ahead and ahead[0].bound * (1 + NEAR) < value:
            interval = heappop(ahead)
            low, high = (float(self.peaks[place]) for place in (interval.first, interval.last))
            line = self._line(high, memory - low, seconds, by_time)
            if line is None:
                continue
            bound, weight, plans = line
            bound = max(interval.bound, bound if by_time else bound + low)
            for plan in self._mixed(*plans, memory, seconds, by_time):
                amount = plan.cost if by_time else plan.memory
                if plan.memory <= memory and plan.cost <= seconds and amount < value:
                    best, value = plan, amount
            middle = int(np.searchsorted(self.peaks, max(plan.rest for plan in plans)))
            if middle > interval.first:
                heappush(ahead, Interval(bound, interval.first, middle - 1, weight))
                heappush(ahead, Interval(bound, middle, interval.last, weight))
            else:
                done.append(Interval(bound, interval.first, interval.last, weight))
        lowest = min([*ahead, *done], default=Interval(value, 0, 0, 0.0))
        return best, lowest._replace(bound=min(value, lowest.bound))

    def _line(
        self, high: float, kept: float, seconds: float, by_time: bool
    ) -> tuple[float, float, tuple[Extent, Extent]] | None:
        """A bound of the plans with options of at most `high` rest, its weight, and two plans.

        These are on both sides of the limit. None where no plan is within it.
        """
        (least, fast), (_, small) = self._search(0.0, high), self._search(inf, high)
        if small.kept > kept or fast.cost > seconds:
            return None
        if by_time and fast.kept <= kept:
            return least, 0.0, (fast, fast)
        bound, weight = (least, 0.0) if by_time else (small.kept, inf)
        if not by_time and small.cost <= seconds:
            return bound, weight, (small, small)
        while fast.kept > small.kept:
            price = (small.cost - fast.cost) / (fast.kept - small.kept)
            least, plan = self._search(price, high)
            below, between = (
                total - price * kept if by_time else (total - seconds) / price
                for total in (least, fast.cost + price * fast.kept)
            )
            bound, weight = max((bound, weight), (below, price))
            # No weight has a bound above `between`, which is on the line through both plans.
            if below >= between * (1 - NEAR / 4):
                break
            if plan.kept <= kept if by_time else plan.cost > seconds:
                small = plan
            else:
                fast = plan
        return bound, weight, (fast, small)

    def _search(self, weight: float, high: float) -> tuple[float, Extent]:
        """The least of cost + `weight` * kept of options with at most `high` rest, and its plan.

        With an infinite weight the least cost of the plans that keep the least.
        """
        key = weight, high
        if key not in self._searched:
            least, choices = Exact.of(self.planner, self._costs(weight, high)).best
            self._searched[key] = least, self._extent(choices)
        return self._searched[key]

    def _costs(self, weight: float, high: float) -> Costs:
        costs: dict[object, Vector] = {}
        for operator in self.planner.graph.operators:
            options = self.planner.options(operator.name)
            cost, fits = self.planner.objective(operator.name), options.running <= high
            if weight == inf:
                fits &= options.kept == options.kept[fits].min()
            else:
                cost = cost + weight * options.kept
            costs[kind_of(operator)] = np.where(fits, cost, inf)
        return costs

    def _extent(self, choices: Choices) -> Extent:
        numbers = dict(zip(self.planner.named, choices, strict=True))
        options = [(self.planner.options(name), number) for name, number in numbers.items()]
        return Extent(choices, self.planner.cost(numbers),
                      sum(float(some.kept[number]) for some, number in options),
                      max(float(some.running[number]) for some, number in options))  # fmt: skip

    def _mixed(
        self, fast: Extent, small: Extent, memory: float, seconds: float, by_time: bool
    ) -> Iterator[Extent]:
        """Two plans, and the best within the limits that have a part of each, in either order."""
        yield from (fast, small)
        for one, two in ((fast, small), (small, fast)) if fast is not small else ():
            key = one.choices, two.choices
            if key not in self._joined:
                self._joined[key] = self._totals(*key)
            cost, size = self._joined[key]
            fitting = np.flatnonzero((size <= memory) & (cost <= seconds))
            if len(fitting):
                cut = int(fitting[(cost if by_time else size)[fitting].argmin()])
                yield self._extent((*one.choices[:cut], *two.choices[cut:]))

    def _totals(self, one: Choices, two: Choices) -> list[Vector]:
        """Cost and memory of plans with the first operators of one plan, the later ones of another.

        There is one for every number of first operators, from none to all.
        """
        planner, count = self.planner, len(one)
        place = {name: number for number, name in enumerate(planner.named)}
        cost, kept, rest = (np.zeros((2, count)) for _ in range(3))
        across = np.zeros(count + 2)
        for here, name in enumerate(place):
            options, chosen = planner.options(name), [one[here], two[here]]
            cost[:, here] = planner.objective(name)[chosen]
            kept[:, here], rest[:, here] = options.kept[chosen], options.running[chosen]
            for producer, edge in planner.edges_into(name):
                there = place[producer]
                cost[:, here] += edge[[one[there], two[there]], chosen]
                # An edge from the first operators to the later ones has an end in each plan.
                more = edge[one[there], two[here]] - edge[two[there], two[here]]
                across[there + 1] += more
                across[here + 1] -= more
        sums = [
            np.concatenate([[0.0], some[0].cumsum()])
            + np.concatenate([some[1][::-1].cumsum()[::-1], [0.0]])
            for some in (cost, kept)
        ]
        largest = np.maximum(
            np.concatenate([[0.0], np.maximum.accumulate(rest[0])]),
            np.concatenate([np.maximum.accumulate(rest[1][::-1])[::-1], [0.0]]),
        )
        return [sums[0] + across[:-1].cumsum(), sums[1] + largest]


def smallest_within(planner: Planner, seconds: float) -> SearchResult:
    """The smallest plan with a step of at most `seconds`. Raises `PlanError` without one."""
    result = WithinLimits(planner).smallest(seconds)
    if result is None:
        shortest = search(planner).seconds
        raise PlanError(
            f"expected a plan with a step within the {seconds:g} seconds of --within, got none: "
            f"the shortest takes {shortest:.6g} seconds, {shortest - seconds:.2g} too many"
        )
    return result
