"""Searches of `python -m benchmarks plan`: a block of the paper's models, in one process.

The paper times its search for OPT, Llama 2 and BLOOM, without their sizes. These are the larger
ones of its evaluation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace as resized
from statistics import median
from time import perf_counter
from types import MappingProxyType
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from benchmarks.proofs import CHEAP, REPEATS
from primepar.commands.progress import Tick
from primepar.models.sizes import MODELS
from primepar.plan.cluster import Cluster, load_cluster

Row = TypeVar("Row")
CLUSTER = "v100-8x4"
BATCH = 8
PAPER = MappingProxyType(
    {
        "opt-175b": {4: 0.0853, 8: 0.0865, 16: 0.1709, 32: 5.3573},
        "llama-2-70b": {4: 0.0865, 8: 0.0888, 16: 0.1859, 32: 6.0703},
        "bloom-176b": {4: 0.0854, 8: 0.0802, 16: 0.1658, 32: 4.1530},
    }
)
"""Model -> devices -> seconds of table 2, by one thread of a Xeon Gold 5218 at 2.3 GHz."""


class PlanRow(Struct, frozen=True):
    """One search over the paper's space, for the time of one block's training step."""

    model: str
    devices: int
    seconds: float
    """Median, of the search."""
    paper_seconds: float | None
    """None where the paper has none."""
    step: float
    """Seconds of a training step under the plan."""
    bound: float
    """Lower bound of the seconds of a step under any plan."""
    gap: float
    """Upper bound of the distance from the optimum, as a share of it."""


def measure_plans(devices: list[int], tick: Tick) -> list[PlanRow]:
    """Seconds to find the plan of a block of each model, by number of devices, in rounds.

    Every search starts with a new planner. Long searches are measured only once.
    """
    cases = [(model, count) for count in devices for model in PAPER]
    taken = in_rounds(cases, _search, tick)
    return [replace(row, seconds=seconds) for row, seconds in taken.values()]


def in_rounds(
    cases: list[tuple[str, int]],
    measure: Callable[[str, int], tuple[Row, float]],
    tick: Tick,
) -> dict[tuple[str, int], tuple[Row, float]]:
    """The result of every case, with the median of its seconds."""
    seconds: dict[tuple[str, int], list[float]] = {}
    rows: dict[tuple[str, int], Row] = {}
    for round_number in range(REPEATS):
        for case in cases:
            tick("{}, {} devices".format(*case))
            taken = seconds.setdefault(case, [])
            if round_number == 0 or taken[0] < CHEAP:
                rows[case], elapsed = measure(*case)
                taken.append(elapsed)
    return {case: (rows[case], median(seconds[case])) for case in cases}


def plan_measurements(devices: list[int]) -> int:
    """How often `measure_plans` ticks."""
    return REPEATS * len(PAPER) * len(devices)


def _search(name: str, devices: int) -> tuple[PlanRow, float]:
    from primepar.plan.search.planner import Planner
    from primepar.plan.search.search import search

    start = perf_counter()
    block = resized(MODELS[name], layers=1)
    planner = Planner.of(block, cluster_of(devices), devices, BATCH, None, "paper", part="blocks")
    result = search(planner)
    taken = perf_counter() - start
    paper = PAPER[name].get(devices)
    bound = result.cost / (1 + result.gap)
    return PlanRow(name, devices, taken, paper, result.cost, bound, result.gap), taken


def cluster_of(devices: int) -> Cluster:
    """The paper's cluster, with more nodes where it has too few devices."""
    cluster = load_cluster(CLUSTER)
    if devices <= cluster.devices:
        return cluster
    *inner, last = cluster.links
    links = (*inner, replace(last, joins=devices))
    return replace(cluster, nodes=devices // cluster.devices_per_node, links=links)


def plan_lines(rows: list[PlanRow]) -> Iterator[str]:
    """The table."""
    yield "block        devices  seconds  the paper's  step, ms  at least, ms    gap"
    for row in rows:
        paper = f"{'':11}" if row.paper_seconds is None else f"{row.paper_seconds:11.4f}"
        yield (
            f"{row.model:11}  {row.devices:7,}  {row.seconds:7.3f}  {paper}"
            f"  {1e3 * row.step:8,.1f}  {1e3 * row.bound:12,.1f}  {row.gap:5.2%}"
        )
