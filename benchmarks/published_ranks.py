"""Which rank do published layouts have in our own search?

For every published run the splits of its devices into stages, replicas and tensor parallel devices
are listed as by `primepar plan --objective splits`, for the same model, cluster, batch, shards and
recomputation. The rank of its layout is the place of its split in that list. As published, with the
method and the micro-batches of the run, it has 1, and 1 more for every other split that fits and
has a faster plan. Where none fits, as of Llama 3 without recomputation, all count. Where that is
more than 5, the row has the term of time in which the first of all takes least against it.

Runs are those of `external` and `published_runs`, and these, of which the layout alone is taken:

- MegaScale: Jiang et al., arXiv 2402.15627: 175B on 12,288 A100, 6,144 sequences, 8 x 8.
- OPT: Zhang et al., arXiv 2205.01068: 175B on 992 A100, 2 million tokens, tensor parallelism of 8,
  parameters in shards.
- BLOOM: Le Scao et al., arXiv 2211.05100: 176B on 384 A100, 2,048 sequences, stages 12, replicas 8,
  tensor parallelism of 4, states in shards. Its nodes have half of the links of `a100`.

Not expressed: Llama 3 with contexts of 131,072 tokens, as 8 x 16 devices of tensor and context
parallelism are more than the 32 that a search has; DeepSeek-V3, whose experts are over 64.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from statistics import median
from typing import Annotated, NamedTuple

from benchmarks import external, published_runs
from benchmarks.bench import BenchRow, Case, Column, bench
from benchmarks.external import priced_by
from benchmarks.published_runs import PublishedRun
from primepar.models.config import ModelConfig
from primepar.models.sizes import MODELS
from primepar.plan.cluster import Cluster, load_cluster
from primepar.plan.search.row import PlanRow, Split
from primepar.plan.search.splits import Splits
from primepar.plan.search.stage_cost import OptionChoices, TrainingOptions

FIRST = 5
"""Ranks that need no reason."""
LAYOUTS = (
    PublishedRun("MegaScale", "gpt-3", "a100", 1536, 8, 8, 6, 6144, 1, "optimizer", "none", None),
    PublishedRun("OPT", "opt-175b", "a100", 124, 8, 1, 1, 992, 8, "parameters", "full", None),
    PublishedRun("BLOOM", "bloom-176b", "a100", 48, 4, 12, 1, 2048, 2, "optimizer", "full", None),
)
"""Runs of which the layout alone is taken; contexts of 2,048 tokens."""


class PublishedLayout(NamedTuple):
    """A published run as a question to the search, and the layout that was trained."""

    paper: str
    name: str
    model: ModelConfig
    cluster: Cluster
    devices: int
    batch: int
    dtype: str
    split: Split
    size: int
    """Sequences of a micro-batch."""
    method: str
    options: TrainingOptions

    @property
    def splits(self) -> Splits:
        """Splits with the shards and the recomputation of the run."""
        shard, recompute = self.options.shard, self.options.recompute
        assert not isinstance(recompute, tuple)
        choices = OptionChoices((shard,), (recompute,), interleaves=True)
        return Splits(self.model, self.cluster, self.devices, self.batch, self.dtype, "paper",
                      choices=choices, posted=True)  # fmt: skip


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


def measure(make: Callable[[], PublishedLayout]) -> RankRow:
    """Rank a published layout."""
    run = make()
    splits = run.splits
    trained = priced_by(splits, run.split, run.size, run.method, run.options)
    every = splits.ranked()
    listed = [row for row in every if row.memory <= run.cluster.memory] or every
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
        run.paper, run.name, run.devices, " x ".join(map(str, run.split)), trained.seconds,
        rank, published, len(listed), " x ".join(map(str, first.split)), first.seconds, reason,
    )  # fmt: skip


def of_megatron(run: external.TrainingRun) -> PublishedLayout:
    """A run of `external`, with the micro-batches and the chunks that are taken there."""
    known = external.predicted(run)
    on = external.cluster(run.hidden // run.heads)
    return PublishedLayout(
        run.paper, run.name, external.model(run), on, run.devices, run.batch, external.DTYPE,
        known.split, known.size, external.method_of(run), known.options,
    )  # fmt: skip


def of_model(run: PublishedRun, positions: int) -> PublishedLayout:
    """A run of a named model."""
    cluster = load_cluster(run.cluster, run.nodes)
    replicas = cluster.devices // (run.tensor * run.stages)
    return PublishedLayout(
        run.paper, run.model, replace(MODELS[run.model], context=positions), cluster,
        cluster.devices, run.batch, published_runs.DTYPE, Split(run.stages, replicas, run.tensor),
        run.micro_batch, published_runs.method_of(run), published_runs.options_of(run),
    )  # fmt: skip


def published_ranks() -> Iterator[Case]:
    for run in external.RUNS:
        yield f"{run.paper} {run.name}", partial(measure, partial(of_megatron, run))
    for positions, runs in ((published_runs.POSITIONS, published_runs.RUNS), (2048, LAYOUTS)):
        for named in runs:
            case = partial(measure, partial(of_model, named, positions))
            yield f"{named.model} on {named.nodes} nodes of {named.cluster}", case


if __name__ == "__main__":
    bench(published_ranks)
