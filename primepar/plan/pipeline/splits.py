"""A model on p stages of d replicas of m devices: what a step takes, and which split is the best.

Stages are the outermost of the devices, replicas come next, and the devices of tensor parallelism
are neighbours. Every replica takes its share of the batch in microbatches, 1F1B; gradients are
summed over the replicas at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

from msgspec.structs import replace as changed

from primepar.errors import PlanError
from primepar.models.config import ModelConfig
from primepar.plan.cluster import Cluster
from primepar.plan.cost.linear import Training
from primepar.plan.cost.links import ClusterLinks
from primepar.plan.pipeline.schedule import dealt, in_flight, step_seconds
from primepar.plan.pipeline.stage import Stage, StageDevices, StagePart
from primepar.plan.search.planner import Part, Planner
from primepar.plan.search.search import EXACT
from primepar.plan.search.sequence_space import SpaceName

Sequences = Callable[[Planner], Mapping[str, str]]
MANY = 1e9
"""Parameters by which the time of one more in a sum is told, the latency left out."""


class Split(NamedTuple):
    """Stages, replicas of each, and devices of each replica: the paper's p, d and m."""

    stages: int
    replicas: int
    parts: int


@dataclass(frozen=True)
class Pipeline:
    """A split with the plans of its stages, and what it is predicted to take.

    `seconds` is of a training step, `memory` of the device that needs most; `size` is sequences of
    a microbatch.
    """

    split: Split
    size: int
    microbatches: int
    stages: tuple[Stage, ...]
    seconds: float
    memory: float


@dataclass
class Splits:
    """Splits of so many devices of a cluster, for steps of `batch` sequences of a model."""

    model: ModelConfig
    cluster: Cluster
    devices: int
    batch: int
    dtype: str
    space: SpaceName = "all"
    part: Part = "model"
    tick: Callable[[str], object] = field(default=str, repr=False)
    """Called with what is planned next."""
    _groups: dict[tuple[int, int, bool], StageDevices] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.cluster.check_devices(self.devices)
        self.cluster.rate(self.dtype)

    @cached_property
    def _without_updates(self) -> Cluster:
        """The cluster of one microbatch, after which nothing is updated."""
        operators = self.cluster.operators
        kept = {kind: own for kind, own in operators.items() if kind != "update"}
        return changed(self.cluster, operators=kept)

    def every(self) -> Iterator[Split]:
        """All splits in powers of two that the layers and the batch allow.

        Replicas of a stage have no more devices than the search looks at sequence by sequence.
        """
        bits = self.devices.bit_length()
        for stages in (1 << at for at in range(bits)):
            for replicas in (1 << at for at in range(bits)):
                parts, rest = divmod(self.devices, stages * replicas)
                if rest or parts > EXACT:
                    continue
                if stages <= self.model.layers and not self.batch % replicas:
                    yield Split(stages, replicas, parts)

    def ranked(self) -> list[Pipeline]:
        """The best pipeline of every split, those first that fit a device, then the fastest.

        Raises `PlanError` where no operator has a sequence on any split.
        """
        found, refusal = [], None
        for split in self.every():
            try:
                found.append(self.best(split))
            except PlanError as error:
                refusal = refusal or error
        if not found:
            assert refusal is not None, "one device is always a split"
            raise refusal
        return sorted(found, key=self._rank)

    def _rank(self, pipeline: Pipeline) -> tuple[bool, float]:
        return pipeline.memory > self.cluster.memory, pipeline.seconds

    def best(self, split: Split, sequences: Sequences | None = None) -> Pipeline:
        """A split with the size of microbatches that is the fastest of those that fit."""
        share = self.batch // split.replicas
        sizes = [size for size in range(1, share + 1) if not share % size]
        return min((self.pipeline(split, size, sequences) for size in sizes), key=self._rank)

    def pipeline(self, split: Split, size: int, sequences: Sequences | None = None) -> Pipeline:
        """A split with microbatches of so many sequences: searched, or by given `sequences`."""
        self.tick(f"{split.stages} x {split.replicas} x {split.parts}, microbatches of {size}")
        group = self._group(split, size)
        microbatches = self.batch // split.replicas // size
        most = self._summed(split, group, MANY) - self._summed(split, group, 0.0)
        summing = most / MANY / (microbatches + split.stages - 1)
        stages = []
        for at, layers in enumerate(dealt(self.model.layers, split.stages)):
            place = StagePart(layers, at == 0, at == split.stages - 1)
            stages.append(group.searched(place, summing) if sequences is None
                          else group.given(place, sequences(group.planner(place))))  # fmt: skip
        taken = [0.0, *(self._boundary(split, at, *pair) for at, pair in
                        enumerate(pairwise(stages)))]  # fmt: skip
        each = [stage.seconds + more for stage, more in zip(stages, taken, strict=True)]
        seconds = step_seconds(each, microbatches)
        parameters = max(stage.parameters for stage in stages)
        seconds += self._summed(split, group, parameters) + self._updated(group, parameters)
        memory = max(
            stage.kept + stage.running
            + (in_flight(at, split.stages, microbatches) - 1) * stage.stash
            for at, stage in enumerate(stages)
        )  # fmt: skip
        return Pipeline(split, size, microbatches, tuple(stages), seconds, memory)

    def _group(self, split: Split, size: int) -> StageDevices:
        tied = self.model.tied and split.stages == 1
        key = split.parts, size, tied
        if key not in self._groups:
            wires = ClusterLinks(self._without_updates, split.parts.bit_length() - 1)
            training = Training(wires, self.dtype, size, self.model.context)
            model = replace(self.model, tied=tied)
            self._groups[key] = StageDevices(model, training, self.space, self.part)
        return self._groups[key]

    def _summed(self, split: Split, group: StageDevices, parameters: float) -> float:
        """Seconds of the sum of so many gradients of each device over the replicas of a stage."""
        wires = ClusterLinks(self.cluster, (split.replicas * split.parts).bit_length() - 1)
        bits = range(split.replicas.bit_length() - 1)
        return wires.all_reduce(bits, parameters * group.training.item)

    def _updated(self, group: StageDevices, parameters: float) -> float:
        """Seconds of AdamW for so many parameters of each device, once in a step."""
        own = group.training
        wires = ClusterLinks(self.cluster, own.wires.bits)
        return Training(wires, own.dtype, own.batch, own.positions).update(parameters)

    def _boundary(self, split: Split, before: int, one: Stage, other: Stage) -> float:
        """Seconds of a microbatch's way to the next stage, and of its gradient's way back.

        Every device sends an equal part, gathered there over the devices that are to have it all.
        """
        training, layouts = one.group.training, one.group.catalogue.layouts
        size = float(training.rows * self.model.hidden * training.item)
        cut = {bit for dim in (0, 1) for bit in layouts.line(one.leaves, dim)}
        copies = [bit for bit in range(training.wires.bits) if bit not in cut]
        way = self._sent(split, before, size / split.parts)
        way += training.wires.all_gather(copies, size / split.parts)
        forth, back = (float(layouts.ways([here], [there]).seconds(size)[0, 0])
                       for here, there in ((one.leaves, other.takes),
                                           (other.takes, one.leaves)))  # fmt: skip
        return 2 * way + forth + back

    def _sent(self, split: Split, before: int, size: float) -> float:
        """Seconds in which every device of a stage sends so much to its like in the next one."""
        devices = split.replicas * split.parts
        first, second = before * devices, (before + 1) * devices
        links = self.cluster.links
        level = next(at for at, link in enumerate(links)
                     if first // link.joins == second // link.joins)  # fmt: skip
        link = links[level]
        behind = min(devices, links[level - 1].joins) if level and link.shared else 1
        return link.latency + size / min(link.bandwidth / behind, link.alone)
