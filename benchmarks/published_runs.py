"""Does the planner predict published runs of Llama 3?

Inputs are those of the publications, clusters are shipped ones, and nothing is fitted to a row.

- Llama 3: Grattafiori et al., arXiv 2407.21783, Table 4. 16 million tokens a step; stages of 8
  devices, interleaved. The utilization is that which Table 4 prints. Chunks are not printed: 4 is
  the most for which every chunk of 126 layers on 16 stages has one.
- torchtitan: github.com/pytorch/torchtitan, docs/performance.md (64 A100; 405B on 128 H100), and
  its measurements of 8 H100 of December 2024. Parameters are in shards (FSDP2). Its H100 have
  2.4 TB/s of memory and 500 W; the cluster is one of 3.35 TB/s and 700 W.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from statistics import median
from typing import Annotated, NamedTuple

from benchmarks.bench import BenchRow, Case, Column, bench
from benchmarks.external import priced_by
from primepar.models.config import flops_per_token
from primepar.models.sizes import MODELS
from primepar.plan.cluster import load_cluster
from primepar.plan.search.row import Split
from primepar.plan.search.splits import Splits
from primepar.plan.search.stage_cost import Recompute, Shard, TrainingOptions

DTYPE = "bfloat16"
POSITIONS = 8192


class PublishedRun(NamedTuple):
    """A model on nodes of a cluster, and the tokens per second of a device, or the utilization."""

    paper: str
    model: str
    cluster: str
    nodes: int
    tensor: int
    stages: int
    chunks: int
    batch: int
    micro_batch: int
    shard: Shard
    recompute: Recompute
    tokens: float | None
    """Tokens per second of a device; None where the utilization is printed."""
    utilization: float | None = None


RUNS = (
    PublishedRun("Llama 3", "llama-3.1-405b", "h100", 1024, 8, 16, 4, 2048, 1, "optimizer", "none",
                 None, 0.43),
    PublishedRun("Llama 3", "llama-3.1-405b", "h100", 2048, 8, 16, 4, 2048, 1, "optimizer", "none",
                 None, 0.41),
    PublishedRun("torchtitan", "llama-3-8b", "a100", 8, 1, 1, 1, 64, 1, "parameters", "selective",
                 2973),
    PublishedRun("torchtitan", "llama-3-70b", "a100", 8, 1, 1, 1, 64, 1, "parameters", "full",
                 323),
    PublishedRun("torchtitan", "llama-3.1-405b", "h100", 16, 8, 1, 1, 32, 2, "parameters", "full",
                 109),
    PublishedRun("torchtitan", "llama-3.1-8b", "h100", 1, 1, 1, 1, 16, 2, "parameters",
                 "selective", 6667),
)  # fmt: skip


def utilizations(run: PublishedRun) -> tuple[float, float]:
    """Model FLOPs utilization of a run, published and predicted."""
    model = replace(MODELS[run.model], context=POSITIONS)
    cluster = load_cluster(run.cluster, run.nodes)
    replicas = cluster.devices // (run.tensor * run.stages)
    splits = Splits(model, cluster, cluster.devices, run.batch, DTYPE)
    split = Split(run.stages, replicas, run.tensor)
    known = priced_by(splits, split, run.micro_batch, method_of(run), options_of(run))
    seconds = known.seconds
    of_token = flops_per_token(model) / cluster.rate(DTYPE).peak
    predicted = run.batch * POSITIONS / seconds / cluster.devices * of_token
    return run.utilization or (run.tokens or 0.0) * of_token, predicted


def method_of(run: PublishedRun) -> str:
    """The preset of a run."""
    return "data" if run.tensor == 1 else "megatron-sp"


def options_of(run: PublishedRun) -> TrainingOptions:
    """The options of a run."""
    return TrainingOptions.in_chunks(run.chunks, run.shard, run.recompute)


class UtilizationRow(BenchRow, frozen=True):
    """A run, published and predicted."""

    paper: Annotated[str, Column("paper")]
    model: Annotated[str, Column("model")]
    devices: Annotated[str, Column("devices")]
    published: Annotated[float, Column("published", ".1%")]
    predicted: Annotated[float, Column("predicted", ".1%")]

    @property
    def error(self) -> Annotated[float, Column("error", "+.1%")]:
        """The prediction over what is published, less 1."""
        return self.predicted / self.published - 1

    @classmethod
    def notes(cls, rows: Sequence[UtilizationRow]) -> Iterator[str]:
        """The errors, and those of the best constant utilization."""
        constant = median(row.published for row in rows)
        for name, values in (("predicted", [row.predicted for row in rows]),
                             (f"a constant {constant:.1%}", [constant] * len(rows))):  # fmt: skip
            errors = [abs(value / row.published - 1)
                      for value, row in zip(values, rows, strict=True)]  # fmt: skip
            yield f"{name}: {median(errors):.1%} in the median, {max(errors):.1%} at worst"


def measure(run: PublishedRun) -> UtilizationRow:
    """Predict a run."""
    devices = f"{8 * run.nodes:,} {run.cluster}"
    return UtilizationRow(run.paper, run.model, devices, *utilizations(run))


def published_runs() -> Iterator[Case]:
    for run in RUNS:
        yield f"{run.model} on {run.nodes} nodes of {run.cluster}", partial(measure, run)


if __name__ == "__main__":
    bench(published_runs)
