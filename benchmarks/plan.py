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

from benchmarks.bench import BenchRow, Case, Column, bench
from primepar.models.sizes import MODELS
from primepar.plan.cluster import load_cluster

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
DEVICES = (4, 8, 16, 32)


class SearchRow(BenchRow, frozen=True):
    """One search over the paper's space, for the time of one block's training step."""

    timed = ("seconds",)
    model: Annotated[str, Column("block")]
    devices: Annotated[int, Column("devices", ",")]
    seconds: Annotated[float, Column("seconds", ".3f")]
    """Of the search."""
    paper_seconds: Annotated[float, Column("the paper's", ".4f")]
    step: Annotated[float, Column("step, ms", ",.1f", 1e3)]
    """Seconds of a training step under the plan, the least of all."""


def measure(name: str, devices: int) -> SearchRow:
    """Search once, with a planner of its own."""
    from primepar.plan.search.planner import Planner
    from primepar.plan.search.search import search

    start = perf_counter()
    block = resized(MODELS[name], layers=1)
    planner = Planner.of(block, load_cluster(CLUSTER), devices, BATCH, None, "paper", part="blocks")
    result = search(planner)
    taken = perf_counter() - start
    return SearchRow(name, devices, taken, PAPER[name][devices], result.cost)


def plan(devices: tuple[int, ...] = DEVICES) -> Iterator[Case]:
    for count in devices:
        if count not in DEVICES:
            raise ValueError(
                f"--devices: expected some of {', '.join(map(str, DEVICES))}, as in the paper, got "
                f"{count}: write --devices 4,8"
            )
        for model in PAPER:
            yield f"{model}, {count} devices", partial(measure, model, count)


if __name__ == "__main__":
    bench(plan, rounds=3)
