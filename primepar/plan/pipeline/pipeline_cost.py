"""A model on p stages of d replicas of m devices under some training options: time and memory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from primepar.plan.cluster import Cluster
from primepar.plan.pipeline.boundaries import Split, boundary_seconds
from primepar.plan.pipeline.schedule import bubble, in_flight, step_seconds
from primepar.plan.pipeline.stage import Stage
from primepar.plan.pipeline.stage_cost import ChunkBytes, ChunkSeconds, StageCost
from primepar.plan.pipeline.training_options import TrainingOptions


@dataclass(frozen=True)
class Pipeline:
    """A split with the plans of its chunks, and its predicted time and memory.

    `size` is the number of sequences of a micro-batch. Chunk c of the model is on stage c mod p.
    """

    cluster: Cluster
    split: Split
    size: int
    microbatches: int
    options: TrainingOptions
    chunks: tuple[StageCost, ...]

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The plans of the chunks."""
        return tuple(chunk.stage for chunk in self.chunks)

    @property
    def distinct(self) -> Iterable[StageCost]:
        """The chunks, each once: those with the same plan are one object."""
        return {id(chunk): chunk for chunk in self.chunks}.values()

    @cached_property
    def stage_seconds(self) -> tuple[ChunkSeconds, ...]:
        """Seconds of every stage: for a micro-batch, boundaries included, and once in a step."""
        stages, options = self.split.stages, self.options
        by_chunk = {id(chunk): chunk.seconds(options) for chunk in self.distinct}
        seconds = [by_chunk[id(chunk)] for chunk in self.chunks]
        for number, pair in enumerate(pairwise(self.stages), 1):
            ends = (number - 1) % stages, number % stages
            sent = boundary_seconds(self.cluster, self.split, ends, *pair)
            chunk = seconds[number]
            seconds[number] = chunk._replace(communication=chunk.communication + sent)
        return tuple(ChunkSeconds.of_stage(seconds[stage::stages]) for stage in range(stages))

    @cached_property
    def seconds(self) -> float:
        """Seconds of a training step."""
        stages = self.stage_seconds
        often = [stage.compute + stage.communication for stage in stages]
        once = max(stage.reduction + stage.update for stage in stages)
        return step_seconds(often, self.microbatches, self.options.chunks) + once

    @property
    def bubble(self) -> float:
        """Idle time over work, where all chunks take equal time."""
        return bubble(self.split.stages, self.microbatches, self.options.chunks)

    @property
    def most_in_flight(self) -> int:
        """The most stashes of a chunk that a stage keeps: those of the first stage."""
        return self._in_flight(0)

    def _in_flight(self, stage: int) -> int:
        options, stages = self.options, self.split.stages
        return in_flight(stage, stages, self.microbatches, options.schedule, options.chunks)

    @cached_property
    def stage_bytes(self) -> tuple[ChunkBytes, ...]:
        """Bytes of a device of every stage, with the stashes of all micro-batches in flight."""
        stages, options = self.split.stages, self.options
        sizes = {id(chunk): chunk.bytes(options) for chunk in self.distinct}
        return tuple(
            ChunkBytes.of_stage((sizes[id(chunk)] for chunk in self.chunks[stage::stages]),
                                self._in_flight(stage))
            for stage in range(stages)
        )  # fmt: skip

    @property
    def memory(self) -> float:
        """Bytes of the device that needs most."""
        return max(map(sum, self.stage_bytes))
