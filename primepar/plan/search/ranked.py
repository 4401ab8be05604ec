"""One table of all plans of a question, in the order of their simulated seconds.

In it are the plans that the exact search finds without stages, micro-batches and options, for every
share `h` of `cost.step_seconds`; Megatron's of every degree; and all splits that were tried, with
micro-batches, shards and recomputation. The search minimises a price, a relaxation of what the
simulator shows. So the plans of the lowest prices are simulated, one after another, as long as one
may be the fastest: if `LEAST` of its price is at most the fastest simulated step so far. Example:
of prices 100, 118 and 122 ms the first is simulated with 107 ms. The second may take 0.9 x 118 =
106 ms and is simulated, the third no less than 110 ms and is not. Megatron's cheapest always is.
Errors of one split are alike, so the cheapest of every split comes before any second one; where
memory as it is added up does not fit, what a device holds at once may, so these have their turn
next to those that fit.

The gap is that of prices: the largest bound of all shares is a lower bound of every plan's without
stages, micro-batches and options.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from collections.abc import Sequence as Several
from dataclasses import replace
from itertools import zip_longest
from math import inf

from primepar.plan.cost.step_seconds import SHARES
from primepar.plan.search.planner import Planner
from primepar.plan.search.result import SearchResult, degrees
from primepar.plan.search.row import PlanRow, Split
from primepar.plan.search.search import EXACT, search
from primepar.plan.search.splits import Splits
from primepar.plan.search.within import WithinLimits, least_at_once

LEAST = 0.9
"""Simulated seconds over the price that are likely at least; the law of prices has a test."""
MOST_SIMULATED = 20
"""Plans that are simulated at most."""
MOST_PASSES = 256
"""Layers that all simulated plans lower at most, over devices: one takes about 0.01 seconds."""
PRESETS = ("megatron", "megatron-sp")


def ranked(splits: Splits) -> list[PlanRow]:
    """The fastest plan of every split, of those that run and of those that are only priced.

    And Megatron's of every degree; the best is first. Those that fit a device are before the
    others. Ctrl-C ends the search or the simulations, and the first is that of the best so far.
    Raises `PlanError` where no split has a plan.
    """
    exact = without_options(splits)
    known = [*exact, *splits.tried(exact)]
    rows = simulated(known, splits.tick, splits.stopped)
    first: dict[object, PlanRow] = {}
    for row in rows:
        first.setdefault((row.split, row.name, row.only_priced), row)
    best, *others = first.values()
    stopped = splits.stopped or any(row.stopped for row in rows)
    return [replace(best, stopped=stopped), *others]


def without_options(splits: Splits) -> list[PlanRow]:
    """Plans without stages, micro-batches and options, and Megatron's, with their gaps.

    They are those of least cost for every share, and of these within the memory as it is added up.
    None on many devices, or where none fits.
    """
    devices, memory, axes = splits.devices, splits.cluster.memory, splits.axes
    if devices > EXACT or devices & (devices - 1) or not splits.choices.has_none:
        return []
    if axes.pp not in (None, 1) or axes.slices(devices, splits.batch) == frozenset():
        return []
    planner = Planner.of(
        splits.model, splits.cluster, devices, splits.batch, splits.dtype, splits.space,
        tick=splits.tick, posted=splits.posted, axes=axes,
    )  # fmt: skip
    if least_at_once(planner) > memory:
        return []
    planners = [Planner.like(planner, hidden=share) for share in SHARES]
    every = [search(one) for one in planners]
    named = [*baselines(planner)]
    if all(plan.memory <= memory for plan in every):
        return _certified([*every, *named], every)
    limits = [WithinLimits(one) for one in planners]
    within = [fits for one in limits if (fits := one.fastest(max(memory, one.least_memory)))]
    fitting = [plan for plan in named if plan.memory <= memory]
    beyond = [plan for plan in named if plan.memory > memory]
    return [*_certified([*within, *fitting], within), *_certified([*every, *beyond], every)]


def _certified(plans: Several[SearchResult], least: Several[SearchResult]) -> list[PlanRow]:
    """The plans with their distance from the largest bound that some searches have shown."""
    bound = max(result.cost / (1 + (result.gap or 0.0)) for result in least)
    return [replace(plan, gap=max(0.0, plan.price / bound - 1)) for plan in plans]


def baselines(planner: Planner) -> Iterator[SearchResult]:
    """Megatron's plans with every allowed degree, with and without sequence parallelism."""
    names = set[str]()
    for preset in PRESETS:
        for name, result in degrees(planner, preset):
            if name not in names and result.is_allowed:
                names.add(name)
                yield replace(result, name=name, planner=planner)


def simulated(
    rows: Iterable[PlanRow], tick: Callable[[str], object] = str, stopped: bool = False
) -> list[PlanRow]:
    """Rows in the order of their seconds, of which those that may be fastest are simulated.

    The price of another one counts as if its step took as long as `LEAST` allows. Those with
    options that are only priced are after all others, and those that do not fit a device last. Of
    several that are the same plan one is kept, and Megatron's. None is simulated if a search
    has been `stopped`; Ctrl-C ends the simulations, and marks a row.
    """
    alike: dict[tuple[Split, bool], list[PlanRow]] = {}
    for row in sorted(rows, key=lambda row: row.price):
        alike.setdefault((row.split, row.fits), []).append(row)
    ordered = [row for some in zip_longest(*alike.values()) for row in some if row is not None]
    counted = {id(row) for row in ordered if row.is_counted and row.may_fit}
    asked = next((row for row in ordered if row.name and id(row) in counted), None)
    count, passes, best = 0 if stopped else MOST_SIMULATED, MOST_PASSES, inf
    done, runs = list[PlanRow](), dict[object, PlanRow]()
    for row in ordered:
        saved = 0 if asked is None or asked is row else asked.passes
        is_near = row is asked or (id(row) in counted and LEAST * row.price <= best)
        if is_near and count and row.passes + saved <= passes:
            key = row.plan.pipeline, row.options, tuple(row.sequences.values())
            known = runs.get(key)
            if known is not None:
                if not row.name and (row.gap is None or known.gap is not None):
                    continue
                done = [one for one in done if one is not known or one.gap is not None]
                row = replace(row, run=known.run)
            else:
                try:
                    tick(f"simulation of {row.name or 'a plan'}")
                    row = row.simulated()
                    count, passes = count - 1, passes - row.passes
                except KeyboardInterrupt:
                    row, count = replace(row, stopped=True), 0
            runs[key] = row
        is_larger, is_only_priced, seconds = place_of(row)
        best = best if is_larger or is_only_priced else min(best, seconds)
        asked = None if asked is not None and row.name == asked.name else asked
        done.append(row)
    return sorted(done, key=place_of)


def place_of(row: PlanRow) -> tuple[bool, bool, float]:
    """Those that fit a device first, of these such that a training step runs, the fastest first."""
    seconds = row.price / LEAST if row.run is None else row.seconds
    return not row.fits, row.only_priced is not None, seconds
