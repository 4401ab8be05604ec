"""The logical clock of the emulated devices: how many units a product and a transfer take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class LogicalClock:
    """Units of time of a run; by default every product and every transfer takes one.

    `phases` has the units of phases by the last word of their names: `{"gradient": 2}` is for
    `layer3.gradient` too. `transfer` is what a message takes after both ends are posted, and a copy
    between a device and its host.
    """

    transfer: float = 1.0
    phases: Mapping[str, float] = field(default_factory=dict)

    def units(self, phase: str) -> float:
        """Return the units that a sub-operator of a phase takes."""
        return self.phases.get(phase.rpartition(".")[2], 1.0)
