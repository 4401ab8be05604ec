"""Does the planner predict the steps that others have published?

`published.toml` has the runs, each with its source. A run is priced as it was trained: with its
layout, its recomputation, its data type, by the plan of Megatron, of data parallelism, or of either
with keys and values gathered along a sequence, on a shipped cluster. Nothing is fitted to a row.
Micro-batches and chunks that a source does not have are the fastest predicted ones that fit the
memory; where none fits, the smallest micro-batches are taken.

Where attention is not fused, its scores go through memory. With head dim D, forward and backward,
with the scores again, have 14 D operations for each score and pass 43 bytes: scores, softmax,
dropout, and their gradients in 2 bytes, masks in 1. Its rate is 14 D over the seconds of both.

A constant utilization is what one needs no planner for. Its two constants are the best ones for the
runs of even number, and it is scored on the others, as the planner is.

Table 2 of Korthikanti et al. has bytes of a layer's activations over s b h, for t devices, where
attention keeps no scores: they are computed again. It includes masks of dropout, which the models
here do not have. It keeps the inputs of both norms in 2 bytes; here those are kept in float32, so
4 s b h more.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace as with_fields
from functools import cache, partial
from math import inf
from pathlib import Path
from statistics import median
from typing import Annotated

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from benchmarks.bench import BenchRow, Case, Cells, Column, bench
from primepar.models.config import ModelConfig, flops_per_token
from primepar.models.graph import Operator, operators
from primepar.models.sizes import MODELS
from primepar.partition.pipeline.actions import ScheduleName
from primepar.plan.cluster import Cluster, load_cluster
from primepar.plan.cost.candidate import Candidate, candidate_of
from primepar.plan.operator_layouts import sequence_of
from primepar.plan.presets import preset_plan
from primepar.plan.search.planner import Planner
from primepar.plan.search.row import PlanRow, Split
from primepar.plan.search.splits import Splits
from primepar.plan.search.stage_cost import (
    OptionChoices,
    Recompute,
    Shard,
    TrainingOptions,
)

SCORE_BYTES = 43
"""Forward: 2 written, softmax 2 + 2, dropout 2 + 2 + 1, 2 read: 13. Again, without the last: 11.
Backward: 2 written, 2 read, dropout 2 + 1 + 2, softmax 2 + 2 + 2, 2 + 2 read: 19."""
SCORE_OPERATIONS = 14
"""For each head dim: 4 forward, 2 again, 8 backward."""
MICRO_BATCHES = (1, 2, 4, 8)
"""Sequences of a device that are tried where a source has none."""


class PublishedRun(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A run of `published.toml`, which states what its fields mean."""

    paper: str
    source: str
    run: str
    cluster: str
    devices: int
    batch: int
    positions: int
    dtype: str = "bfloat16"
    model: str | None = None
    heads: int = 0
    hidden: int = 0
    layers: int = 0
    vocabulary: int = 0
    tensor: int = 1
    context: int = 1
    experts: int = 1
    stages: int = 1
    chunks: int | None = None
    micro_batch: int | None = None
    schedule: ScheduleName | None = None
    shard: Shard = "none"
    recompute: Recompute = "none"
    sequence: bool = False
    fused: bool = True
    overlap: bool = True
    inside: float | None = None
    outside: float | None = None
    memory_bandwidth: float | None = None
    seconds: float | None = None
    tokens: float | None = None
    teraflops: float | None = None
    recomputed: bool = False

    @property
    def config(self) -> ModelConfig:
        """The sizes of its model."""
        if self.model is None:
            return ModelConfig.of("gpt2", layers=self.layers, hidden=self.hidden, heads=self.heads,
                                  context=self.positions, vocabulary=self.vocabulary)  # fmt: skip
        known = with_fields(MODELS[self.model], context=self.positions)
        if known.priced is None or known.experts is None:
            return known
        experts = replace(known.experts, spread=self.experts)
        return with_fields(known, priced=replace(known.priced, experts=experts))

    @property
    def on(self) -> Cluster:
        """Its cluster: nodes of 8 devices, with the links and the memory that the source has."""
        known = load_cluster(self.cluster, self.devices // 8)
        rate = known.rate(self.dtype)
        if not self.fused:
            operations = SCORE_OPERATIONS * self.config.head_dim
            seconds = SCORE_BYTES / known.memory_bandwidth + operations / rate.achieved
            # Such a kernel computes what the mask hides, too, which a rate leaves out.
            reached = operations / seconds * (self.positions + 1) / (2 * self.positions)
            rate = replace(rate, attention=((1.0, reached), (2.0 * self.positions, reached)))
        links = [
            link if bandwidth is None
            else replace(link, bandwidth=bandwidth, stream=None, curves={}, all_reduce=None,
                         all_gather=None)
            for link, bandwidth in zip(known.links, (self.inside, self.outside), strict=False)
        ]  # fmt: skip
        return replace(
            known, rates={**known.rates, self.dtype: rate}, links=tuple(links),
            overlap=self.overlap, memory_bandwidth=self.memory_bandwidth or known.memory_bandwidth,
        )  # fmt: skip

    @property
    def split(self) -> Split:
        """Stages, replicas, and the devices of a replica of a stage."""
        parts = self.tensor * self.context * self.experts
        return Split(self.stages, self.devices // (self.stages * parts), parts)

    @property
    def method(self) -> str:
        """Its preset."""
        megatron = "megatron-sp" if self.sequence else "megatron"
        inner = "data" if self.tensor == 1 else megatron
        return f"M{self.context},{inner}" if self.context > 1 else inner

    @property
    def operations(self) -> float:
        """Operations of a step, without what is computed again."""
        return float(self.batch * self.positions * flops_per_token(self.config))

    @property
    def executed(self) -> float:
        """Operations with a second forward where all is computed again."""
        return self.operations * (4 / 3 if self.recompute == "full" else 1)

    @property
    def peak(self) -> float:
        """Operations per second of all devices by the data sheet, in 16 bits."""
        return self.devices * load_cluster(self.cluster).rate("bfloat16").peak

    @property
    def published(self) -> float:
        """Seconds of a step, as published."""
        if self.seconds is not None:
            return self.seconds
        if self.tokens is not None:
            return self.batch * self.positions / self.tokens / self.devices
        assert self.teraflops is not None, "a run has one of the three"
        counted, model, s = self.operations, self.config, self.positions
        if self.recomputed:
            counted = 96.0 * self.batch * s * model.layers * model.hidden**2
            counted *= (1 + s / (6 * model.hidden)
                        + model.vocabulary / (16 * model.layers * model.hidden))  # fmt: skip
        return counted / (self.teraflops * 1e12 * self.devices)

    @property
    def options(self) -> Iterator[tuple[int, TrainingOptions]]:
        """Sequences of a micro-batch of a replica, and options, that are tried."""
        share, (stages, replicas, _) = self.batch // self.split.replicas, self.split
        sizes = MICRO_BATCHES if self.stages > 1 or self.tensor > 1 else (share,)
        for size in (self.micro_batch,) if self.micro_batch else sizes:
            size *= self.experts
            batches = self.batch // replicas // size
            if share % size:
                continue
            most = OptionChoices(interleaves=True).most_chunks(self.config.layers, stages, batches)
            for chunks in (self.chunks,) if self.chunks else range(1, most + 1):
                if self.schedule is None:
                    schedule: ScheduleName = "1f1b" if chunks == 1 else "interleaved-1f1b"
                else:
                    schedule = self.schedule
                yield size, TrainingOptions(shard=self.shard, recompute=self.recompute,
                                            schedule=schedule, chunks=chunks)  # fmt: skip


@cache
def runs() -> tuple[PublishedRun, ...]:
    """All runs of the file."""
    papers = tomllib.loads((Path(__file__).parent / "published.toml").read_text("utf-8"))["papers"]
    return tuple(
        msgspec.convert(shared | dict(zip(columns, row, strict=True)), PublishedRun)
        for paper in papers
        for columns, rows, shared in [(paper.pop("columns"), paper.pop("runs"), paper)]
        for row in rows
    )


def priced(run: PublishedRun) -> PlanRow:
    """The fastest predicted plan with what the source has, of those that fit the memory."""
    model, split, on = run.config, run.split, run.on
    given = preset_plan(run.method, model, split.parts).sequences
    splits = Splits(model, on, run.devices, run.batch, run.dtype, "paper", posted=True,
                    candidates=_only(model, given))  # fmt: skip
    tried = [splits.pipeline(split, size, partial(_on_stage, given), options)
             for size, options in run.options]  # fmt: skip
    fitting = [row for row in tried if row.memory <= on.memory]
    smallest = min(row.size for row in tried)
    return min(fitting or [row for row in tried if row.size == smallest],
               key=lambda row: row.seconds)  # fmt: skip


def _only(model: ModelConfig, given: Mapping[str, str]) -> Callable[[Operator], list[Candidate]]:
    """The sequences of a preset alone, by kind of operator."""
    texts: dict[str, dict[str, None]] = {}
    for operator in operators(model):
        texts.setdefault(operator.kind, {})[given[operator.name]] = None
    texts["add"] = {**texts["add"], given["blocks.0.norm1"]: None}
    return lambda operator: [
        candidate_of(sequence_of(operator, text), *(("O",) if operator.kind != "linear" else ()))
        for text in texts[operator.kind]
    ]


def _on_stage(given: Mapping[str, str], planner: Planner) -> dict[str, str]:
    """The sequences of a stage; the addition that its input comes from is like a norm."""
    stream = given["blocks.0.norm1"]
    return {operator.name: given.get(operator.name, stream) for operator in planner.operators}


class TimeRow(BenchRow, frozen=True):
    """A run, published and predicted."""

    run: PublishedRun
    row: PlanRow

    @property
    def seconds(self) -> float:
        """Predicted seconds of a step."""
        return self.row.seconds

    @property
    def error(self) -> float:
        """The prediction over what is published, less 1."""
        return self.seconds / self.run.published - 1

    @property
    def cells(self) -> Cells:
        run, row = self.run, self.row
        return {
            "paper": run.paper,
            "run": run.run,
            "devices": f"{run.devices:,}",
            "p x d x m": " x ".join(map(str, run.split)),
            "b": row.size,
            "v": row.options.chunks,
            "bubble": f"{row.bubble:.1%}",
            "GB": f"{row.memory / 1e9:.0f}",
            "published s": f"{run.published:.2f}",
            "of peak": f"{run.operations / run.published / run.peak:.1%}",
            "predicted s": f"{self.seconds:.2f}",
            "error": f"{self.error:+.1%}",
        }

    @classmethod
    def notes(cls, rows: Sequence[TimeRow]) -> Iterator[str]:
        """The errors by paper, of all, and of the runs on which constants are scored."""
        yield ""
        for paper in dict.fromkeys(row.run.paper for row in rows):
            yield _summary(f"  {paper}", [row.error for row in rows if row.run.paper == paper])
        yield _summary(f"all {len(rows)} runs", [row.error for row in rows])
        fitted, scored = rows[1::2], rows[::2]
        yield _summary(f"of odd number, {len(scored)}", [row.error for row in scored])
        for name, operations in CONSTANTS.items():
            part = best_part([row.run for row in fitted], operations)
            errors = [error_of(row.run, operations, part) for row in scored]
            yield _summary(f"  a constant {part:.1%} of the peak, {name}", errors)


CONSTANTS: dict[str, Callable[[PublishedRun], float]] = {
    "operations of the model": lambda run: run.operations,
    "operations executed": lambda run: run.executed,
}
"""What a constant predictor divides by a part of the peak."""


def error_of(run: PublishedRun, operations: Callable[[PublishedRun], float], part: float) -> float:
    """The error of a constant part of the peak."""
    return operations(run) / (part * run.peak) / run.published - 1


def best_part(known: Sequence[PublishedRun], operations: Callable[[PublishedRun], float]) -> float:
    """The part of the peak with the least median error over some runs, of those that they reach."""
    reached = [operations(run) / (run.published * run.peak) for run in known]
    return min(reached, key=lambda part: median(
        abs(error_of(run, operations, part)) for run in known), default=inf)  # fmt: skip


def _summary(name: str, errors: Sequence[float]) -> str:
    worst = max(errors, key=abs, default=0.0)
    return f"{name}: {median(map(abs, errors)):.1%} in the median, {worst:+.1%} at worst"


class LayerMemory(BenchRow, frozen=True):
    """One configuration of a model: bytes of a layer over s b h."""

    model: Annotated[str, Column("model")]
    configuration: Annotated[str, Column("configuration")]
    formula: Annotated[float, Column("formula", ".3f")]
    masks: Annotated[float, Column("masks", ".3f", -1)]
    """The part of the formula that is masks."""
    norms: Annotated[float, Column("norms", "+.3f")]
    """What the inputs of norms take here beyond the formula."""
    counted: Annotated[float, Column("planner", ".3f")]

    @property
    def error(self) -> Annotated[float, Column("error", "+.1%")]:
        """What is counted over the formula, less 1."""
        return self.counted / self.formula - 1

    @property
    def rest(self) -> Annotated[float, Column("rest", "+.2%")]:
        """The same without masks, and with norms as they are here."""
        return self.counted / (self.formula - self.masks + self.norms) - 1


def layer_memory(run: PublishedRun) -> list[LayerMemory]:
    """The configurations of a model of Korthikanti et al."""
    t, name = run.tensor, run.run.split()[0]
    return [
        LayerMemory(name, "tensor, selective", 10 + 24 / t, 2, 4, _counted(run, False, "none")),
        LayerMemory(name, "tensor, sequence, selective", 34 / t, 2 / t, 4 / t,
                    _counted(run, True, "none")),
        LayerMemory(name, "full recomputation", 2, 0, 0, _counted(run, False, "full")),
    ]  # fmt: skip


def _counted(run: PublishedRun, sequence: bool, recompute: Recompute) -> float:
    """What one more layer adds to the stash of a micro-batch on a device, over s b h."""
    size = run.micro_batch or 1
    alone = replace(run, sequence=sequence, recompute=recompute, stages=1, chunks=1,
                    devices=run.tensor, batch=size)  # fmt: skip
    two, three = (priced(replace(alone, layers=layers)).stage_bytes[0].stash for layers in (2, 3))
    return (three - two) / (run.positions * size * run.hidden)


def measure(run: PublishedRun) -> TimeRow:
    """Predict a run."""
    return TimeRow(run, priced(run))


def published_runs() -> Iterator[Case]:
    for run in runs():
        yield f"{run.paper} {run.run} on {run.devices}", partial(measure, run)
    for run in runs():
        if run.paper == "Korthikanti" and run.recompute == "full":
            yield f"memory of {run.run}", partial(layer_memory, run)


if __name__ == "__main__":
    bench(published_runs)
