"""How long transfers take on the links of a cluster, by the device bits that they cross.

2^n devices have n bits, the outermost first. Two devices that differ in a bit are joined by that
bit's level of links; a ring is as slow as the slowest level that it crosses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from primepar.errors import ClusterError
from primepar.plan.cluster import Cluster, Collective, Link


@dataclass(frozen=True)
class ClusterLinks:
    """The links among the first 2^`bits` devices of a cluster."""

    cluster: Cluster
    bits: int

    def __post_init__(self) -> None:
        for at, link in enumerate(self.cluster.links[:-1]):
            if link.joins < self.devices and link.joins & (link.joins - 1):
                raise ClusterError(
                    f"$.links[{at}].joins: expected a power of two for a plan of {self.devices} "
                    f"devices, got {link.joins}: plan {1 << link.joins.bit_length() - 1} devices"
                )

    @property
    def devices(self) -> int:
        """Number of devices."""
        return 1 << self.bits

    @cached_property
    def links(self) -> tuple[Link, ...]:
        """Levels that two of the devices may be joined by."""
        inner = [link for link in self.cluster.links if link.joins < self.devices]
        return self.cluster.links[: len(inner) + 1]

    @cached_property
    def levels(self) -> tuple[int, ...]:
        """Level of every device bit."""
        weights = [1 << place for place in reversed(range(self.bits))]
        return tuple(
            next(at for at, link in enumerate(self.links) if weight < link.joins)
            for weight in weights
        )

    def below(self, level: int) -> int:
        """Bits, of the innermost, that the level below joins."""
        return sum(each < level for each in self.levels)

    def transfer(self, loads: Mapping[int, float]) -> float:
        """Seconds until every level has carried the bytes that its busiest port receives."""
        return max((self._seconds(level, load) for level, load in loads.items()), default=0.0)

    def _seconds(self, level: int, load: float) -> float:
        link = self.links[level]
        return link.latency + load / link.bandwidth if load else 0.0

    def ring(self, bits: Sequence[int], sent: float, turns: int, collective: Collective) -> float:
        """Seconds of a ring over the devices that differ in these bits, all such rings at once.

        Every device sends `sent` bytes in so many `turns`. Where the slowest link is shared, all
        rings that leave a group of its devices share it.
        """
        if not bits or turns < 1:
            return 0.0
        level = max(self.levels[bit] for bit in bits)
        latency, bandwidth, alone = self.links[level].ring(collective)
        share = min(bandwidth / self.streams(bits, level), alone)
        return turns * latency + sent / share

    def streams(self, bits: Sequence[int], level: int) -> int:
        """Rings over these bits that share a port of a level."""
        if not self.links[level].shared:
            return 1
        inside = sum(self.levels[bit] < level for bit in bits)
        return 1 << self.below(level) - inside

    def all_reduce(self, bits: Sequence[int], size: float) -> float:
        """Seconds of a ring all-reduce of `size` bytes on each device."""
        group = 1 << len(bits)
        return self.ring(bits, 2 * (group - 1) / group * size, 2 * (group - 1), "all_reduce")

    def all_gather(self, bits: Sequence[int], size: float) -> float:
        """Seconds of a ring all-gather of `size` bytes from each device, or a reduce-scatter."""
        group = 1 << len(bits)
        return self.ring(bits, (group - 1) * size, group - 1, "all_gather")
