"""The search for many devices: classes of sequences first, then some sequences of the best classes.

Sequences whose cuts take other device bits of the same levels of links are of one class: operators
cost the same under all of them. Each class stands for its sequences, and an edge between two costs
the least that it may between any of theirs. So no plan costs less than the cheapest choice of
classes; how far above that a plan is bounds how far it is from the best. This is ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Several

import numpy as np

from primepar.plan.cost.lower_bounds import LeastWays
from primepar.plan.search.exact_search import Exact, least_with
from primepar.plan.search.options import Candidates, kind_of
from primepar.plan.search.planner import Planner
from primepar.plan.search.result import SearchResult
from primepar.plan.search.segments import Vector
from primepar.plan.search.sequence_space import Candidate, SequenceSpace, orders

GOAL = 0.01
"""The share above the bound at which a plan will do."""
FEW = 16
"""Classes of an operator whose sequences are looked at first; twice as many if that won't do."""


class Classes(Planner):
    """Plans of classes: each costs no more than any plan of sequences of these classes."""

    def ways(self, sources: list[int], targets: list[int]) -> LeastWays:
        """The least that moves between two sequences of each pair of classes."""
        return LeastWays.of(self.catalogue.layouts, sources, targets)


def near_best(planner: Planner) -> SearchResult:
    """A plan that costs at most a certified share more than the best."""
    space = SequenceSpace(planner.space, planner.training.wires.levels)
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
            best = SearchResult(fine, cost, choices, max(0.0, cost / least - 1))
        count *= 2
    return best


def _choice(chosen: Mapping[object, Several[Candidate]]) -> Candidates:
    return lambda operator: chosen[kind_of(operator)]


def _sequences(
    classes: Several[Candidate], bound: Vector, most: float, count: int, levels: Several[int]
) -> list[Candidate]:
    """Sequences of the first classes, at most so many, by what a plan with each costs at least."""
    first = [at for at in np.argsort(bound, kind="stable")[:count].tolist() if bound[at] <= most]
    return [each for at in first for each in orders(classes[at], levels)]
