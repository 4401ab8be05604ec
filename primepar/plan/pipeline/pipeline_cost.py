"""A model on p stages of d replicas of m devices under some training options: time and memory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from primepar.partition.pipeline.actions import stage_of
from primepar.partition.pipeline.formulas import UNIT, peak_stashes
from primepar.partition.pipeline.formulas import bubble as bubble_of
from primepar.plan.cluster import Cluster
from primepar.plan.pipeline.boundaries import Split, boundary_seconds
from primepar.plan.pipeline.schedule import bubble, step_seconds
from primepar.plan.pipeline.stage import Stage
from primepar.plan.pipeline.stage_cost import ChunkBytes, ChunkSeconds, StageCost
from primepar.plan.pipeline.training_options import TrainingOptions

SPLIT_BACKWARD = ("zb-h1", "zbv")
"""Schedules that put off gradients of weights."""


@dataclass(frozen=True)
class Pipeline:
    """A split with the plans of its chunks, and its predicted time and memory.

    `size` is the number of sequences of a micro-batch.
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
    def places(self) -> tuple[int, ...]:
        """The stage of every chunk."""
        options, stages = self.options, self.split.stages
        return tuple(
            stage_of(options.schedule, stages, options.chunks, number)[0]
            for number in range(len(self.chunks))
        )

    @cached_property
    def boundaries(self) -> tuple[float, ...]:
        """Seconds of a micro-batch between a chunk and the next; 0 on one stage."""
        return tuple(
            boundary_seconds(self.cluster, self.split, ends, *pair) if len({*ends}) > 1 else 0.0
            for ends, pair in zip(pairwise(self.places), pairwise(self.stages), strict=True)
        )

    @cached_property
    def stage_seconds(self) -> tuple[ChunkSeconds, ...]:
        """Seconds of every stage: for a micro-batch, boundaries included, and once in a step."""
        by_chunk = {id(chunk): chunk.seconds(self.options) for chunk in self.distinct}
        received = (0.0, *self.boundaries)
        took: list[list[ChunkSeconds]] = [[] for _ in range(self.split.stages)]
        for stage, chunk, sent in zip(self.places, self.chunks, received, strict=True):
            seconds = by_chunk[id(chunk)]
            more = seconds.communication + sent
            took[stage].append(seconds._replace(communication=more))
        return tuple(map(ChunkSeconds.of_stage, took))

    @cached_property
    def seconds(self) -> float:
        """Seconds of a training step.

        Where gradients of weights are put off, the bubble is that of equal times of F, B and W.
        """
        options, stages = self.options, self.stage_seconds
        often = [stage.compute + stage.communication for stage in stages]
        once = max(stage.reduction + stage.update for stage in stages)
        if options.schedule not in SPLIT_BACKWARD:
            return step_seconds(often, self.microbatches, options.chunks) + once
        idle = bubble_of(options.schedule, self.split.stages, self.microbatches)
        slots = self.microbatches + idle / (options.chunks * sum(UNIT))
        return slots * max(often) + once

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
        return peak_stashes(options.schedule, stage, stages, self.microbatches, options.chunks)

    @cached_property
    def stage_bytes(self) -> tuple[ChunkBytes, ...]:
        """Bytes of a device of every stage, with the stashes of all micro-batches in flight."""
        sizes = {id(chunk): chunk.bytes(self.options) for chunk in self.distinct}
        held: list[list[ChunkBytes]] = [[] for _ in range(self.split.stages)]
        for stage, chunk in zip(self.places, self.chunks, strict=True):
            held[stage].append(sizes[id(chunk)])
        return tuple(
            ChunkBytes.of_stage(of_stage, self._in_flight(stage))
            for stage, of_stage in enumerate(held)
        )

    @property
    def memory(self) -> float:
        """Bytes of the device that needs most."""
        return max(map(sum, self.stage_bytes))
