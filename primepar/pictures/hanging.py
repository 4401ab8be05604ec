"""Where the ranks of a program hang, for a picture of it: read off the wait graph."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from primepar.schedule.evidence import Place, Unmatched
from primepar.schedule.matching import Matches
from primepar.schedule.program import Program
from primepar.schedule.waits import NEVER, START, WaitGraph, levels


class Hang(NamedTuple):
    """Where a rank does not go on."""

    instruction: int
    """Index of the instruction that does not return."""
    awaits: tuple[int, ...]
    """Ranks that would have to go on first; none where no rank can help."""


def hangs(program: Program) -> dict[int, Hang]:
    """Rank -> where it hangs, of the ranks that do not come to their end."""
    graph = WaitGraph(Matches(program))
    level = levels(graph)
    first: dict[int, Place] = {}
    for place, node in graph.returns.items():
        if level[node] == NEVER:
            first.setdefault(place[0], place)
    return {
        rank: Hang(place[1], tuple(dict.fromkeys(_awaited(graph, level, place))))
        for rank, place in first.items()
    }


def _awaited(graph: WaitGraph, level: Sequence[int], place: Place) -> Iterator[int]:
    """Yield the ranks that have not come to what an instruction waits for, or never will."""
    for side in graph.needs(place):
        start = graph.starts[side[0]][side[1]]
        if start != START and level[start] == NEVER:
            yield side[0]
    sides = graph.matches.awaited(place)
    for fault in graph.matches.faults:
        if isinstance(fault, Unmatched) and fault.side in sides:
            yield fault.peer
