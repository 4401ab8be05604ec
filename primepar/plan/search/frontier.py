"""Which times and memories plans can reach: a pool of plans, and a lower bound of all others.

Memory is what operators keep plus the largest rest. Plans are divided by their largest rest into
intervals. In an interval every plan takes at least its lowest rest, and uses options with at most
its highest. Weighted plans give the bounds of an interval and the plans; mixtures of neighbours are
the pool. An interval is halved where the rest of its plans makes the bound weak. This is ours.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from primepar.plan.search.least_memory import least_sums
from primepar.plan.search.mixed_plans import LayerChoices, Mixture, PlanTotals
from primepar.plan.search.options import Options
from primepar.plan.search.pareto_front import pareto_front
from primepar.plan.search.planner import Planner
from primepar.plan.search.segments import Choices, Vector
from primepar.plan.search.weighted_plans import Weighted, WeightedPlans

MOST = 400
"""Weighted plans that are searched at most."""
NEAREST = 3
"""Plans on each side of a bound that are mixed with one another where the bound is not reached."""


@dataclass(frozen=True)
class Interval:
    """Plans whose largest rest is from `low` to `high`, both the rest of some option."""

    low: float
    high: float


class Frontier:
    """Costs and memories of the plans of a planner that is made with `tradeoffs`."""

    def __init__(self, planner: Planner, most: int = MOST) -> None:
        self.most = most
        self.planner, self.totals = planner, PlanTotals(planner)
        options: dict[object, Options] = {
            planner.key(name): planner.options(name) for name in planner.named
        }
        counts: Counter[object] = Counter(planner.key(name) for name in planner.named)
        needed = max(float(some.running.min()) for some in options.values())
        peaks = np.unique(np.concatenate([some.running for some in options.values()]))
        self.peaks: Vector = peaks[peaks >= needed]
        self.least_kept: Vector = least_sums(counts, options, self.peaks)
        self.intervals = [Interval(float(self.peaks[0]), float(self.peaks[-1]))]
        self.by_rest: dict[float, WeightedPlans] = {}
        self.costs = self.memories = np.zeros(0)
        self.plans: list[Mixture | LayerChoices] = []
        self.searches = 0
        self._mixed: set[tuple[int, int]] = set()

    @property
    def least_memory(self) -> float:
        """The least bytes of a device that any plan takes."""
        return float((self.least_kept + self.peaks).min())

    def weighted(self, interval: Interval) -> WeightedPlans:
        """The weighted plans of an interval."""
        high = interval.high
        return self.by_rest.setdefault(high, WeightedPlans(self.planner, self.totals, high))

    def least_cost(self, memory: float) -> float:
        """A lower bound of the cost of all plans that take at most `memory` bytes."""
        return min(self._least_cost(interval, memory) for interval in self.intervals)

    def _least_cost(self, interval: Interval, memory: float) -> float:
        kept = memory - interval.low
        if kept < self._least_kept(interval):
            return np.inf
        return max(weighted.bound(kept) for rest, weighted in self.by_rest.items()
                   if rest >= interval.high) if self.by_rest else 0.0  # fmt: skip

    def _least_kept(self, interval: Interval) -> float:
        return float(self.least_kept[np.searchsorted(self.peaks, interval.high)])

    def least_bytes(self, cost: float) -> float:
        """A lower bound of the memory of all plans that cost at most `cost`."""
        return min(self._least_bytes(interval, cost) for interval in self.intervals)

    def _least_bytes(self, interval: Interval, cost: float) -> float:
        kept = max((weighted.kept(cost) for rest, weighted in self.by_rest.items()
                    if rest >= interval.high), default=0.0)  # fmt: skip
        return max(kept, self._least_kept(interval)) + interval.low

    def bounds(self, memory: float) -> dict[object, Vector]:
        """Bounds of plans with each option at the weight where the bound within `memory` is."""
        interval = min(self.intervals, key=lambda one: self._least_cost(one, memory))
        return self.weighted(interval).bounds_near(memory - interval.low)

    def refine(self, memory: float) -> bool:
        """Improve the bound of the cost within `memory`, or the pool; whether that was possible."""
        interval = min(self.intervals, key=lambda one: self._least_cost(one, memory))
        return self._refine(interval, memory)

    def refine_bytes(self, cost: float) -> bool:
        """Improve the bound of the memory within `cost`, or the pool; whether that was possible."""
        interval = min(self.intervals, key=lambda one: self._least_bytes(one, cost))
        return self._refine(interval, self._least_bytes(interval, cost))

    def _refine(self, interval: Interval, memory: float) -> bool:
        weighted, kept = self.weighted(interval), memory - interval.low
        if self.searches >= self.most or kept < self._least_kept(interval):
            return False
        if (plan := weighted.search_near(kept)) is not None:
            self._add(weighted, plan)
            return True
        rest = max(one.rest for one in weighted.around(kept, 1))
        if rest > interval.low:
            self._halve(interval, rest)
            return True
        if (plan := weighted.tighten(kept)) is not None:
            self._add(weighted, plan)
            return True
        return self._mix(weighted, kept)

    def _mix(self, weighted: WeightedPlans, kept: float) -> bool:
        """Mix two plans near the bound that are no neighbours; whether there were any."""
        near = weighted.around(kept, NEAREST)
        for pair in combinations(near, 2):
            key = id(pair[0].plan), id(pair[1].plan)
            if key not in self._mixed:
                self._mixed.add(key)
                self._extend(pair[0], [pair[1]])
                return True
        return False

    def _add(self, weighted: WeightedPlans, plan: Weighted) -> None:
        """Add a plan to the pool, and its mixtures with its neighbours."""
        self.searches += 1
        self._extend(plan, weighted.neighbours(plan))

    def _extend(self, plan: Weighted, others: Iterable[Weighted]) -> None:
        """Add a plan and its mixtures with others to the pool, which keeps undominated plans."""
        plans: list[Mixture | LayerChoices] = [*self.plans, plan.plan]
        costs = [self.costs, np.array([plan.cost])]
        memories = [self.memories, np.array([plan.kept + plan.rest])]
        for other in others:
            mixtures, totals = self.totals.mixtures(plan.plan, other.plan)
            plans += mixtures
            costs.append(totals[:, 0])
            memories.append(totals[:, 1] + totals[:, 2])
        cost, memory = np.concatenate(costs), np.concatenate(memories)
        front = pareto_front(cost, memory)
        self.costs, self.memories = cost[front], memory[front]
        self.plans = [plans[place] for place in front.tolist()]

    def cheapest(self, memory: float) -> int | None:
        """The cheapest plan of the pool with at most `memory` bytes, by its place."""
        place = int(np.searchsorted(-self.memories, -memory))
        return place if place < len(self.plans) else None

    def smallest(self, cost: float) -> int | None:
        """The smallest plan of the pool that costs at most `cost`, by its place."""
        place = int(np.searchsorted(self.costs, cost, side="right")) - 1
        return place if place >= 0 else None

    def _halve(self, interval: Interval, rest: float) -> None:
        """Divide an interval into the peaks below `rest`, and those from there on."""
        below = float(self.peaks[np.searchsorted(self.peaks, rest) - 1])
        self.intervals.remove(interval)
        self.intervals += [Interval(interval.low, below), Interval(rest, interval.high)]

    def choices(self, place: int) -> Choices:
        """The choices of all operators under a plan of the pool."""
        plan = self.plans[place]
        return (plan.choices if isinstance(plan, Mixture) else plan).flat
