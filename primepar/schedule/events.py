"""Events of a run: what every rank did, and when. Every executor emits them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple

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


# How much of the communication of a run is hidden: it takes place while the rank computes.
#
# Every executor emits events, so this is defined once for the emulator, the simulator and torch.

Interval = tuple[float, float]


class Communication(NamedTuple):
    """The communication of one rank, in the unit of its events."""

    total: float
    """Time in which at least one message or collective was in flight."""
    hidden: float
    """The part of it in which the rank computed."""

    @property
    def share(self) -> float:
        """The hidden part of the total; 1 if there is no communication."""
        return float(self.hidden / self.total) if self.total else 1.0


def communication(events: Iterable[Event]) -> list[Communication]:
    """Return the communication of every rank, from 0 to the last one with an event.

    A wait is no communication: the message that it waits for has an event of its own. Times in
    which several transfers of a rank are in flight count once. In a trace of torch a transfer is in
    flight from its post to the end of its wait.
    """
    computing: dict[int, list[Interval]] = {}
    moving: dict[int, list[Interval]] = {}
    for event in events:
        intervals = computing if event.track == "compute" else moving
        kept = intervals.setdefault(event.rank, [])
        if event.op != "wait" and event.end > event.start:
            kept.append((event.start, event.end))
    ranks = range(1 + max((*computing, *moving), default=-1))
    return [_of(union(computing.get(rank, ())), union(moving.get(rank, ()))) for rank in ranks]


def together(ranks: Iterable[Communication]) -> Communication:
    """Return the sums over ranks."""
    known = list(ranks)
    return Communication(sum(rank.total for rank in known), sum(rank.hidden for rank in known))


def _of(busy: list[Interval], travel: list[Interval]) -> Communication:
    return Communication(_length(travel), _length(_common(busy, travel)))


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """Return the union of intervals as disjoint ones, in order."""
    joined: list[Interval] = []
    for start, end in sorted(intervals):
        if joined and start <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(end, joined[-1][1])
        else:
            joined.append((start, end))
    return joined


def _common(first: list[Interval], second: list[Interval]) -> list[Interval]:
    """Return the intersection of two lists of disjoint intervals, each in order."""
    common: list[Interval] = []
    i = j = 0
    while i < len(first) and j < len(second):
        start, end = max(first[i][0], second[j][0]), min(first[i][1], second[j][1])
        if start < end:
            common.append((start, end))
        if first[i][1] < second[j][1]:
            i += 1
        else:
            j += 1
    return common


def _length(intervals: list[Interval]) -> float:
    return sum((end - start for start, end in intervals), 0)
