"""The planner's prediction of a published run, on one description of the cluster.

The cluster is the shipped `a100-8x8` with more nodes of the same kind. Two things of the software
of that time are added, from the cluster's own numbers:

- Attention writes its scores to memory; FlashAttention came later. With head dim D, forward and
  backward, with the scores again, have 14 D operations for each score and pass 43 bytes: scores,
  softmax, dropout, and their gradients in 2 bytes, masks in 1. The rate of attention is 14 D over
  the seconds of both.
- AdamW passes 34 bytes for each parameter: its moments and float32 copy, read and written, the
  float32 gradient read twice, the float16 parameter written.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from msgspec.structs import replace

from benchmarks.external.published import TOKENS, VOCABULARY, TrainingRun
from primepar.models.config import ModelConfig
from primepar.plan.cluster import Cluster, Passing, load_cluster
from primepar.plan.presets import preset_plan
from primepar.plan.search.planner import Planner
from primepar.plan.search.splits import Pipeline, Split, Splits
from primepar.plan.search.stage_cost import TrainingOptions

DTYPE = "float16"
NODES = 384
"""Of 8 devices: those of the largest run."""
SCORE_BYTES = 43
"""Forward: 2 written, softmax 2 + 2, dropout 2 + 2 + 1, 2 read: 13. Again, without the last: 11.
Backward: 2 written, 2 read, dropout 2 + 1 + 2, softmax 2 + 2 + 2, 2 + 2 read: 19."""
SCORE_OPERATIONS = 14
"""For each head dim: 4 forward, 2 again, 8 backward."""
UPDATE_BYTES = 34
"""Moments 8 + 8, float32 copy 4 + 4, gradient 4 + 4, parameter 2."""
MICRO_BATCHES = (1, 2, 4, 8)
"""Sizes that are tried where the paper gives none."""


@cache
def cluster(head_dim: int) -> Cluster:
    """The cluster of both papers, for models with heads of `head_dim`."""
    described = load_cluster("a100-8x8")
    inner, outer = described.links
    rate = described.rate(DTYPE)
    operations = SCORE_OPERATIONS * head_dim
    seconds = SCORE_BYTES / described.memory_bandwidth + operations / rate.achieved
    # Such a kernel computes what the causal mask hides, too, which a rate of attention leaves out.
    attention = operations / seconds * (TOKENS + 1) / (2 * TOKENS)
    bandwidth = described.memory_bandwidth * 2 / UPDATE_BYTES
    return replace(
        described,
        nodes=NODES,
        links=(inner, replace(outer, joins=8 * NODES)),
        rates={DTYPE: replace(rate, attention=((1.0, attention), (2.0 * TOKENS, attention)))},
        operators={"update": Passing(described.launch, bandwidth)},
    )


def model(run: TrainingRun, layers: int | None = None) -> ModelConfig:
    """The GPT model of a run, or one with other `layers`."""
    return ModelConfig.of("gpt2", layers=layers or run.layers, hidden=run.hidden, heads=run.heads,
                          context=TOKENS, vocabulary=VOCABULARY)  # fmt: skip


def predicted(run: TrainingRun) -> Pipeline:
    """The fastest predicted pipeline with what the paper gives, of those that fit the memory.

    The plan is Megatron's: with sequence parallelism where only attention is computed again, which
    is part of the times of attention.
    """
    replicas = run.devices // (run.stages * run.tensor)
    split = Split(run.stages, replicas, run.tensor)
    described = model(run)
    splits = Splits(described, cluster(run.hidden // run.heads), run.devices, run.batch, DTYPE)
    priced = [
        priced_by(splits, split, size, method_of(run), options)
        for size in _sizes(run, run.batch // replicas)
        for options in _options(run, run.batch // replicas // size)
    ]
    fitting = [known for known in priced if known.memory <= splits.cluster.memory]
    return min(fitting or priced, key=lambda known: known.seconds)


def method_of(run: TrainingRun) -> str:
    """The preset of a run."""
    return "megatron" if run.recomputed == "all" else "megatron-sp"


def priced_by(
    splits: Splits, split: Split, size: int, method: str, options: TrainingOptions
) -> Pipeline:
    """A split with the sequences of a preset on every stage."""
    given = preset_plan(method, splits.model, split.parts).sequences
    return splits.pipeline(split, size, lambda planner: _on_stage(planner, given), options)


def _on_stage(planner: Planner, given: Mapping[str, str]) -> dict[str, str]:
    """The sequences of a stage; the addition that its input comes from is like a norm."""
    stream = given["blocks.0.norm1"]
    return {operator.name: given.get(operator.name, stream) for operator in planner.operators}


def _sizes(run: TrainingRun, share: int) -> list[int]:
    if run.micro_batch is not None:
        return [run.micro_batch]
    return [size for size in MICRO_BATCHES if not share % size]


def _options(run: TrainingRun, batches: int) -> list[TrainingOptions]:
    """Interleaved as in the paper; else as many chunks as are fastest."""
    most, is_even = run.layers // run.stages, not run.layers % run.stages
    counts = [run.chunks] if run.chunks else [1]
    if run.chunks is None and is_even and not batches % run.stages:
        counts = [count for count in range(1, most + 1) if not most % count]
    return [
        TrainingOptions(
            recompute="full" if run.recomputed == "all" else "none",
            chunks=count,
            schedule="1f1b" if count == 1 else "interleaved-1f1b",
        )
        for count in counts
    ]
