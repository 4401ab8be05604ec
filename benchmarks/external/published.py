"""Rows of two papers: training runs of GPT models on A100 80GB, 8 in a node.

Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models", arXiv
2205.05198: configurations of Table 3, seconds of an iteration of Table 5. "full" recomputes all
activations, without sequence parallelism. "present work" has sequence parallelism, and recomputes
the core of attention only.

Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM",
arXiv 2104.04473: Table 1, weak scaling. Its teraFLOP/s count full recomputation (equation 3).
"""

from __future__ import annotations

from typing import Literal, NamedTuple

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
