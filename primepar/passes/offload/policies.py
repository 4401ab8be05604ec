"""Which chunk to evict: the one with the furthest next use, or the least recently used one.

A trace lists for every moment of a step the chunks that are used together. The first step records
it, and every later step has the same one, so the next use of each chunk is known (PatrickStar:
warm-up). A chunk without a later use in this step is used next in the following step. Furthest next
use is Belady's rule (1966). It makes the fewest transfers where all chunks have one size.
Example: two chunks fit, and the trace is a, b, c, a. At c both a and b could go; a is used in the
next moment and b only in the next step, so b is evicted.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Hashable, Mapping, Sequence

Trace = Sequence[Sequence[Hashable]]
"""The chunks that are used at every moment of a step."""
Uses = Mapping[Hashable, Sequence[int]]
"""Chunk -> the moments at which it is used, in order."""
Policy = Callable[[Uses, int, Hashable, int], int]
"""(uses, moments in a step, chunk, moment) -> a rank; the chunk with the largest is evicted."""


def uses_of(trace: Trace) -> dict[Hashable, list[int]]:
    """Return for every chunk of a trace its moments."""
    uses: dict[Hashable, list[int]] = {}
    for moment, chunks in enumerate(trace):
        for chunk in dict.fromkeys(chunks):
            uses.setdefault(chunk, []).append(moment)
    return uses


def furthest_next_use(uses: Uses, moments: int, chunk: Hashable, moment: int) -> int:
    """Rank a chunk by its next use after a moment, which may be in the next step."""
    known = uses.get(chunk, ())
    place = bisect_right(known, moment)
    if place < len(known):
        return known[place]
    return moments + known[0] if known else 2 * moments


def least_recently_used(uses: Uses, moments: int, chunk: Hashable, moment: int) -> int:
    """Rank a chunk by the time since its last use, which may be in the step before."""
    known = uses.get(chunk, ())
    place = bisect_right(known, moment) - 1
    if place >= 0:
        return moment - known[place]
    return moment + moments - known[-1] if known else 2 * moments


POLICIES: dict[str, Policy] = {
    "furthest next use": furthest_next_use,
    "least recently used": least_recently_used,
}


def transfers(trace: Trace, room: int, policy: Policy) -> int:
    """Return the transfers of a step: fetches, and as many evictions.

    Chunks have one size, `room` of them fit on the device, and all are on the host between steps.
    Raises `ValueError` if a moment uses more chunks than fit.
    """
    uses, fetched = uses_of(trace), 0
    here: set[Hashable] = set()
    for moment, chunks in enumerate(trace):
        needed = dict.fromkeys(chunks)
        if len(needed) > room:
            raise ValueError(f"expected room for {len(needed)} chunks, got {room}")
        missing = [chunk for chunk in needed if chunk not in here]
        while len(here) + len(missing) > room:
            idle = sorted((chunk for chunk in here if chunk not in needed), key=str)
            here.remove(max(idle, key=lambda chunk: policy(uses, len(trace), chunk, moment)))
        here.update(missing)
        fetched += len(missing)
    return 2 * fetched
