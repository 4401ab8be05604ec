"""The search for the plan of least cost: exact on few devices, within a certified gap on many."""

from __future__ import annotations

from primepar.plan.search.exact_search import Exact
from primepar.plan.search.planner import Planner
from primepar.plan.search.result import SearchResult
from primepar.plan.search.sequence_classes import near_best
from primepar.without_cycles import without_cycles

EXACT = 32
"""Most devices for which all sequences are compared one by one."""


def search(planner: Planner) -> SearchResult:
    """The plan of least cost; on more than `EXACT` devices one with a certified gap."""
    if planner.candidates is None and planner.training.links.devices > EXACT:
        with without_cycles():
            return near_best(planner)
    return SearchResult.of(planner, *Exact.of(planner).best)
