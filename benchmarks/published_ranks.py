"""Which rank do published layouts have in our own search?

For every run of `published.toml` the splits of its devices into stages, replicas and tensor
parallel devices are listed as by `primepar plan`, for the same model, cluster, batch, shards and
recomputation. The rank of its layout is the place of its split in that list. As published, with the
method and the micro-batches of the run, it has 1, and 1 more for every other split that fits and
has a faster plan. Where none fits, as of Llama 3 without recomputation, all count. Where that is
more than 5, the row has the term of time in which the first of all takes least against it.

Not expressed: Llama 3 with contexts of 131,072 tokens, as 8 x 16 devices of tensor and context
parallelism are more than the 32 that a search has; DeepSeek-V3, whose experts are over 64.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from statistics import median
from typing import Annotated, Final

from benchmarks.bench import BenchRow, Case, Column, bench
from benchmarks.published_runs import PublishedRun, priced, runs
from primepar.plan.search.row import PlanRow, Split
from primepar.plan.search.search import EXACT
from primepar.plan.search.splits import Splits
from primepar.plan.search.stage_cost import OptionChoices

FIRST: Final = 5
"""Ranks that need no reason."""


def splits_of(run: PublishedRun) -> Splits:
    """Splits of the devices of a run, with its shards and its recomputation."""
    recompute = "selective" if isinstance(run.recompute, tuple) else run.recompute
    choices = OptionChoices((run.shard,), (recompute,), interleaves=True)
    return Splits(run.config, run.on, run.devices, run.batch, run.dtype, "paper", choices=choices,
                  posted=True)  # fmt: skip


class RankRow(BenchRow, frozen=True):
    """The rank of a published layout, and the first of the search."""

    paper: Annotated[str, Column("paper")]
    name: Annotated[str, Column("run")]
    devices: Annotated[int, Column("devices", ",")]
    layout: Annotated[str, Column("p x d x m")]
    seconds: Annotated[float, Column("s", ".2f")]
    """Of the published layout, as priced."""
    rank: Annotated[int, Column("rank")]
    published: Annotated[int, Column("as published")]
    splits: Annotated[int, Column("of")]
    first: Annotated[str, Column("first")]
    fastest: Annotated[float, Column("its s", ".2f")]
    reason: Annotated[str, Column("which has less")]

    @classmethod
    def notes(cls, rows: Sequence[RankRow]) -> Iterator[str]:
        """How many are in the first five, and how much longer the published layouts take."""
        near = sum(row.rank <= FIRST for row in rows)
        same = sum(row.published <= FIRST for row in rows)
        longer = [row.seconds / row.fastest - 1 for row in rows]
        yield (
            f"of {len(rows)} published layouts {near} are in the first {FIRST}, {same} of them as "
            f"published, with {median(longer):.1%} more than the first in the median, "
            f"{max(longer):.1%} at most"
        )


def seconds_by_term(row: PlanRow) -> Mapping[str, float]:
    """Seconds of a step: what the slowest stage computes and sends, and what it waits."""
    slowest = max(row.stage_seconds, key=lambda stage: stage.compute + stage.communication)
    once = slowest.reduction + slowest.update
    often = {"computing": slowest.compute, "messages": slowest.communication}
    terms = {name: row.microbatches * seconds for name, seconds in often.items()}
    return terms | {"sums and updates": once, "waiting": row.seconds - sum(terms.values()) - once}


def worth(row: PlanRow) -> tuple[bool, float]:
    """Plans that fit the memory of a device first, of these the fastest, of others the smallest."""
    fits = row.memory <= row.cluster.memory
    return not fits, row.seconds if fits else row.memory


def measure(run: PublishedRun) -> RankRow:
    """Rank a published layout."""
    trained, best, memory = priced(run), dict[Split, PlanRow](), run.on.memory
    for row in sorted(splits_of(run).tried(), key=worth):
        best.setdefault(row.split, row)
    listed = [row for row in best.values() if row.memory <= memory] or [*best.values()]
    others = [row.seconds for row in listed if row.split != run.split]
    searched = min(row.seconds for row in (trained, *listed) if row.split == run.split)
    rank, published = (1 + sum(other < seconds for other in others)
                       for seconds in (searched, trained.seconds))  # fmt: skip
    first = min([trained, *listed], key=lambda row: row.seconds)
    before, after = seconds_by_term(trained), seconds_by_term(first)
    gains = {name: before[name] - after[name] for name in before}
    most = max(gains, key=lambda name: gains[name])
    reason = f"{most}, by {gains[most]:.2f} s" if published > FIRST else ""
    return RankRow(
        run.paper, run.run, run.devices, " x ".join(map(str, run.split)), trained.seconds,
        rank, published, len(listed), " x ".join(map(str, first.split)), first.seconds, reason,
    )  # fmt: skip


def published_ranks() -> Iterator[Case]:
    for run in runs():
        if run.split.parts <= EXACT:
            yield f"{run.paper} {run.run} on {run.devices}", partial(measure, run)


if __name__ == "__main__":
    bench(published_ranks)
