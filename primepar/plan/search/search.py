"""The search for the plan of least cost: exact on few devices, within a certified gap on many."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

from primepar.plan.search.exact_search import Exact
from primepar.plan.search.planner import Planner
from primepar.plan.search.result import SearchResult
from primepar.plan.search.sequence_classes import near_best

EXACT = 32
"""Most devices for which all sequences are compared one by one."""


@contextmanager
def without_cycles() -> Iterator[None]:
    """No search for cycles of objects: sequences are many, and all are in use until the end."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def search(planner: Planner) -> SearchResult:
    """The plan of least cost; on more than `EXACT` devices one with a certified gap."""
    if planner.candidates is None and planner.training.links.devices > EXACT:
        with without_cycles():
            return near_best(planner)
    return SearchResult.of(planner, *Exact.of(planner).search())
