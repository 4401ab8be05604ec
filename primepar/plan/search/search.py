"""The search for the plan of least cost: exact on few devices, within a certified gap on many.

On many devices it is among classes of sequences first, then among sequences of the best classes.

Sequences that differ only in which device bits of the same levels of links their cuts take are one
class: operators cost the same under all of them. The edge between two classes costs the least of
any edge between their sequences. So the cheapest choice of classes is a lower bound of all plans.
The gap of a plan is its distance from that bound. This is ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Several
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from primepar.plan.cost.candidate import Candidate
from primepar.plan.cost.lower_bounds import Holdings, LeastWays
from primepar.plan.search.exact_search import Exact, least_with
from primepar.plan.search.options import Options, Vector, kind_of
from primepar.plan.search.planner import Planner
from primepar.plan.search.result import SearchResult
from primepar.plan.search.sequence_space import SequenceSpace, orders
from primepar.without_cycles import without_cycles

EXACT = 32
"""Most devices for which all sequences are compared one by one."""
GOAL = 0.005
"""The gap, as a share of the lower bound, at which the search ends."""
FEW = 8
"""Classes of an operator whose sequences are searched first; doubled until the goal is met."""
MOST = 64
"""Classes of an operator whose sequences are searched at most."""


@dataclass
class Classes(Planner):
    """Plans of classes: each costs no more than any plan of sequences in its classes.

    Of classes whose layouts are alike for all bounds, the cheapest stands for all.
    """

    @cached_property
    def holdings(self) -> Holdings:
        """What groups of devices hold in the layouts."""
        return Holdings(self.catalogue.layouts)

    def options(self, name: str) -> Options:
        """Classes of an operator; of those with layouts that are alike, the cheapest."""
        key = self.key(name)
        if key not in self.known:
            options = super().options(name)
            ends = (options.takes, options.leaves, options.leaves_gradient, options.weights)
            alike = (np.array(self.holdings.alike(numbers.tolist())) for numbers in ends)
            takes, leaves, gradient, weights = alike
            options = replace(options, takes=takes, leaves=leaves, leaves_gradient=gradient,
                              weights=weights)  # fmt: skip
            least = options.undominated if self.tradeoffs else options.cheapest
            self.known[key] = least(self.cost_of(name, options))
        return self.known[key]

    def ways(self, sources: list[int], targets: list[int]) -> LeastWays:
        """The least that moves between any sequences of two classes, for each pair of classes."""
        return LeastWays.between(self.holdings, sources, targets)

    @classmethod
    def of_planner(cls, planner: Planner) -> Classes:
        """The classes of all sequences that a planner chooses from."""
        space = SequenceSpace(planner.space, planner.training.links.levels)
        return cls.like(planner, candidates=space.of)

    def nearest(self, planner: Planner, bounds: Mapping[object, Vector], count: int) -> Planner:
        """A planner like `planner` with the sequences of the classes with the lowest bounds."""
        levels = planner.training.links.levels
        chosen = {kind: _sequences(self.known[kind].candidates, bound, count, levels)
                  for kind, bound in bounds.items()}  # fmt: skip
        return Planner.like(planner, candidates=lambda operator: chosen[kind_of(operator)])


def near_best(planner: Planner) -> SearchResult:
    """A plan with a certified gap: its cost is at most `1 + gap` times the least cost."""
    classes = Classes.of_planner(planner)
    bounds, count = least_with(classes), FEW
    least = max(float(bound.min()) for bound in bounds.values())
    best: SearchResult | None = None
    while best is None or (best.gap > GOAL and count <= MOST):
        fine = classes.nearest(planner, bounds, count)
        cost, choices = Exact.of(fine).best
        if best is None or cost < best.cost:
            best = SearchResult.of(fine, cost, choices, max(0.0, cost / least - 1))
        count *= 2
    return best


def _sequences(
    classes: Several[Candidate], bound: Vector, count: int, levels: Several[int]
) -> list[Candidate]:
    """Sequences of the `count` classes with the lowest bounds."""
    cheapest = np.argsort(bound, kind="stable")[:count].tolist()
    return [candidate for number in cheapest for candidate in orders(classes[number], levels)]


def search(planner: Planner) -> SearchResult:
    """The plan of least cost; on more than `EXACT` devices one with a certified gap."""
    if planner.candidates is None and planner.training.links.devices > EXACT:
        with without_cycles():
            return near_best(planner)
    return SearchResult.of(planner, *Exact.of(planner).best)
