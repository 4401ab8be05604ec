"""The search for many devices: classes of sequences first, then sequences of the best classes.

Sequences that differ only in which device bits of the same levels of links their cuts take are one
class: operators cost the same under all of them. The edge between two classes costs the least of
any edge between their sequences. So the cheapest choice of classes is a lower bound of all plans.
The gap of a plan is its distance from that bound. This is ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Several

import numpy as np

from primepar.plan.cost.candidate import Candidate
from primepar.plan.cost.lower_bounds import LeastWays
from primepar.plan.search.exact_search import Exact, least_with
from primepar.plan.search.options import Candidates, kind_of
from primepar.plan.search.planner import Planner
from primepar.plan.search.result import SearchResult
from primepar.plan.search.segments import Vector
from primepar.plan.search.sequence_space import SequenceSpace, orders

GOAL = 0.01
"""The gap, as a share of the lower bound, at which the search ends."""
FEW = 16
"""Classes of an operator whose sequences are searched first; doubled until the goal is met."""


class Classes(Planner):
    """Plans of classes: each costs no more than any plan of sequences in its classes."""

    def ways(self, sources: list[int], targets: list[int]) -> LeastWays:
        """The least that moves between any sequences of two classes, for each pair of classes."""
        return LeastWays.of(self.catalogue.layouts, sources, targets)


def near_best(planner: Planner) -> SearchResult:
    """A plan with a certified gap: its cost is at most `1 + gap` times the least cost."""
    space = SequenceSpace(planner.space, planner.training.links.levels)
    classes = Classes.like(planner, space.of)
    least, _ = Exact.of(classes).search()
    bounds, count = least_with(classes), FEW
    best: SearchResult | None = None
    while best is None or (best.gap > GOAL and count < 2 * max(map(len, bounds.values()))):
        most = least * (1 + (GOAL if best is None else best.gap))
        chosen = {kind: _sequences(classes.known[kind].candidates, bound, most, count, space.levels)
                  for kind, bound in bounds.items()}  # fmt: skip
        fine = Planner.like(planner, _choice(chosen))
        cost, choices = Exact.of(fine).search()
        if best is None or cost < best.cost:
            best = SearchResult.of(fine, cost, choices, max(0.0, cost / least - 1))
        count *= 2
    return best


def _choice(chosen: Mapping[object, Several[Candidate]]) -> Candidates:
    return lambda operator: chosen[kind_of(operator)]


def _sequences(
    classes: Several[Candidate], bound: Vector, most: float, count: int, levels: Several[int]
) -> list[Candidate]:
    """Sequences of the `count` classes with the lowest bounds, those above `most` left out."""
    cheapest = [
        number
        for number in np.argsort(bound, kind="stable")[:count].tolist()
        if bound[number] <= most
    ]
    return [candidate for number in cheapest for candidate in orders(classes[number], levels)]
