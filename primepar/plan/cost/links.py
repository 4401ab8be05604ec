"""Seconds of messages and rings on the links of a cluster, by the device bits that they cross.

The numbers of 2^n devices have n bits, the outermost first. Two devices that differ in a bit are
joined by that bit's level of links. There may be several replicas of the devices, in several
stages: a sum of gradients is over the replicas too.

The rules are those of the simulator, where all devices do the same at once. Example: a node of 2
devices at 12 GB/s, and 4 nodes that share 100 GB/s a node, with 20 GB/s for one message. Of a ring
over all 8 devices one message leaves each node. Between nodes it gets 20 GB/s, and within a node
12, so that the ring is as fast as the slower level: 12 GB/s.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import inf
from typing import Any, NamedTuple

from primepar.errors import ClusterError
from primepar.plan.cluster import Cluster, Collective, Link


class PortLoad(NamedTuple):
    """What a port receives at once: all bytes, the largest message, and the number of messages."""

    all: float
    largest: float
    messages: int


@dataclass(frozen=True)
class ClusterLinks:
    """The links among the first 2^`bits` devices of a cluster, and of equal groups after them.

    With `replicas` collectives are over all of these, and in each over the devices that differ in
    some bits. Replica r of a stage has the r-th of its groups of 2^`bits` devices.
    """

    cluster: Cluster
    bits: int
    replicas: int = 1
    stages: int = 1

    def __post_init__(self) -> None:
        for level, link in enumerate(self.cluster.links[:-1]):
            if link.joins < self.devices and link.joins & (link.joins - 1):
                raise ClusterError(
                    f"$.links[{level}].joins: expected a power of two for a plan of {self.devices} "
                    f"devices, got {link.joins}: plan {1 << link.joins.bit_length() - 1} devices"
                )

    @property
    def devices(self) -> int:
        """Number of devices of a replica."""
        return 1 << self.bits

    @cached_property
    def by_level(self) -> tuple[Link, ...]:
        """The levels of links that join two of the devices, innermost first."""
        inner = [link for link in self.cluster.links if link.joins < self.devices]
        return self.cluster.links[: len(inner) + 1]

    @cached_property
    def levels(self) -> tuple[int, ...]:
        """Level of every device bit."""
        weights = [1 << place for place in reversed(range(self.bits))]
        return tuple(
            next(level for level, link in enumerate(self.by_level) if weight < link.joins)
            for weight in weights
        )

    @cached_property
    def between_replicas(self) -> frozenset[int]:
        """The levels between consecutive replicas of some stage; they close a ring, too."""
        size = self.replicas * self.devices
        firsts = [
            [*range(stage * size, (stage + 1) * size, self.devices)] for stage in range(self.stages)
        ]
        return frozenset(
            self.cluster.level_between(one, other)
            for ring in firsts
            for one, other in pairwise([*ring, ring[0]])
            if self.replicas > 1
        )

    def below(self, level: int) -> int:
        """Number of the innermost bits, those joined by the levels below this one."""
        return sum(bit_level < level for bit_level in self.levels)

    def transfer(self, loads: Mapping[int, PortLoad]) -> float:
        """Seconds until every level has carried what its busiest port receives."""
        return max((self.arrival(level, load) for level, load in loads.items()), default=0.0)

    def arrival(self, level: int, load: PortLoad) -> float:
        """Seconds until a port of a level has received some messages at once.

        They share its bandwidth, and none gets more than a message alone.
        """
        if not load.all:
            return 0.0
        link = self.by_level[level]
        bytes_ = max(load.all / link.bandwidth, load.largest / link.alone)
        return float(link.message(load.largest) + bytes_ + (load.messages - 1) * link.gap)

    def rearranged(self, size: Any) -> Any:
        """Seconds to copy `size` bytes of blocks; 0 where the cluster has no such time."""
        times = self.cluster.operators.get("join")
        return 0.0 if times is None else times.launch + 2 * size / times.memory_bandwidth

    def ring(
        self, bits: Sequence[int], sent: float, steps: int, collective: Collective,
        calls: float = 1.0,
    ) -> float:  # fmt: skip
        """Seconds of a ring over the devices that differ in these bits, all such rings at once."""
        start, bytes_ = self.ring_parts(bits, sent, steps, collective)
        return calls * start + bytes_

    def ring_parts(
        self, bits: Sequence[int], sent: float, steps: int, collective: Collective
    ) -> tuple[float, float]:
        """Seconds of such a ring before its bytes move, and those in which they do.

        Every device sends `sent` bytes in `steps` steps. The ring crosses several levels, and the
        slowest decides. Where it is shared, all rings that leave a group of its devices share it.
        """
        key = tuple(bits), steps, collective
        if key not in self._rings:
            self._rings[key] = self._ring(*key)
        start, bandwidth, outermost = self._rings[key]
        if outermost is not None:
            link = self.cluster.links[outermost]
            times = link.collective(collective, self.group(bits), sent, steps)
            share = min(times.bandwidth / self.streams(bits, outermost), times.alone)
            start, bandwidth = max(start, float(times.start)), min(bandwidth, share)
        return start, float(sent / bandwidth)

    @cached_property
    def _rings(self) -> dict[object, tuple[float, float, int | None]]:
        return {}

    def _ring(
        self, bits: tuple[int, ...], steps: int, collective: Collective
    ) -> tuple[float, float, int | None]:
        """Start and bandwidth of a ring on straight lines, and a level whose times are measured."""
        crossed = self.between_replicas.union(self.levels[bit] for bit in bits)
        start, bandwidth, outermost = 0.0, inf, None
        for level in crossed if steps >= 1 else ():
            link = self.cluster.links[level]
            if level == max(crossed) and link.curves:
                outermost = level
                continue
            times = link.line(collective, steps)
            share = min(times.bandwidth / self.streams(bits, level), times.alone)
            start, bandwidth = max(start, float(times.start)), min(bandwidth, share)
        return start, bandwidth, outermost

    def streams(self, bits: Sequence[int], level: int) -> int:
        """Number of rings over these bits that share a port of a level."""
        links, behind = self.cluster.links, self.cluster.devices_behind(level)
        inside = sum(links[self.levels[bit]].joins <= behind for bit in bits)
        return max(1, min(self.devices, behind) >> inside)

    def group(self, bits: Sequence[int]) -> int:
        """Number of devices of a collective over these bits."""
        return self.replicas << len(bits)

    def all_reduce(self, bits: Sequence[int], size: float, calls: float = 1.0) -> float:
        """Seconds of a ring all-reduce of `size` bytes on each device.

        One that is coalesced with others of the same devices has a part of a call: of its start.
        """
        group = self.group(bits)
        sent, steps = 2 * (group - 1) / group * size, 2 * (group - 1)
        return self.ring(bits, sent, steps, "all_reduce", calls)

    def all_gather(self, bits: Sequence[int], size: float) -> float:
        """Seconds of a ring all-gather of `size` bytes from each device."""
        group = self.group(bits)
        return self.ring(bits, (group - 1) * size, group - 1, "all_gather")

    def reduce_scatter(self, bits: Sequence[int], size: float) -> float:
        """Seconds of a ring reduce-scatter that leaves `size` bytes on each device."""
        group = self.group(bits)
        return self.ring(bits, (group - 1) * size, group - 1, "reduce_scatter")
