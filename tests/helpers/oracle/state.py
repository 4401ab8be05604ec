"""The state of one rank in the explorer: its memory and what it has in flight."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from oracle.contents import CellSums
from oracle.mailboxes import Side
from primepar.schedule.program import Collective

Key = tuple[str, tuple[int, ...]]


class Part(NamedTuple):
    """One of the messages of a post; a blocking instruction has no request."""

    request: str | None
    number: int


class Flight(NamedTuple):
    """A post of a rank: the blocks that it sends and receives, and what they wait for."""

    reads: tuple[str, ...]
    writes: tuple[str, ...]
    number: int
    """Of a collective: how many calls of its members came before."""
    side: Side | None = None
    node: Collective | None = None


@dataclass
class RankState:
    """One rank: its next instruction, its memory, and what it has in flight."""

    index: int = 0
    inside: bool = False
    memory: dict[str, CellSums] = field(default_factory=dict)
    host: dict[str, CellSums] = field(default_factory=dict)
    known: set[str] = field(default_factory=set)
    in_flight: dict[Part, Flight] = field(default_factory=dict)
    phase: str | None = None
    aligning: bool = False
    posted: int = 0
    """Messages that were posted."""

    def copy(self) -> RankState:
        """Another rank in the same state."""
        return RankState(self.index, self.inside, dict(self.memory), dict(self.host),
                     set(self.known), dict(self.in_flight), self.phase, self.aligning,
                     self.posted)  # fmt: skip
