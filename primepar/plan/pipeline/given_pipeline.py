"""The cost of a given plan with stages, micro-batches, shards or recomputation."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from primepar.errors import PlanError
from primepar.partition.pipeline.formulas import UNIT, bubble, peak_stashes
from primepar.plan.cluster import Cluster
from primepar.plan.pipeline.boundaries import Split, boundary_seconds
from primepar.plan.pipeline.schedule import step_seconds
from primepar.plan.pipeline.splits import Splits
from primepar.plan.pipeline.stage import StagePart
from primepar.plan.pipeline.stage_cost import ChunkBytes, ChunkSeconds, StageCost
from primepar.plan.pipeline.training_options import TrainingOptions
from primepar.plan.pipeline_layout import PipelineLayout, layers_by_stage, micro_batches
from primepar.plan.plan import Plan

SPLIT_BACKWARD = ("zb-h1", "zbv")
"""Schedules that put off gradients of weights."""


@dataclass(frozen=True)
class GivenPipeline:
    """A plan as chunks of a model, on a cluster: predicted time and memory of a training step."""

    cluster: Cluster
    layout: PipelineLayout
    split: Split
    options: TrainingOptions
    chunks: tuple[StageCost, ...]

    @classmethod
    def of(cls, splits: Splits, plan: Plan, batch: int) -> GivenPipeline:
        """Price the chunks of a plan. Raises `PlanError` where a cut has no price."""
        layout = plan.schedule or micro_batches(1)
        replicas = plan.stage_ranks // (plan.stage_ranks & -plan.stage_ranks)
        split = Split(layout.stages, replicas, plan.stage_ranks // replicas)
        options = TrainingOptions(
            shard="optimizer" if plan.sharded_optimizer else "none",
            recompute=plan.recompute or "none",
        )
        group = splits.group(split, batch // layout.micro_batches // replicas)
        count, first, chunks = len(layout.stage_chunks), 0, []
        for number, layers in enumerate(layers_by_stage(plan.model.layers, count)):
            place = StagePart(layers, number == 0, number == count - 1)
            chain = group.chain(plan.model.with_sizes(layers=layers), place)
            sequences = {
                operator.name: _inside(plan.sequences[_whole_name(operator.name, first)], replicas)
                for operator in chain
            }
            chunks.append(StageCost(group.given(place, sequences)))
            first += layers
        return cls(splits.cluster, layout, split, options, tuple(chunks))

    @cached_property
    def stage_seconds(self) -> tuple[ChunkSeconds, ...]:
        """Seconds of every stage: for a micro-batch, boundaries included, and once in a step."""
        seconds = [chunk.seconds(self.options) for chunk in self.chunks]
        for number, sent in enumerate(self.boundaries, 1):
            more = seconds[number].communication + sent
            seconds[number] = seconds[number]._replace(communication=more)
        return tuple(
            ChunkSeconds.of_stage(seconds[number] for number in numbers)
            for numbers in self._numbers
        )

    @cached_property
    def boundaries(self) -> tuple[float, ...]:
        """Seconds of a micro-batch between a chunk and the next; 0 on one stage."""
        ends = [stage for stage, _ in self.layout.stage_chunks]
        return tuple(
            boundary_seconds(self.cluster, self.split, (ends[number], ends[number + 1]), *pair)
            if ends[number] != ends[number + 1] else 0.0
            for number, pair in enumerate(pairwise(chunk.stage for chunk in self.chunks))
        )  # fmt: skip

    @property
    def _numbers(self) -> list[list[int]]:
        """The chunks of every stage."""
        places = self.layout.stage_chunks
        return [
            [number for number, (at_stage, _) in enumerate(places) if at_stage == stage]
            for stage in range(self.layout.stages)
        ]

    @cached_property
    def seconds(self) -> float:
        """Seconds of a training step.

        Where gradients of weights are put off, the bubble is that of equal times of F, B and W.
        """
        layout, per_stage = self.layout, len(self._numbers[0])
        often = [stage.compute + stage.communication for stage in self.stage_seconds]
        once = max(stage.reduction + stage.update for stage in self.stage_seconds)
        if layout.schedule not in SPLIT_BACKWARD:
            return step_seconds(often, layout.micro_batches, per_stage) + once
        idle = bubble(layout.schedule, layout.stages, layout.micro_batches)
        slots = layout.micro_batches + idle / (per_stage * sum(UNIT))
        return slots * max(often) + once

    @cached_property
    def stage_bytes(self) -> tuple[ChunkBytes, ...]:
        """Bytes of a device of every stage, with the stashes of all micro-batches in flight."""
        layout = self.layout
        return tuple(
            ChunkBytes.of_stage(
                (self.chunks[number].bytes(self.options) for number in numbers),
                peak_stashes(layout.schedule, stage, layout.stages, layout.micro_batches,
                             layout.chunks),
            )
            for stage, numbers in enumerate(self._numbers)
        )  # fmt: skip

    @property
    def memory(self) -> float:
        """Bytes of the device that needs most."""
        return max(map(sum, self.stage_bytes))


def _whole_name(name: str, first: int) -> str:
    """The name in the whole model of an operator of a chunk after `first` layers.

    The addition before the chunk is that at the end of the layer before.
    """
    if name == "stream":
        return f"blocks.{first - 1}.add2"
    block, _, rest = name.partition(".")
    if block != "blocks":
        return name
    number, _, operator = rest.partition(".")
    return f"blocks.{first + int(number)}.{operator}"


def _inside(text: str, replicas: int) -> str:
    """A sequence inside one of some replicas, which are the outermost cut of its rows."""
    if replicas == 1:
        return text
    first, _, others = text.partition(",")
    cut = re.fullmatch(r"M(\d+)", first)
    if cut is None or int(cut[1]) % replicas:
        raise PlanError(
            f"plan: expected a first cut of the rows, by a multiple of {replicas}, in every "
            f"sequence, as devices of a replica are a power of two, got {text}: write "
            f"M{replicas},... or price it with primepar simulate"
        )
    rest = int(cut[1]) // replicas
    return ",".join(filter(None, (f"M{rest}" if rest > 1 or not others else "", others)))
