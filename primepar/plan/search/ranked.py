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

from collections.abc import Iterator
from collections.abc import Sequence as Several
from dataclasses import dataclass, replace
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


@dataclass(frozen=True)
class ComparedPlan:
    """A plan, with the name of a baseline, and whether its seconds are simulated."""

    name: str
    result: SearchResult
    simulated: bool = False

    @property
    def seconds(self) -> float:
        """Seconds of a step: simulated, or else the price."""
        return float(self.result.simulation.seconds) if self.simulated else self.result.seconds

    @property
    def fits(self) -> bool:
        """Whether a device has the memory, as the search adds it up, or as it is counted."""
        result = self.result
        memory = result.planner.training.cluster.memory
        return result.memory <= memory or (self.simulated and max(result.held) <= memory)


def ranked(planner: Planner, memory: float | None = None) -> list[ComparedPlan]:
    """Plans within `memory`, or that of a device, and Megatron's; the best first.

    Raises `PlanError` where no plan is within the bound.
    """
    shares = SHARES if planner.training.posted else (None,)
    planners = [Planner.like(planner, hidden=share) for share in shares]
    results = [best_within(one, memory) for one in planners]
    least = max(result.cost / (1 + (result.gap or 0.0)) for result in results)
    plans = {str(result.plan.sequences): ComparedPlan("", result) for result in results}
    return simulated([
        ComparedPlan(plan.name, replace(plan.result, gap=max(0.0, plan.result.seconds / least - 1)))
        for plan in (*plans.values(), *baselines(planners[0]))
    ], bound_of(planner, memory)[0])  # fmt: skip


def best_for(planner: Planner) -> list[ComparedPlan]:
    """As `ranked` for the memory of a device; by price where no plan fits it."""
    try:
        return ranked(planner)
    except PlanError:
        return [ComparedPlan("", search(planner))]


def baselines(planner: Planner) -> Iterator[ComparedPlan]:
    """Megatron's plans with every allowed degree, with and without sequence parallelism."""
    named: dict[str, SearchResult] = {}
    for preset in PRESETS if planner.part == "model" else ():
        for name, result in degrees(planner, preset):
            if name not in named and result.is_allowed:
                named[name] = _among_options(planner, result)
                yield ComparedPlan(name, named[name])


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
    return SearchResult(planner, planner.cost(choices), choices, given.gap)


def simulated(plans: Several[ComparedPlan], bound: float = inf) -> list[ComparedPlan]:
    """The plans in the order of their seconds, of which those that may be fastest are simulated.

    Those are left out that hold more than `bound` bytes of a device, as the search adds them up, or
    at once where they are simulated.
    """
    ordered = sorted(plans, key=lambda plan: plan.result.seconds)
    devices = ordered[0].result.planner.training.links.devices
    left, best, done = min(MOST_SIMULATED, SIMULATED_DEVICES // devices), inf, list[ComparedPlan]()
    ratio = inf  # the least of simulated seconds over the price
    for plan in ordered:
        result, share = plan.result, 1.0
        if plan.name:
            share = LEAST if ratio == inf else max(LEAST, SPREAD * ratio)
        if left > 0 and share * result.seconds <= best and result.can_be_simulated:
            result.planner.tick(f"simulation of {plan.name or 'a plan'}")
            if result.is_within(bound):
                plan = replace(plan, simulated=True)
                left, best = left - 1, min(best, plan.seconds)
                ratio = min(ratio, plan.seconds / result.seconds)
                done.append(plan)
        elif result.memory <= bound:
            done.append(plan)
    return sorted(done, key=lambda plan: (not plan.simulated, plan.seconds))
