"""The state of one rank in the explorer: its memory and what it has in flight."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from primepar.schedule.program import Collective, Message
from primepar.verify.explorer.contents import CellSums

Channel = tuple[int, int, str]
Key = tuple[str, tuple[int, ...]]


@dataclass
class Side:
    """One side of a message; what is sent is read at its delivery, unless it is buffered."""

    rank: int
    message: Message
    payload: CellSums | None = None


class Flight(NamedTuple):
    """A post of a rank: the blocks that it sends and receives, and what they wait for."""

    reads: tuple[str, ...]
    writes: tuple[str, ...]
    number: int
    channel: Channel | None = None
    node: Collective | None = None


@dataclass
class RankState:
    """One rank: its next instruction, its memory, and what it has in flight."""

    index: int = 0
    inside: bool = False
    memory: dict[str, CellSums] = field(default_factory=dict)
    host: dict[str, CellSums] = field(default_factory=dict)
    known: set[str] = field(default_factory=set)
    in_flight: dict[str | int, Flight] = field(default_factory=dict)
    phase: str | None = None
    aligning: bool = False

    def copy(self) -> RankState:
        """Another rank in the same state."""
        return RankState(self.index, self.inside, dict(self.memory), dict(self.host),
                     set(self.known), dict(self.in_flight), self.phase, self.aligning)  # fmt: skip
