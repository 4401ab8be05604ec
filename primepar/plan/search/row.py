"""A row of an answer: one plan, with its price, and where they are known its simulation and gap.

Every plan has p stages of d replicas of m devices, a number of micro-batches, and options. One
without stages, micro-batches and options is that of 1 x 1 x m. Stages are outermost among the
devices, then replicas; the devices of tensor parallelism are neighbours. Under 1F1B stage i of p
keeps the stashes of at most p - i micro-batches (Narayanan et al., SC 2021, section 2.2). So memory
does not grow with the number k of micro-batches. The bubble is (p - 1) / k of the work; with v
chunks of the model on every stage it is (p - 1) / (v k), and stashes are more.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from collections.abc import Sequence as Several
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from math import ceil, prod
from typing import NamedTuple, Self

from primepar.errors import PlanError
from primepar.models.config import ModelConfig
from primepar.models.graph import operators
from primepar.partition.pipeline.actions import stage_of
from primepar.partition.pipeline.formulas import UNIT, peak_stashes
from primepar.partition.pipeline.formulas import bubble as bubble_of
from primepar.plan.cluster import Cluster
from primepar.plan.pipeline_layout import (
    PipelineLayout,
    layer_of,
    layer_operator,
    layers_by_stage,
)
from primepar.plan.plan import Plan
from primepar.plan.search.planner import Planner
from primepar.plan.search.sequence_space import SpaceName
from primepar.plan.search.stage_cost import (
    ChunkBytes,
    ChunkSeconds,
    Stage,
    StageCost,
    TrainingOptions,
)
from primepar.plan.simulator.account import LOWERED, MOST_COUNTED, StepAccount, accounting
from primepar.plan.simulator.run import Simulation
from primepar.plan.simulator.step import simulate_equal_layers

SPLIT_BACKWARD = ("zb-h1", "zbv")
"""Schedules that put off gradients of weights."""
MOST_PASSES_COUNTED = 384
"""Most layers, over micro-batches and devices, of a step's program that is lowered and counted."""


class Split(NamedTuple):
    """Stages, replicas of each, and devices of each replica: the paper's p, d and m."""

    stages: int
    replicas: int
    parts: int

    def __str__(self) -> str:
        return " x ".join(map(str, self))


def boundary_seconds(
    cluster: Cluster, split: Split, ends: tuple[int, int], sender: Stage, receiver: Stage
) -> float:
    """Seconds to send a micro-batch from one of two stages to the other, and its gradient back.

    Every device sends an equal part, which the replicas there all-gather.
    """
    training, layouts = sender.training, sender.layouts
    size = float(training.rows * sender.operators[-1].K * training.item)
    cut = {bit for dim in (0, 1) for bit in layouts.line(sender.leaves, dim)}
    devices, part = split.replicas * split.parts, size / split.parts
    first, second = (stage * devices for stage in ends)
    level = max(cluster.level_between(first + rank, second + rank) for rank in range(devices))
    link = cluster.links[level]
    behind = min(devices, cluster.devices_behind(level))
    sending = float(link.message(part) + part / min(link.bandwidth / behind, link.alone))
    sending += training.links.all_gather(layouts.others([*cut]), size / split.parts)
    forward, backward = (float(layouts.way(source, target).seconds(size)[0, 0])
                         for source, target in ((sender.leaves, receiver.takes),
                                                (receiver.takes, sender.leaves)))  # fmt: skip
    return 2 * sending + forward + backward


def step_seconds(stages: Several[float], microbatches: int, chunks: int = 1) -> float:
    """Seconds of a training step, by the seconds of each stage for one micro-batch.

    The first micro-batch passes through all stages; the slowest stage then takes the others one by
    one. That is exact where all stages take equal time t: k t + (p - 1) t. With chunks a stage
    begins and ends after a chunk of the others: k t + (p - 1) t / v.
    """
    slowest = max(stages)
    return microbatches * slowest + (sum(stages) - slowest) / chunks


@dataclass(frozen=True)
class PlanRow:
    """A plan of a model, with its predicted time and memory.

    `size` is the number of sequences of a micro-batch, `name` that of a baseline. `gap` bounds how
    far the price may be above the least of all plans without stages, micro-batches and options, as
    a share of that; None where it is not known. `run` is a simulated step.
    """

    model: ModelConfig
    cluster: Cluster
    split: Split
    size: int
    microbatches: int
    options: TrainingOptions
    chunks: tuple[StageCost, ...]
    space: SpaceName = "paper"
    name: str = ""
    gap: float | None = None
    run: Simulation | None = None
    planner: Planner | None = None
    """That of the sequences, of a plan of one stage that was searched."""
    stopped: bool = False
    """Whether Ctrl-C ended the search or the simulations that it is of."""

    @property
    def batch(self) -> int:
        """Sequences of a step."""
        return self.split.replicas * self.size * self.microbatches

    @property
    def devices(self) -> int:
        """Devices of all stages."""
        return prod(self.split)

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
        known: dict[object, float] = {}
        boundaries = []
        for ends, pair in zip(pairwise(self.places), pairwise(self.stages), strict=True):
            key = *ends, *map(id, pair)
            if key not in known:
                here = len({*ends}) == 1
                known[key] = 0 if here else boundary_seconds(self.cluster, self.split, ends, *pair)
            boundaries.append(known[key])
        return tuple(boundaries)

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

    @property
    def seconds(self) -> float:
        """Seconds of a training step: simulated, or else the price."""
        return self.price if self.run is None else float(self.run.seconds)

    @cached_property
    def price(self) -> float:
        """Seconds of a training step by the cost model.

        Where gradients of weights are put off, the bubble is that of equal times of F, B and W.
        """
        options, stages = self.options, self.stage_seconds
        often = [stage.compute + stage.communication for stage in stages]
        once = max(stage.reduction + stage.update for stage in stages)
        if options.schedule not in SPLIT_BACKWARD:
            return self.in_chunks(options.chunks)
        idle = bubble_of(options.schedule, self.split.stages, self.microbatches)
        slots = self.microbatches + idle / (options.chunks * sum(UNIT))
        return slots * max(often) + once

    def in_chunks(self, chunks: int) -> float:
        """Seconds of a step if every stage had this many chunks, and all else were the same."""
        often = [stage.compute + stage.communication for stage in self.stage_seconds]
        once = max(stage.reduction + stage.update for stage in self.stage_seconds)
        return step_seconds(often, self.microbatches, chunks) + once

    @property
    def bubble(self) -> float:
        """Idle time over work, where all chunks take equal time."""
        microbatches = self.microbatches
        idle = bubble_of("1f1b", self.split.stages, microbatches)
        return idle / (self.options.chunks * microbatches * sum(UNIT))

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
    def fullest(self) -> ChunkBytes:
        """Bytes of a device of the stage that needs most."""
        return max(self.stage_bytes, key=sum)

    @property
    def memory(self) -> float:
        """Bytes of the device that needs most, as they are added up."""
        return sum(self.fullest)

    @property
    def only_priced(self) -> str | None:
        """What of the options or the model no training step here has."""
        return self.options.only_priced or (self.model.priced.what if self.model.priced else None)

    @property
    def is_counted(self) -> bool:
        """Whether the step's program is lowered, which takes seconds for many devices."""
        is_short = self.passes <= MOST_PASSES_COUNTED and self.devices <= MOST_COUNTED
        return is_short and self.only_priced is None

    @property
    def passes(self) -> int:
        """Layers, over micro-batches and devices, of the programs that a simulation lowers."""
        layers = self.model.layers
        if self.split.stages * self.microbatches > 1:
            return layers * self.microbatches * self.devices // self.split.stages
        return min(layers, 2 * LOWERED - 2) * self.devices

    @cached_property
    def account(self) -> StepAccount | None:
        """What is counted in the step's program, where that is lowered."""
        if self.run is not None:
            return StepAccount(tuple(map(ceil, self.run.sent)), tuple(self.run.peak))
        if not self.is_counted:
            return None
        training = self.stages[0].training
        return accounting(self.plan, self.batch, training.positions, training.dtype)

    @property
    def held(self) -> tuple[int, ...]:
        """Peak bytes of every device, as simulated and emulated devices count them.

        Where they are not counted, the bound that is added up.
        """
        return (ceil(self.memory),) * self.devices if self.account is None else self.account.held

    @property
    def sent(self) -> tuple[int, ...]:
        """Bytes that every device sends in a training step; none where they are not counted."""
        return () if self.account is None else self.account.sent

    @property
    def fits(self) -> bool:
        """Whether a device has the memory, as it is added up, or as it is simulated."""
        most = self.cluster.memory
        return self.memory <= most or (self.run is not None and max(self.held) <= most)

    @property
    def may_fit(self) -> bool:
        """Whether a device may have the memory, as it is added up or counted.

        At the end of forward it has the stash, and before the update all gradients.
        """
        most = max(sum(stage[:3]) for stage in self.stage_bytes)
        most = max(most, *(sum(stage[:4]) - stage.gradients for stage in self.stage_bytes))
        return self.fits or (self.is_counted and most <= self.cluster.memory)

    def simulated(self) -> Self:
        """The same plan with a simulated step."""
        training = self.stages[0].training
        step = self.plan, self.batch, training.positions, self.cluster, training.dtype
        return replace(self, run=simulate_equal_layers(*step))

    @property
    def plan(self) -> Plan:
        """The plan, as it is saved to a file.

        Each chunk is planned with layers that are counted from 0, after the addition that its input
        comes from; and without its replicas, which are the outermost cut of the rows. One stage and
        one micro-batch need no pipeline. Raises `PlanError` for options that are only priced.
        """
        options, split = self.options, self.split
        if options.only_priced is not None:
            raise PlanError(
                f"expected options that a training step has, to write a plan, got "
                f"{options.only_priced}, which are only priced: leave out -o, or that option"
            )
        layout = PipelineLayout(
            schedule=options.schedule,
            stages=split.stages,
            micro_batches=self.microbatches,
            chunks=options.chunks if options.chunks > 1 else None,
        )
        return Plan(
            model=self.model,
            ranks=self.devices,
            batch=self.batch,
            pipeline=layout if split.stages * self.microbatches > 1 else None,
            sharded_optimizer=options.shard == "optimizer",
            recompute=None if options.recompute == "none" else options.recompute,
            sequences=self.sequences,
        )

    @property
    def sequences(self) -> dict[str, str]:
        """The sequences of all operators of the model over the devices of a stage."""
        known = {operator.name for operator in operators(self.model)}
        sequences: dict[str, str] = {}
        first = 0
        layers = layers_by_stage(self.model.layers, len(self.chunks))
        for stage, count in zip(self.stages, layers, strict=True):
            for chosen in stage.chosen:
                name = name_in_model(chosen.name, first)
                if name in known:
                    sequences[name] = in_replicas(self.split.replicas, chosen.candidate.text)
            first += count
        return sequences


def name_in_model(name: str, first: int) -> str:
    """The name in the whole model; what a chunk receives is the `input` of its first layer."""
    if name == "stream":
        return f"blocks.{first}.input"
    layer = layer_of(name)
    return name if layer is None else f"blocks.{first + layer}.{layer_operator(name)}"


def in_replicas(replicas: int, text: str) -> str:
    """The sequence of an operator on all replicas.

    Replicas and a first cut of the rows are one cut: `M6,K2` of 3 replicas of `M2,K2`.
    """
    if replicas == 1:
        return text
    first, _, others = text.partition(",")
    if re.fullmatch(r"M\d+", first):
        replicas, text = replicas * int(first[1:]), others
    return ",".join(filter(None, (f"M{replicas}", text)))
