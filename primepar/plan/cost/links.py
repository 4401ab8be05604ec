"""Seconds of transfers on the links of a cluster, by the device bits that they cross.

The numbers of 2^n devices have n bits, the outermost first. Two devices that differ in a bit are
joined by that bit's level of links. A ring is as slow as the slowest level that it crosses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from primepar.errors import ClusterError
from primepar.plan.cluster import Cluster, Collective, Link


@dataclass(frozen=True)
class ClusterLinks:
    """The links among the first 2^`bits` devices of a cluster."""

    cluster: Cluster
    bits: int

    def __post_init__(self) -> None:
        for level, link in enumerate(self.cluster.links[:-1]):
            if link.joins < self.devices and link.joins & (link.joins - 1):
                raise ClusterError(
                    f"$.links[{level}].joins: expected a power of two for a plan of {self.devices} "
                    f"devices, got {link.joins}: plan {1 << link.joins.bit_length() - 1} devices"
                )

    @property
    def devices(self) -> int:
        """Number of devices."""
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

    def below(self, level: int) -> int:
        """Number of the innermost bits, those joined by the levels below this one."""
        return sum(bit_level < level for bit_level in self.levels)

    def transfer(self, loads: Mapping[int, tuple[float, int]]) -> float:
        """Seconds until every level has carried the bytes and messages of its busiest port."""
        return max((self.arrival(level, *load) for level, load in loads.items()), default=0.0)

    def arrival(self, level: int, load: float, messages: int) -> float:
        """Seconds until a port of a level has received bytes in some messages at once."""
        if not load:
            return 0.0
        link = self.by_level[level]
        return float(link.message(load) + load / link.bandwidth + (messages - 1) * link.gap)

    def rearranged(self, size: Any) -> Any:
        """Seconds to copy `size` bytes of blocks; 0 where the cluster has no such time."""
        times = self.cluster.operators.get("join")
        return 0.0 if times is None else times.launch + 2 * size / times.memory_bandwidth

    def ring(
        self, bits: Sequence[int], sent: float, steps: int, collective: Collective,
        calls: float = 1.0,
    ) -> float:  # fmt: skip
        """Seconds of a ring over the devices that differ in these bits, all such rings at once.

        Every device sends `sent` bytes in `steps` steps. Where the slowest link is shared, all
        rings that leave a group of its devices share it.
        """
        if not bits or steps < 1:
            return 0.0
        level = max(self.levels[bit] for bit in bits)
        times = self.by_level[level].collective(collective, self.group(bits), sent, steps)
        share = min(times.bandwidth / self.streams(bits, level), times.alone)
        return float(calls * times.start + sent / share)

    def streams(self, bits: Sequence[int], level: int) -> int:
        """Number of rings over these bits that share a port of a level."""
        if not self.by_level[level].shared:
            return 1
        inside = sum(self.levels[bit] < level for bit in bits)
        return 1 << self.below(level) - inside

    def group(self, bits: Sequence[int]) -> int:
        """Number of devices of a collective over these bits."""
        return 1 << len(bits)

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
