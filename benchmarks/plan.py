"""How long does the planner search for a block of each model of PrimePar's paper, and how well?

The paper times its search for OPT, Llama 2 and BLOOM, without their sizes. These are the larger
ones of its evaluation. All is measured in one process; each search starts with a new planner.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace as resized
from functools import partial
from time import perf_counter
from types import MappingProxyType
from typing import Annotated

from msgspec.structs import replace

from benchmarks.bench import BenchRow, Case, Column, bench
from primepar.models.sizes import MODELS
from primepar.plan.cluster import Cluster, load_cluster

CLUSTER = "v100-8x4"
BATCH, MOST_DEVICES = 8, 1024
PAPER = MappingProxyType(
    {
        "opt-175b": {4: 0.0853, 8: 0.0865, 16: 0.1709, 32: 5.3573},
        "llama-2-70b": {4: 0.0865, 8: 0.0888, 16: 0.1859, 32: 6.0703},
        "bloom-176b": {4: 0.0854, 8: 0.0802, 16: 0.1658, 32: 4.1530},
    }
)
"""Model -> devices -> seconds of table 2, by one thread of a Xeon Gold 5218 at 2.3 GHz."""


class SearchRow(BenchRow, frozen=True):
    """One search over the paper's space, for the time of one block's training step."""

    timed = ("seconds",)
    model: Annotated[str, Column("block")]
    devices: Annotated[int, Column("devices", ",")]
    seconds: Annotated[float, Column("seconds", ".3f")]
    """Of the search."""
    paper_seconds: Annotated[float | None, Column("the paper's", ".4f")]
    """None where the paper has none."""
    step: Annotated[float, Column("step, ms", ",.1f", 1e3)]
    """Seconds of a training step under the plan."""
    bound: Annotated[float, Column("at least, ms", ",.1f", 1e3)]
    """Lower bound of the seconds of a step under any plan."""
    gap: Annotated[float, Column("gap", ".2%")]
    """Upper bound of the distance from the optimum, as a share of it."""


def measure(name: str, devices: int) -> SearchRow:
    """Search once, with a planner of its own."""
    from primepar.plan.search.planner import Planner
    from primepar.plan.search.search import search

    start = perf_counter()
    block = resized(MODELS[name], layers=1)
    planner = Planner.of(block, cluster_of(devices), devices, BATCH, None, "paper", part="blocks")
    result = search(planner)
    taken = perf_counter() - start
    bound = result.cost / (1 + result.gap)
    paper = PAPER[name].get(devices)
    return SearchRow(name, devices, taken, paper, result.cost, bound, result.gap)


def cluster_of(devices: int) -> Cluster:
    """The paper's cluster, with more nodes where it has too few devices."""
    cluster = load_cluster(CLUSTER)
    if devices <= cluster.devices:
        return cluster
    *inner, last = cluster.links
    links = (*inner, replace(last, joins=devices))
    return replace(cluster, nodes=devices // cluster.devices_per_node, links=links)


def plan(devices: tuple[int, ...] = (4, 8, 16, 32, 64, 256, 1024)) -> Iterator[Case]:
    for count in devices:
        if not 4 <= count <= MOST_DEVICES or count & (count - 1):
            raise ValueError(
                f"--devices: expected powers of two from 4 to {MOST_DEVICES}, got {count}: "
                "write --devices 4,8,16"
            )
        for model in PAPER:
            yield f"{model}, {count} devices", partial(measure, model, count)


if __name__ == "__main__":
    bench(plan, rounds=3)
