"""A model on p stages of d replicas of m devices: the time of a step, and the best split.

Stages are outermost among the devices, then replicas; the devices of tensor parallelism are
neighbours. Every replica takes its share of the batch in microbatches, by 1F1B. Gradients are
all-reduced over the replicas at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

from msgspec.structs import replace as replaced

from primepar.errors import PlanError
from primepar.models.config import ModelConfig
from primepar.plan.cluster import Cluster
from primepar.plan.cost.linear import Training
from primepar.plan.cost.links import ClusterLinks
from primepar.plan.pipeline.schedule import in_flight, step_seconds
from primepar.plan.pipeline.stage import Stage, StageDevices, StagePart
from primepar.plan.pipeline_layout import layers_by_stage
from primepar.plan.search.planner import Part, Planner
from primepar.plan.search.search import EXACT
from primepar.plan.search.sequence_space import SpaceName

Sequences = Callable[[Planner], Mapping[str, str]]
MANY = 1e9
"""Parameters for which an all-reduce is priced, to get its seconds per parameter."""


class Split(NamedTuple):
    """Stages, replicas of each, and devices of each replica: the paper's p, d and m."""

    stages: int
    replicas: int
    parts: int


@dataclass(frozen=True)
class Pipeline:
    """A split with the plans of its stages, and its predicted time and memory.

    `seconds` is of a training step, `memory` the bytes of the device that needs most. `size` is the
    number of sequences of a microbatch.
    """

    split: Split
    size: int
    microbatches: int
    stages: tuple[Stage, ...]
    seconds: float
    memory: float


@dataclass
class Splits:
    """Splits of `devices` devices of a cluster, for steps of `batch` sequences of a model."""

    model: ModelConfig
    cluster: Cluster
    devices: int
    batch: int
    dtype: str
    space: SpaceName = "all"
    part: Part = "model"
    tick: Callable[[str], object] = field(default=str, repr=False)
    """Called with the name of what is planned next, for a progress bar."""
    _groups: dict[tuple[int, int, bool], StageDevices] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.cluster.check_devices(self.devices)
        self.cluster.rate(self.dtype)

    @cached_property
    def _without_updates(self) -> Cluster:
        """The cluster with free updates: parameters are not updated after each microbatch."""
        operators = self.cluster.operators
        kept = {kind: passing for kind, passing in operators.items() if kind != "update"}
        return replaced(self.cluster, operators=kept)

    def all_splits(self) -> Iterator[Split]:
        """All splits in powers of two that the layers and the batch allow.

        A replica of a stage has at most `EXACT` devices, for which the search is exact.
        """
        bits = self.devices.bit_length()
        for stages in (1 << bit for bit in range(bits)):
            for replicas in (1 << bit for bit in range(bits)):
                parts, rest = divmod(self.devices, stages * replicas)
                if rest or parts > EXACT:
                    continue
                if stages <= self.model.layers and not self.batch % replicas:
                    yield Split(stages, replicas, parts)

    def ranked(self) -> list[Pipeline]:
        """The best pipeline of every split: those that fit the memory first, the fastest first.

        Raises `PlanError` where no split has a plan.
        """
        pipelines, refusal = [], None
        for split in self.all_splits():
            try:
                pipelines.append(self.best(split))
            except PlanError as error:
                refusal = refusal or error
        if not pipelines:
            assert refusal is not None, "one device is always a split"
            raise refusal
        return sorted(pipelines, key=self._rank)

    def _rank(self, pipeline: Pipeline) -> tuple[bool, float]:
        return pipeline.memory > self.cluster.memory, pipeline.seconds

    def best(self, split: Split, sequences: Sequences | None = None) -> Pipeline:
        """A split with the fastest size of microbatches of those that fit the memory."""
        share = self.batch // split.replicas
        sizes = [size for size in range(1, share + 1) if not share % size]
        return min((self.pipeline(split, size, sequences) for size in sizes), key=self._rank)

    def pipeline(self, split: Split, size: int, sequences: Sequences | None = None) -> Pipeline:
        """A split with microbatches of `size` sequences; plans are searched or given."""
        self.tick(f"{split.stages} x {split.replicas} x {split.parts}, microbatches of {size}")
        group = self._group(split, size)
        microbatches = self.batch // split.replicas // size
        most = self._reduction_seconds(split, group, MANY) - self._reduction_seconds(
            split, group, 0.0
        )
        summing = most / MANY / (microbatches + split.stages - 1)
        stages = []
        for number, layers in enumerate(layers_by_stage(self.model.layers, split.stages)):
            place = StagePart(layers, number == 0, number == split.stages - 1)
            stages.append(group.searched(place, summing) if sequences is None
                          else group.given(place, sequences(group.planner(place))))  # fmt: skip
        boundaries = [0.0, *(self._boundary(split, number, *pair) for number, pair in
                        enumerate(pairwise(stages)))]  # fmt: skip
        stage_seconds = [
            stage.seconds + more for stage, more in zip(stages, boundaries, strict=True)
        ]
        seconds = step_seconds(stage_seconds, microbatches)
        parameters = max(stage.parameters for stage in stages)
        seconds += self._reduction_seconds(split, group, parameters) + self._update_seconds(
            group, parameters
        )
        memory = max(
            stage.kept + stage.running
            + (in_flight(number, split.stages, microbatches) - 1) * stage.stash
            for number, stage in enumerate(stages)
        )  # fmt: skip
        return Pipeline(split, size, microbatches, tuple(stages), seconds, memory)

    def _group(self, split: Split, size: int) -> StageDevices:
        tied = self.model.tied and split.stages == 1
        key = split.parts, size, tied
        if key not in self._groups:
            links = ClusterLinks(self._without_updates, split.parts.bit_length() - 1)
            training = Training(links, self.dtype, size, self.model.context)
            model = replace(self.model, tied=tied)
            self._groups[key] = StageDevices(model, training, self.space, self.part)
        return self._groups[key]

    def _reduction_seconds(self, split: Split, group: StageDevices, parameters: float) -> float:
        """Seconds to all-reduce the gradients of `parameters` elements over a stage's replicas."""
        links = ClusterLinks(self.cluster, (split.replicas * split.parts).bit_length() - 1)
        bits = range(split.replicas.bit_length() - 1)
        return links.all_reduce(bits, parameters * group.training.wide_item)

    def _update_seconds(self, group: StageDevices, parameters: float) -> float:
        """Seconds of AdamW for `parameters` elements on each device, once in a step."""
        training = group.training
        links = ClusterLinks(self.cluster, training.links.bits)
        return Training(links, training.dtype, training.batch, training.positions).update(
            parameters
        )

    def _boundary(self, split: Split, before: int, sender: Stage, receiver: Stage) -> float:
        """Seconds to send a microbatch to the next stage, and its gradient back.

        Every device sends an equal part, which the replicas there all-gather.
        """
        training, layouts = sender.group.training, sender.group.catalogue.layouts
        size = float(training.rows * self.model.hidden * training.item)
        cut = {bit for dim in (0, 1) for bit in layouts.line(sender.leaves, dim)}
        copies = [bit for bit in range(training.links.bits) if bit not in cut]
        sending = self._send_seconds(split, before, size / split.parts)
        sending += training.links.all_gather(copies, size / split.parts)
        forward, backward = (float(layouts.ways([source], [target]).seconds(size)[0, 0])
                       for source, target in ((sender.leaves, receiver.takes),
                                           (receiver.takes, sender.leaves)))  # fmt: skip
        return 2 * sending + forward + backward

    def _send_seconds(self, split: Split, before: int, size: float) -> float:
        """Seconds in which every device sends `size` bytes to its counterpart in the next stage."""
        devices = split.replicas * split.parts
        first, second = before * devices, (before + 1) * devices
        links = self.cluster.links
        level = next(number for number, link in enumerate(links)
                     if first // link.joins == second // link.joins)  # fmt: skip
        link = links[level]
        behind = min(devices, links[level - 1].joins) if level and link.shared else 1
        return link.latency + size / min(link.bandwidth / behind, link.alone)
