"""Plans of least cost plus a weight times bytes, and the lower bounds that these are.

Where a plan has the least cost + weight * kept, no plan that keeps at most B bytes costs less than
that sum less weight * B. Of all weights the one with the largest bound is sought as for a convex
hull: between a faster and a smaller plan the next weight is that under which both have the same
sum. Example: plans (4 s, 9 GB) and (7 s, 3 GB) have equal sums at a weight of 0.5 s for a GB. This
is Lagrange's relaxation; its use here is ours.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from primepar.plan.search.exact_search import FEW, SLACK, Exact, least_with, nearest_options
from primepar.plan.search.mixed_plans import LayerChoices, PlanTotals
from primepar.plan.search.options import kind_of
from primepar.plan.search.planner import Planner
from primepar.plan.search.segments import Vector

MANY = 512
"""Options of an operator up to which the best plan of all is sought."""


class Weighted(NamedTuple):
    """The plan for a weight: no plan has less than `least` of cost + weight * kept.

    `exact` states that the bound is not to be improved: the plan itself has no more, or options are
    too many.
    """

    weight: float
    least: float
    exact: bool
    plan: LayerChoices
    cost: float
    kept: float
    rest: float


@dataclass
class WeightedPlans:
    """Plans for several weights whose rest is at most `rest` bytes, ordered by weight."""

    planner: Planner
    totals: PlanTotals
    rest: float
    plans: list[Weighted] = field(default_factory=list)
    smallest: Weighted | None = None
    """The fastest of the plans that keep the least bytes; its weight is infinite."""

    def bound(self, kept: float) -> float:
        """A lower bound of the cost of all plans that keep at most `kept` bytes."""
        return max((one.least - one.weight * kept for one in self.plans), default=0.0)

    def kept(self, cost: float) -> float:
        """A lower bound of the bytes that all plans keep that cost at most `cost`."""
        if any(one.least > cost for one in self.plans if one.weight == 0):
            return np.inf
        return max(((one.least - cost) / one.weight for one in self.plans if one.weight > 0),
                   default=0.0)  # fmt: skip

    @property
    def _ordered(self) -> list[Weighted]:
        ends = [] if self.smallest is None else [self.smallest]
        return sorted(self.plans, key=lambda one: one.weight) + ends

    def around(self, kept: float, count: int) -> list[Weighted]:
        """Up to `count` plans on each side of a bound: those that keep more, those that do not.

        They are in the order of their weights. On one side there may be none.
        """
        ordered = self._ordered
        place = next((place for place, one in enumerate(ordered) if one.kept <= kept), len(ordered))
        return ordered[max(0, place - count) : place + count]

    def search_near(self, kept: float) -> Weighted | None:
        """Another plan near the bound; None where there is none of another weighted sum."""
        if not self.plans:
            return self._add(0.0)
        if self.plans[0].kept > kept and self.smallest is None:
            self.smallest = self._search(np.inf, exact=False)
            return self.smallest
        near = self.around(kept, 1)
        if len(near) < 2:
            return None
        fast, small = near
        weight = (small.cost - fast.cost) / (fast.kept - small.kept)
        if any(abs(one.weight - weight) <= SLACK * weight for one in self.plans):
            return None
        return self._add(weight)

    def tighten(self, kept: float) -> Weighted | None:
        """The best plan for the weight of a neighbour of the bound, where it was not the best."""
        for one in self.around(kept, 1):
            if not one.exact and one is not self.smallest:
                self.plans.remove(one)
                return self._add(one.weight, exact=True)
        return None

    def bounds_near(self, kept: float) -> dict[object, Vector]:
        """Bounds of the weighted cost of plans with each option, for a neighbour of the bound."""
        weights = [plan.weight for plan in self.around(kept, 1) if np.isfinite(plan.weight)]
        return least_with(self.planner, self._costs(max(weights)))

    def neighbours(self, one: Weighted) -> list[Weighted]:
        """The plans for the next smaller and the next larger weight."""
        ordered = self._ordered
        place = next(place for place, other in enumerate(ordered) if other is one)
        return ordered[max(0, place - 1) : place] + ordered[place + 1 : place + 2]

    def _add(self, weight: float, *, exact: bool = False) -> Weighted:
        added = self._search(weight, exact=exact)
        self.plans = sorted([*self.plans, added], key=lambda one: one.weight)
        return added

    def _costs(self, weight: float) -> dict[object, Vector]:
        """Weighted costs of all options; infinite for those with a larger rest."""
        costs: dict[object, Vector] = {}
        for operator in self.planner.graph.operators:
            options, cost = (self.planner.options(operator.name),
                             self.planner.objective(operator.name))  # fmt: skip
            fits = options.running <= self.rest
            if np.isinf(weight):
                fits &= options.kept == options.kept[fits].min()
                weighted = cost
            else:
                weighted = cost + weight * options.kept
            costs[kind_of(operator)] = np.where(fits, weighted, np.inf)
        return costs

    def _search(self, weight: float, *, exact: bool) -> Weighted:
        """The best plan of the options with the lowest bounds, or with `exact` of all options.

        Where another plan may be better, the bound is the least one of all options.
        """
        costs = self._costs(weight)
        bounds = least_with(self.planner, costs)
        search = nearest_options(self.planner, bounds, FEW, costs)
        value, choices = search.search()
        most = value * (1 + SLACK)
        among = {kind: np.flatnonzero(bound <= most) for kind, bound in bounds.items()}
        is_best = all(len(few) <= len(search.among[kind]) for kind, few in among.items())
        if exact and not is_best and max(map(len, among.values())) <= MANY:
            value, choices = Exact(self.planner, among, costs).search()
            is_best = True
        least = value if is_best else max(float(bound.min()) for bound in bounds.values())
        plan = self.totals.of_flat(choices)
        cost, kept, rest = self.totals.of(plan).tolist()
        return Weighted(weight, least, exact or is_best, plan, cost, kept, rest)
