"""Time against memory: the best plan within a bound, and a list of plans along the Pareto front."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from primepar.errors import PlanError
from primepar.plan.plan import Plan
from primepar.plan.search.few_layers import FewLayers
from primepar.plan.search.frontier import Frontier
from primepar.plan.search.planner import Planner
from primepar.plan.search.result import SearchResult
from primepar.plan.search.search import EXACT
from primepar.plan.search.sequence_classes import FEW, MOST, Classes

TOLERANCE = 0.005
"""The largest relative gap of a bounded plan, and the smallest tolerance of a front."""
NEAR = 0.0005
"""The gap at which a search within a bound ends early."""
COARSE = 64
"""Weighted plans of classes that are searched for a bound at most."""
FEW_LAYERS = 4
"""Layers up to which labels are used where a gap remains."""
MOST_PLANS = 50
"""Plans of a front at most: the tolerance is doubled until there are no more."""


class NamedPlan(NamedTuple):
    """A plan of a front, with the name under which it is listed."""

    name: str
    result: SearchResult

    @property
    def plan(self) -> Plan:
        """The plan, as it is saved to a file."""
        return self.result.plan


class Front(NamedTuple):
    """Plans along the Pareto front, the fastest first.

    Each plan of the exact front has one in the list whose time and memory are at most `1 +
    tolerance` of its own.
    """

    plans: list[NamedPlan]
    tolerance: float


class Tradeoff:
    """Plans of a planner by cost and memory; the planner must be made with `tradeoffs`.

    The cost of a plan is the planner's: seconds, plus `alpha` times bytes. Beyond `EXACT` devices
    `frontier` is that of classes of sequences: its bounds hold for all plans.
    """

    def __init__(self, planner: Planner) -> None:
        self.planner = planner

    @property
    def _is_coarse(self) -> bool:
        """Whether the frontier is that of classes."""
        return self.planner.candidates is None and self.planner.training.links.devices > EXACT

    @cached_property
    def frontier(self) -> Frontier:
        """The plans found so far, and the bound of all others."""
        if self._is_coarse:
            return Frontier(Classes.of_planner(self.planner), COARSE)
        return Frontier(self.planner)

    @cached_property
    def few_layers(self) -> FewLayers | None:
        """The exact search for models of few layers; None for others."""
        few = self.planner.graph.layers <= FEW_LAYERS
        return FewLayers(self.planner, self.frontier.least_memory) if few else None

    def _check_devices(self, what: str) -> None:
        if self._is_coarse:
            devices = self.planner.training.links.devices
            raise PlanError(
                f"expected at most {EXACT} devices for {what}, got {devices}: take --devices "
                f"{EXACT}, or the least time in --memory"
            )

    def least_memory(self) -> float:
        """The least bytes of a device that any plan takes."""
        return self.frontier.least_memory

    def fastest(self, memory: float) -> SearchResult | None:
        """The cheapest plan within `memory` bytes of a device; None if there is none."""
        frontier = self.frontier
        if memory < frontier.least_memory:
            return None
        gap = _refined(lambda: self._gap_in_cost(memory), lambda: frontier.refine(memory))
        if self._is_coarse:
            return self._of_nearest(memory)
        if gap > NEAR and self.few_layers:
            return self.few_layers.fastest(memory)
        place = frontier.cheapest(memory)
        assert place is not None, "the smallest plan is within the bound"
        return self._result(place, gap)

    def _of_nearest(self, memory: float) -> SearchResult:
        """The cheapest plan within `memory` of the sequences of the nearest classes.

        More classes are taken until it is near the bound of all plans.
        """
        frontier, count, best = self.frontier, FEW, None
        classes, least = frontier.planner, frontier.least_cost(memory)
        assert isinstance(classes, Classes)
        bounds = frontier.bounds(memory)
        while best is None or (best.gap > TOLERANCE and count <= MOST):
            fine = Tradeoff(classes.nearest(self.planner, bounds, count))
            plan = fine.fastest(memory)
            if plan is not None and (best is None or plan.cost < best.cost):
                best = replace(plan, gap=max(0.0, plan.cost / least - 1))
            count *= 2
        return best

    def _gap_in_cost(self, memory: float) -> float:
        place = self.frontier.cheapest(memory)
        if place is None:
            return np.inf
        return float(self.frontier.costs[place] / self.frontier.least_cost(memory) - 1)

    def smallest(self, seconds: float) -> SearchResult | None:
        """The plan of least memory that costs at most `seconds`; None if there is none.

        Raises `PlanError` for more than `EXACT` devices.
        """
        self._check_devices("least memory within --within")
        frontier = self.frontier
        gap = _refined(lambda: self._gap_in_memory(seconds), lambda: frontier.refine_bytes(seconds))
        if gap > NEAR and self.few_layers:
            return self.few_layers.smallest(seconds)
        place = frontier.smallest(seconds)
        return None if place is None else self._result(place, gap)

    def _gap_in_memory(self, seconds: float) -> float:
        place, least = self.frontier.smallest(seconds), self.frontier.least_bytes(seconds)
        if place is None:
            return 0.0 if np.isinf(least) else np.inf
        return float(self.frontier.memories[place] / least - 1)

    def front(self) -> Front:
        """Plans along the Pareto front of cost and memory, the fastest and the smallest included.

        The tolerance is larger where the pool of plans or the number of plans needs it. Raises
        `PlanError` for more than `EXACT` devices.
        """
        self._check_devices("a Pareto front")
        if self.few_layers:
            return self._thinned(self.few_layers.front())
        tolerance, (places, reached) = TOLERANCE, self._covering(TOLERANCE)
        while len(places) > MOST_PLANS:
            tolerance *= 2
            places, reached = self._covering(tolerance)
        return Front(_named(self._result(place, reached) for place in places), reached)

    @staticmethod
    def _thinned(exact: list[SearchResult]) -> Front:
        """Plans of the exact front: the first and last, and one near each of the others."""
        tolerance = TOLERANCE
        while len(plans := _near_all(exact, tolerance)) > MOST_PLANS:
            tolerance *= 2
        return Front(_named(plans), tolerance)

    def _covering(self, tolerance: float) -> tuple[list[int], float]:
        """Plans of the pool near every plan of the exact front, by place, and how near they are.

        All plans with at most `memory` bytes cost at least some bound. A plan of the pool that
        costs at most `1 + tolerance` times that is near those of them that have its own memory over
        `1 + tolerance`, or more. The smallest such plan is taken, and the rest is considered next.
        The list is made again until the pool stays as it was.
        """
        frontier, searches, reached = self.frontier, -1, tolerance
        places: set[int] = set()
        while searches < frontier.searches:
            searches, reached = frontier.searches, tolerance
            _refined(lambda: self._gap_in_cost(np.inf), lambda: frontier.refine(np.inf))
            self._near(frontier.least_memory, tolerance)
            places = {0, len(frontier.plans) - 1}
            memory = float(frontier.memories[0]) / (1 + tolerance)
            while (memory := float(np.nextafter(memory, 0.0))) >= frontier.least_memory:
                place, near = self._near(memory, tolerance)
                places.add(place)
                reached = max(reached, near)
                memory = min(memory, float(frontier.memories[place]) / (1 + tolerance))
        return sorted(places), reached

    def _near(self, memory: float, tolerance: float) -> tuple[int, float]:
        """The smallest plan of the pool that is near the fastest within `memory`, and how near."""
        frontier = self.frontier
        while True:
            place = frontier.smallest(frontier.least_cost(memory) * (1 + tolerance))
            if place is not None and frontier.memories[place] <= memory:
                return place, tolerance
            if not frontier.refine(memory):
                break
        place = frontier.cheapest(memory)
        assert place is not None, "the smallest plan is in the pool"
        return place, self._gap_in_cost(memory)

    def _result(self, place: int, gap: float) -> SearchResult:
        frontier = self.frontier
        choices = frontier.choices(place)
        return SearchResult.of(self.planner, float(frontier.costs[place]), choices, max(0.0, gap))


def _named(plans: Iterable[SearchResult]) -> list[NamedPlan]:
    return [NamedPlan(f"front-{number:02}", plan) for number, plan in enumerate(plans, 1)]


def _near_all(exact: list[SearchResult], tolerance: float) -> list[SearchResult]:
    """Of an exact front the first and the last plan, and as few others as are near all plans."""
    chosen = exact[:1]
    for plan, after in pairwise([*exact[1:], None]):
        assert plan is not None
        left = [one for one in exact if one.memory < chosen[-1].memory / (1 + tolerance)]
        if left and (after is None or after.cost > left[0].cost * (1 + tolerance)):
            chosen.append(plan)
    return chosen if chosen[-1] is exact[-1] else [*chosen, exact[-1]]


def _refined(gap: Callable[[], float], refine: Callable[[], bool]) -> float:
    """The gap after refining as long as it is wide and something can be refined."""
    while (now := gap()) > NEAR and refine():
        pass
    return now
