"""The search for many devices: over classes of sequences first, then over sequences of the best.

Device bits of one level of links are alike, so that sequences whose cuts take other bits of the
same levels cost the same. Of such a class one is looked at, and the edge between two classes costs
the least that it may. No plan costs less than the cheapest choice of classes: that is the certified
bound. A plan is then searched among sequences of the classes near it. This is ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from primepar.models.graph import Operator
from primepar.plan.cost.least import LeastWays
from primepar.plan.search.exact import Exact, promising
from primepar.plan.search.options import Candidates, kind_of
from primepar.plan.search.planner import Found, Planner
from primepar.plan.search.space import Candidate, Space, orders

EXACT = 32
"""Most devices for which every sequence is looked at."""
NEAR = 1.01
"""Classes of which some plan may cost so much more than the bound are searched for a plan."""


class Classes(Planner):
    """Plans of classes, which cost at most what plans of any of their sequences cost."""

    @classmethod
    def of_all(cls, planner: Planner) -> Classes:
        """The classes of a planner's sequences."""
        wires = planner.training.wires
        space = Space(planner.space, wires.levels)
        return cls(planner.model, planner.training, planner.space, planner.alpha,
                   planner.tradeoffs, planner.part, space.of)  # fmt: skip

    def ways(self, sources: list[int], targets: list[int]) -> LeastWays:
        return LeastWays.of(self.catalogue.layouts, sources, targets)


def near_best(planner: Planner) -> Found:
    """A plan, with a bound on how far it is from the best."""
    import time
    t=time.perf_counter()
    classes = Classes.of_all(planner)
    least, _ = Exact.of(classes).search()
    print("least", least, time.perf_counter()-t, {k[-1]:len(o) for k,o in classes._options.items()})
    among = promising(classes, least * NEAR)
    print({k[-1]:len(o) for k,o in among.items()})
    levels = planner.training.wires.levels
    chosen = {key: [one for at in own.tolist() for one in orders(classes._options[key].candidates[at], levels)] for key, own in among.items()}
    print({k[-1]:len(o) for k,o in chosen.items()},time.perf_counter()-t)
    fine = Planner(planner.model, planner.training, planner.space, planner.alpha,
                   planner.tradeoffs, planner.part, lambda operator: chosen[kind_of(operator)])
    cost, choices = Exact.of(fine).search()
    print("cost", cost, cost/least-1, time.perf_counter()-t)
    return Found(fine, cost, choices, cost / least - 1)
