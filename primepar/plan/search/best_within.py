"""The plan of least time within the memory of a device."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil

from primepar.errors import PlanError
from primepar.plan.search.least_memory import LeastMemory, advice, refuse_what_cannot_fit
from primepar.plan.search.planner import Planner
from primepar.plan.search.result import SearchResult
from primepar.plan.search.search import search
from primepar.plan.search.tradeoff import Tradeoff

Planners = Callable[[bool], Planner]
"""Makes planners; one made with True keeps options that take more time and less memory."""


def best_within(planner: Planners, bound: float, whose: str) -> SearchResult:
    """The best plan that holds no more than `bound` bytes on a device, which are `whose`.

    Raises `PlanError` where there is none.
    """
    plain = planner(False)
    refuse_what_cannot_fit(plain, bound, whose)
    result = search(plain)
    if result.memory <= bound or max(result.held) <= bound:
        return result
    return fastest_within(planner(True), bound, whose, held=True)


def fastest_within(planner: Planner, bound: float, whose: str, held: bool = False) -> SearchResult:
    """The fastest plan within `bound` bytes, as the search adds them up.

    Where there is none, the smallest, if `held` is asked for and a device holds no more at
    once. Raises `PlanError`.
    """
    tradeoff = Tradeoff(planner)
    least = tradeoff.least_memory()
    result = tradeoff.fastest(max(bound, least))
    assert result is not None, "the smallest plan is within the bound"
    least_bytes = max(result.held) if held and least > bound else ceil(least)
    if least_bytes > bound:
        raise PlanError(
            f"expected a plan within the {bound:,.0f} bytes of {whose}, got none: the smallest "
            f"takes {least_bytes:,} bytes, {least_bytes - bound:,.0f} too many: "
            f"{advice(LeastMemory(planner), bound)}"
        )
    return result
