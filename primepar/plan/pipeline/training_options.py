"""Options of training that a planner chooses or is given, in addition to sequences of operators.

Optimizer states, gradients and parameters may be in shards over the devices that hold the same
parameters: ZeRO-1, 2 and 3 (Rajbhandari et al., arXiv 1910.02054). Activations may be computed
again (Chen et al., arXiv 1604.06174; Korthikanti et al., arXiv 2205.05198), of all operators of a
layer or of some. 1F1B may be interleaved, with several chunks of the model on every stage
(Narayanan et al., SC 2021).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Literal, get_args

from msgspec import Struct

from primepar.errors import PlanError
from primepar.partition.pipeline.actions import ScheduleName, chunks_of

Shard = Literal["none", "optimizer", "gradients", "parameters"]
"""What is in shards; each includes what is before it."""
Recompute = Literal["none", "selective", "full"] | tuple[str, ...]
"""Which activations are computed again, as `Recomputation` of a plan: names are of operators."""
RecomputeChoice = Literal["none", "selective", "full", "operators"]
"""What to choose from; with `operators` those of a layer that run again are chosen one by one."""
PlannedSchedule = Literal["1f1b", "interleaved-1f1b"]
"""Schedules to choose from."""
MOST_CHUNKS = 8
"""Most chunks of a stage that are considered."""
EXECUTED_SHARDS: tuple[Shard, ...] = ("none", "optimizer")
"""Shards that a step of `primepar train` may have; the others are only priced."""


class TrainingOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One choice of all options.

    With a `bucket` sums of gradients run during backward, in parts of this many bytes. Raises
    `PlanError` for options that contradict one another.
    """

    shard: Shard = "none"
    recompute: Recompute = "none"
    schedule: ScheduleName = "1f1b"
    chunks: int = 1
    bucket: float | None = None

    def __post_init__(self) -> None:
        fewest, several = chunks_of(self.schedule), self.schedule == "interleaved-1f1b"
        if self.chunks < fewest or (self.chunks > fewest and not several):
            more = " or more" if several else ""
            raise PlanError(
                f"chunks: expected {fewest} chunk{'s' * (fewest > 1)}{more} of a stage under "
                f"{self.schedule}, got {self.chunks}: take interleaved-1f1b for several, 1f1b for "
                "one"
            )
        if self.bucket is not None and not 0 < self.bucket < float("inf"):
            raise PlanError(
                f"bucket: expected bytes of gradients, above 0, got {self.bucket:g}: leave it out "
                "for sums that nothing hides"
            )

    @property
    def only_priced(self) -> str | None:
        """The first option that a step of `primepar train` does not have; None where it has all."""
        if self.shard not in EXECUTED_SHARDS:
            return f"{self.shard} in shards"
        return None if self.bucket is None else "sums of gradients in buckets"


@dataclass(frozen=True)
class OptionChoices:
    """The options to choose from; all combinations are considered."""

    shards: tuple[Shard, ...] = ("none",)
    recomputes: tuple[RecomputeChoice, ...] = ("none",)
    schedules: tuple[PlannedSchedule, ...] = ("1f1b",)
    bucket: float | None = None

    def without_recompute(
        self, layers: int, stages: int, batches: int
    ) -> Iterator[TrainingOptions]:
        """Yield the options for `batches` micro-batches of layers on stages, keeping activations.

        There are at most `MOST_CHUNKS` chunks of a stage, each with a layer or more. Interleaving
        takes a multiple of the stages as number of micro-batches. Example: 126 layers on 16 stages
        of 4 chunks are 64 chunks, of which the first, with the embedding, and the last, with the
        head, have one layer, and all others two.
        """
        for shard, schedule in product(self.shards, self.schedules):
            counts = [1]
            if schedule == "interleaved-1f1b":
                several = stages > 1 and not batches % stages
                most = min(MOST_CHUNKS, layers // stages) if several else 1
                counts = [*range(2, most + 1)]
            for chunks in counts:
                yield TrainingOptions(
                    shard=shard, schedule=schedule, chunks=chunks, bucket=self.bucket
                )


EXECUTED = OptionChoices(EXECUTED_SHARDS, get_args(RecomputeChoice), ("1f1b", "interleaved-1f1b"))
"""All options that a step of `primepar train` may have."""
