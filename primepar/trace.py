"""Events of a run, and the pictures made of them: text grid, SVG timeline, Chrome trace JSON.

The executors emit `Event`s; everything drawn here is a function of a list of them.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

Track = Literal["compute", "communication"]


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
