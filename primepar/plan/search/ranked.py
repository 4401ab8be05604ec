"""The fastest plan by simulation, of those that the search finds cheapest and of Megatron's.

The search minimises a price, a relaxation of what the simulator shows. So several plans are
searched, each with the least sum for one share `h` of `cost.step_seconds`, next to Megatron's plans
of every degree. They are simulated from the cheapest on. One that was searched is, if its price is
at most the fastest simulated step so far; one of Megatron's, if `LEAST` of its price is. Errors of
one question are alike: it takes at least `SPREAD` of the least ratio, of simulated seconds over the
price, of those that are simulated. Example: of Megatron's with prices 100, 108 and 112 ms the first
is simulated with 107 ms. The second may take 0.92 x 1.07 x 108 = 106 ms and is simulated, the third
no less than 110 ms and is not. So no degree of Megatron is faster than the first plan, up to the
largest number that is simulated.

The gap is that of prices: the largest bound of all shares is a lower bound of every plan's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from collections.abc import Sequence as Several
from dataclasses import replace
from math import inf

from primepar.errors import PlanError
from primepar.plan.cost.step_seconds import SHARES
from primepar.plan.search.planner import Planner
from primepar.plan.search.result import SearchResult, degrees
from primepar.plan.search.search import search
from primepar.plan.search.within import best_within, bound_of

LEAST = 0.9
"""Simulated seconds over the price that are likely at least; the law of prices has a test."""
SPREAD = 0.92
"""The same, over the least such ratio of the plans that are simulated for one question."""
MOST_SIMULATED = 8
"""Plans that are simulated at most."""
SIMULATED_DEVICES = 64
"""Devices of all simulated plans together at most: a device takes 0.1 to 0.4 seconds."""
PRESETS = ("megatron", "megatron-sp")


def ranked(planner: Planner, memory: float | None = None) -> list[SearchResult]:
    """Plans within `memory`, or that of a device, and Megatron's; the best first.

    Raises `PlanError` where no plan is within the bound.
    """
    plans = certified(planner, lambda one: best_within(one, memory), baselines)
    return simulated(plans, bound_of(planner, memory)[0])


def certified(
    planner: Planner,
    find: Callable[[Planner], SearchResult] = search,
    more: Callable[[Planner], Iterable[SearchResult]] = lambda _: (),
) -> list[SearchResult]:
    """The plans of least cost for every share, and `more`, with their distance from the bound."""
    shares = SHARES if planner.training.posted else (None,)
    results = [find(Planner.like(planner, hidden=share)) for share in shares]
    least = max(result.cost / (1 + (result.gap or 0.0)) for result in results)
    distinct = {str(result.sequences): result for result in results}
    return [replace(plan, gap=max(0.0, plan.price / least - 1))
            for plan in (*distinct.values(), *more(planner))]  # fmt: skip


def best_for(planner: Planner) -> list[SearchResult]:
    """As `ranked` for the memory of a device; by price where no plan fits it."""
    try:
        return ranked(planner)
    except PlanError:
        return [search(planner)]


def baselines(planner: Planner) -> Iterator[SearchResult]:
    """Megatron's plans with every allowed degree, with and without sequence parallelism."""
    names = set[str]()
    for preset in PRESETS if planner.part == "model" else ():
        for name, result in degrees(planner, preset):
            if name not in names and result.is_allowed:
                names.add(name)
                yield replace(_among_options(planner, result), name=name)


def _among_options(planner: Planner, given: SearchResult) -> SearchResult:
    """A given plan as a choice among all options, which are its neighbours; itself if it is none.

    An option that is left out costs no less than one with the same layouts.
    """
    choices = {}
    for name, text in given.sequences.items():
        texts = [candidate.text for candidate in planner.options(name).candidates]
        if text not in texts:
            return given
        choices[name] = texts.index(text)
    return SearchResult.of(planner, choices, planner.cost(choices))


def simulated(plans: Several[SearchResult], bound: float = inf) -> list[SearchResult]:
    """The plans in the order of their seconds, of which those that may be fastest are simulated.

    Those are left out that hold more than `bound` bytes of a device, as the search adds them up, or
    at once where they are simulated.
    """
    ordered = sorted(plans, key=lambda plan: plan.price)
    left, best = min(MOST_SIMULATED, SIMULATED_DEVICES // ordered[0].devices), inf
    ratio, done = inf, list[SearchResult]()  # the least of simulated seconds over the price
    for plan in ordered:
        share = 1.0
        if plan.name:
            share = LEAST if ratio == inf else max(LEAST, SPREAD * ratio)
        if left > 0 and share * plan.price <= best and plan.can_be_simulated:
            plan.planner.tick(f"simulation of {plan.name or 'a plan'}")
            if plan.is_within(bound):
                done.append(run := plan.simulated())
                left, best = left - 1, min(best, run.seconds)
                ratio = min(ratio, run.seconds / run.price)
        elif plan.memory <= bound:
            done.append(plan)
    return sorted(done, key=lambda plan: (plan.run is None, plan.seconds))
