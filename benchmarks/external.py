"""Does the planner predict iteration times and memory that others have published?

Training runs of GPT models on A100 80GB, 8 in a node, of two papers:

- Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models", arXiv
  2205.05198: configurations of Table 3, seconds of an iteration of Table 5. "full" recomputes all
  activations, without sequence parallelism. "present" has sequence parallelism, and recomputes the
  core of attention only. Its Table 2 has bytes of a layer's activations.
- Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using
  Megatron-LM", arXiv 2104.04473: Table 1, weak scaling. Its teraFLOP/s count full recomputation
  (equation 3).

The cluster is the shipped `a100-8x8` with more nodes of the same kind. Two things of the software
of that time are added, from the cluster's own numbers:

- Attention writes its scores to memory; FlashAttention came later. With head dim D, forward and
  backward, with the scores again, have 14 D operations for each score and pass 43 bytes: scores,
  softmax, dropout, and their gradients in 2 bytes, masks in 1. The rate of attention is 14 D over
  the seconds of both.
- AdamW passes 34 bytes for each parameter: its moments and float32 copy, read and written, the
  float32 gradient read twice, the float16 parameter written.

The formulas of memory are in bytes over s b h, for t devices, where attention keeps no scores: they
are computed again. They include masks of dropout, which the planner's models here do not have. They
keep the inputs of both norms in 2 bytes; here those are kept in float32, so 4 s b h more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from statistics import mean
from typing import Annotated, Literal, NamedTuple

from msgspec.structs import replace

from benchmarks.bench import BenchRow, Case, Cells, Column, bench
from primepar.models.config import ModelConfig
from primepar.plan.cluster import Cluster, Passing, load_cluster
from primepar.plan.presets import preset_plan
from primepar.plan.search.planner import Planner
from primepar.plan.search.row import PlanRow, Split
from primepar.plan.search.splits import Splits
from primepar.plan.search.stage_cost import Recompute, TrainingOptions

TOKENS = 2048
"""Of a sequence, in both papers."""
VOCABULARY = 51200
PEAK = 3.12e14
"""Operations per second of an A100 in float16, by its data sheet."""

Recomputed = Literal["all", "attention"]


class TrainingRun(NamedTuple):
    """One row: a model of `layers`, on stages of replicas of `tensor` devices, and its seconds.

    `micro_batch` and `chunks`, of each stage, are None where the paper does not give them.
    """

    paper: str
    name: str
    heads: int
    hidden: int
    layers: int
    tensor: int
    stages: int
    devices: int
    batch: int
    micro_batch: int | None
    chunks: int | None
    recomputed: Recomputed
    seconds: float

    @property
    def operations(self) -> float:
        """Operations of an iteration, without what is computed again (2205.05198, equation 7)."""
        return self._forward * 3 + self._head

    @property
    def executed(self) -> float:
        """Operations with what is computed again: whole layers, or the scores of attention."""
        again = self._forward if self.recomputed == "all" else self._forward - self._linear
        return self.operations + again

    @property
    def _linear(self) -> float:
        return 24.0 * self.batch * TOKENS * self.layers * self.hidden**2

    @property
    def _forward(self) -> float:
        return self._linear * (1 + TOKENS / (6 * self.hidden))

    @property
    def _head(self) -> float:
        return 6.0 * self.batch * TOKENS * self.hidden * VOCABULARY

    def seconds_at(self, operations: float, part: float) -> float:
        """Seconds of operations at a part of the peak of all devices."""
        return operations / (part * PEAK * self.devices)


def weak_scaling(billions: float, heads: int, hidden: int, layers: int, tensor: int, stages: int,
                 devices: int, batch: int, teraflops: float) -> TrainingRun:  # fmt: skip
    """A row of Table 1 of 2104.04473; its rate counts the operations of equation 3."""
    counted = 96.0 * batch * TOKENS * layers * hidden**2
    counted *= 1 + TOKENS / (6 * hidden) + VOCABULARY / (16 * layers * hidden)
    seconds = counted / (teraflops * 1e12 * devices)
    return TrainingRun(
        "Narayanan", f"{billions:g}B", heads, hidden, layers, tensor, stages, devices, batch,
        None, None if stages > 1 else 1, "all", seconds,
    )  # fmt: skip


def both(
    name: str, heads: int, hidden: int, layers: int, stages: int, batch: int,
    micro_batch: int, chunks: int, full: float, present: float,
) -> tuple[TrainingRun, TrainingRun]:  # fmt: skip
    """Both columns of a row of Table 5 of 2205.05198; tensor parallelism of 8, one replica."""
    first = TrainingRun(
        "Korthikanti", f"{name} full", heads, hidden, layers, 8, stages, 8 * stages, batch,
        micro_batch, chunks, "all", full,
    )  # fmt: skip
    return first, first._replace(name=f"{name} present", recomputed="attention", seconds=present)


RUNS = (
    *both("22B", 64, 6144, 48, 1, 4, 4, 1, 1.42, 1.10),
    *both("175B", 96, 12288, 96, 8, 64, 1, 3, 18.13, 13.75),
    *both("530B", 128, 20480, 105, 35, 280, 1, 3, 49.05, 37.83),
    *both("1T", 160, 25600, 128, 64, 512, 1, 1, 94.42, 71.49),
    weak_scaling(1.7, 24, 2304, 24, 1, 1, 32, 512, 137),
    weak_scaling(3.6, 32, 3072, 30, 2, 1, 64, 512, 138),
    weak_scaling(7.5, 32, 4096, 36, 4, 1, 128, 512, 142),
    weak_scaling(18.4, 48, 6144, 40, 8, 1, 256, 1024, 135),
    weak_scaling(39.1, 64, 8192, 48, 8, 2, 512, 1536, 138),
    weak_scaling(76.1, 80, 10240, 60, 8, 4, 1024, 1792, 140),
    weak_scaling(145.6, 96, 12288, 80, 8, 8, 1536, 2304, 148),
    weak_scaling(310.1, 128, 16384, 96, 8, 16, 1920, 2160, 155),
    weak_scaling(529.6, 128, 20480, 105, 8, 35, 2520, 2520, 163),
    weak_scaling(1008, 160, 25600, 128, 8, 64, 3072, 3072, 163),
)

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


def predicted(run: TrainingRun) -> PlanRow:
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
) -> PlanRow:
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


class TimeRow(BenchRow, frozen=True):
    """A run, published and predicted."""

    run: TrainingRun
    replicas: int
    micro_batch: int
    chunks: int
    bubble: float
    seconds: float
    """As predicted."""

    @property
    def error(self) -> float:
        """The prediction over what is published, less 1."""
        return self.seconds / self.run.seconds - 1

    @property
    def cells(self) -> Cells:
        return {
            "paper": self.run.paper,
            "run": self.run.name,
            "t": self.run.tensor,
            "p": self.run.stages,
            "d": self.replicas,
            "b": self.micro_batch,
            "v": self.chunks,
            "bubble": f"{self.bubble:.1%}",
            "published s": f"{self.run.seconds:.2f}",
            "predicted s": f"{self.seconds:.2f}",
            "error": f"{self.error:+.1%}",
        }

    @classmethod
    def notes(cls, rows: Sequence[TimeRow]) -> Iterator[str]:
        """The errors of the planner and of two constants."""
        yield ""
        yield _summary("predicted", [row.error for row in rows])
        for paper in dict.fromkeys(row.run.paper for row in rows):
            yield _summary(f"  {paper}", [row.error for row in rows if row.run.paper == paper])
        for name, operations in CONSTANTS.items():
            part, constant = best_constant([row.run for row in rows], operations)
            yield _summary(f"a constant {part:.1%} of the peak, {name}", constant)


CONSTANTS: dict[str, Callable[[TrainingRun], float]] = {
    "operations of the model": lambda run: run.operations,
    "operations executed": lambda run: run.executed,
}
"""What a constant predictor divides by a part of the peak."""


def best_constant(
    runs: Sequence[TrainingRun], operations: Callable[[TrainingRun], float]
) -> tuple[float, list[float]]:
    """The part of the peak with the least mean error over these very runs, and the errors."""
    parts = [operations(run) / (run.seconds * run.devices * PEAK) for run in runs]
    tried = {
        part: [run.seconds_at(operations(run), part) / run.seconds - 1 for run in runs]
        for part in parts
    }
    return min(tried.items(), key=lambda known: mean(map(abs, known[1])))


def _summary(name: str, errors: Sequence[float]) -> str:
    worst = max(errors, key=abs)
    return f"{name}: {mean(map(abs, errors)):.1%} in the mean, {worst:+.1%} at worst"


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


def layer_memory(run: TrainingRun) -> list[LayerMemory]:
    """The configurations of a model of Korthikanti et al."""
    t, name = run.tensor, run.name.split()[0]
    return [
        LayerMemory(name, "tensor, selective", 10 + 24 / t, 2, 4,
                    _counted(run, "megatron", "none")),
        LayerMemory(name, "tensor, sequence, selective", 34 / t, 2 / t, 4 / t,
                    _counted(run, "megatron-sp", "none")),
        LayerMemory(name, "full recomputation", 2, 0, 0, _counted(run, "megatron", "full")),
    ]  # fmt: skip


def _counted(run: TrainingRun, method: str, recompute: Recompute) -> float:
    """What one more layer adds to the stash of a micro-batch on a device, over s b h."""
    size = run.micro_batch or 1
    two, three = (_stash(run, size, method, recompute, layers) for layers in (2, 3))
    return (three - two) / (TOKENS * size * run.hidden)


def _stash(run: TrainingRun, size: int, method: str, recompute: Recompute, layers: int) -> float:
    on = cluster(run.hidden // run.heads)
    splits = Splits(model(run, layers), on, run.tensor, size, DTYPE)
    split, options = Split(1, 1, run.tensor), TrainingOptions(recompute=recompute)
    return priced_by(splits, split, size, method, options).stage_bytes[0].stash


def measure(run: TrainingRun) -> TimeRow:
    """Predict a run."""
    priced = predicted(run)
    return TimeRow(run, priced.split.replicas, priced.size, priced.options.chunks, priced.bubble,
                   priced.seconds)  # fmt: skip


def external() -> Iterator[Case]:
    for run in RUNS:
        yield f"{run.paper} {run.name}", partial(measure, run)
    for run in RUNS:
        if run.paper == "Korthikanti" and run.recomputed == "all":
            yield f"memory of {run.name}", partial(layer_memory, run)


if __name__ == "__main__":
    bench(external)
