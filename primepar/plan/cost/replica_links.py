"""Collectives over the replicas of a stage, which sum the gradients of its parameters.

Replica r of a stage has the r-th of its groups of 2^n devices, and a device sums with those of all
replicas that hold the same block. There may be any number of replicas and of stages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from primepar.plan.cluster import Cluster, Collective
from primepar.plan.cost.links import ClusterLinks


@dataclass(frozen=True)
class ReplicaLinks(ClusterLinks):
    """The links of `stages` stages of `replicas` groups of 2^`bits` devices each.

    Collectives are over all replicas, and in each over the devices that differ in some bits.
    """

    replicas: int = 1
    stages: int = 1

    @cached_property
    def across(self) -> int:
        """The slowest level of links between the replicas of some stage."""
        size = self.replicas * self.devices
        return max(level_between(self.cluster, stage * size, (stage + 1) * size - 1)
                   for stage in range(self.stages))  # fmt: skip

    def group(self, bits: Sequence[int]) -> int:
        """Number of devices of a collective."""
        return self.replicas << len(bits)

    def ring(
        self, bits: Sequence[int], sent: float, steps: int, collective: Collective,
        calls: float = 1.0,
    ) -> float:  # fmt: skip
        """Seconds of a ring over the replicas, and the devices that differ in these bits."""
        if self.replicas == 1:
            return super().ring(bits, sent, steps, collective, calls)
        level = max((self.across, *(self.levels[bit] for bit in bits)))
        link = self.cluster.links[level]
        times = link.collective(collective, self.group(bits), sent, steps)
        streams = 1
        if link.shared and level:
            below = self.cluster.links[level - 1].joins
            inside = sum(self.cluster.links[self.levels[bit]].joins <= below for bit in bits)
            streams = max(1, min(self.devices, below) >> inside)
        share = min(times.bandwidth / streams, times.alone)
        return float(calls * times.start + sent / share)


def level_between(cluster: Cluster, first: int, second: int) -> int:
    """The innermost level of links that joins two devices."""
    return next(level for level, link in enumerate(cluster.links)
                if first // link.joins == second // link.joins)  # fmt: skip
