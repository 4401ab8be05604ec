"""Events of a run: what every rank did, and when. Every executor emits them."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

Track = Literal["compute", "communication"]
TRACKS: tuple[Track, ...] = ("compute", "communication")


class Event(Struct, frozen=True):
    """One thing that one rank did."""

    rank: int
    track: Track
    op: str
    """The instruction's name, `compute`, `isend`, ..."""
    block: str
    """The block that it wrote, sent or received."""
    start: float
    """Seconds since the start of the run; steps of a logical clock where it was emulated."""
    end: float
    phase: str = ""
    peer: int | None = None
    elements: int = 0
    """Elements that left this rank, 0 for all but messages and collectives."""
    sub_operator: dict[str, int] = {}
    reads: tuple[str, ...] = ()
    """The blocks that it read, where the run was emulated."""
    group: tuple[int, ...] = ()
    """The ranks of a collective."""
