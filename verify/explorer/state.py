"""The state of one rank in the explorer: its memory and what it has in flight."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from primepar.schedule.program import Collective
from primepar.verify.explorer.contents import CellSums

Channel = tuple[int, int, str]
Key = tuple[str, tuple[int, ...]]


@dataclass
class Side:
    """One side of a message: what it carries is read when it is carried, unless it is buffered."""

    rank: int
    block: str
    tag: int
    payload: CellSums | None = None


class Flight(NamedTuple):
    """What a rank has posted: blocks that it gives and gets, and what they wait for."""

    reads: tuple[str, ...]
    writes: tuple[str, ...]
    number: int
    channel: Channel | None = None
    node: Collective | None = None


@dataclass
class RankState:
    """One rank: where it is, what it holds, and what it has in flight."""

    at: int = 0
    inside: bool = False
    memory: dict[str, CellSums] = field(default_factory=dict)
    host: dict[str, CellSums] = field(default_factory=dict)
    known: set[str] = field(default_factory=set)
    flying: dict[str | int, Flight] = field(default_factory=dict)
    phase: str | None = None
    aligning: bool = False

    def copy(self) -> RankState:
        """Another rank in the same state."""
        return RankState(self.at, self.inside, dict(self.memory), dict(self.host), set(self.known),
                     dict(self.flying), self.phase, self.aligning)  # fmt: skip
