"""What the instructions of a section make and need, across ranks, before any pass.

An instruction is known by its rank and its position. A collective is one instruction on each
member, and each needs the others; a receive needs the send that it matches (`passes.calls`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from primepar.passes.block_uses import Rank, request_of
from primepar.passes.calls import Meeting, meetings
from primepar.schedule.program import AllGather, Broadcast, Free, Instruction, Wait

Lists = Sequence[Sequence[Instruction]]


class InstructionPlace(NamedTuple):
    """Rank and position of an instruction."""

    rank: int
    position: int


class Version(NamedTuple):
    """A block on a rank as an instruction left it; without a maker as it was before.

    A block that an all-gather or a broadcast sends stays as it was.
    """

    rank: int
    block: str
    maker: InstructionPlace | None


@dataclass
class DataFlow:
    """The versions that every instruction reads, and those that exist at the end."""

    lists: Lists
    reads: dict[InstructionPlace, list[Version]] = field(default_factory=dict)
    needs: dict[InstructionPlace, set[InstructionPlace]] = field(default_factory=dict)
    """Instructions of other ranks, and posts, that an instruction needs to have its effect."""
    made: dict[InstructionPlace, list[Version]] = field(default_factory=dict)
    users: dict[Version, list[InstructionPlace]] = field(default_factory=dict)
    ends: list[dict[str, Version]] = field(default_factory=list)
    """For every rank, the blocks that are there at the end."""

    def __post_init__(self) -> None:
        for rank, nodes in enumerate(self.lists):
            self._follow(rank, nodes)
        # All that meet in a message or a call need one another.
        sides: dict[Meeting, list[InstructionPlace]] = {}
        for rank, nodes in enumerate(self.lists):
            for position, met in enumerate(meetings(nodes, rank)):
                for meeting in met:
                    sides.setdefault(meeting, []).append(InstructionPlace(rank, position))
        for places in sides.values():
            for place in places:
                self.needs[place].update(places)

    def _follow(self, rank: int, nodes: Sequence[Instruction]) -> None:
        """Follow the blocks of one rank."""
        here: dict[str, Version] = {}
        posts: dict[str, InstructionPlace] = {}
        used_by = Rank(rank)
        for position, node in enumerate(nodes):
            place = InstructionPlace(rank, position)
            if isinstance(node, Wait):
                self.needs[place] = {posts[node.request]}
                self.reads[place], self.made[place] = [], []
                continue
            self.needs[place] = set()
            used = used_by.touched(node)
            names = dict.fromkeys((*used.reads, *used.gone))
            known = [
                here.get(name, Version(rank, name, None))
                for name in names
                if name in here or name not in used.made
            ]
            self.reads[place] = known
            for version in known:
                self.users.setdefault(version, []).append(place)
            for name in used.gone:
                here.pop(name, None)
            same = used.reads if isinstance(node, AllGather | Broadcast) else ()
            self.made[place] = [
                Version(rank, name, place) for name in used.made if name not in same
            ]
            here.update({version.block: version for version in self.made[place]})
            request = request_of(node)
            if request is not None:
                posts[request] = place
        self.ends.append(here)

    def stays(self, version: Version) -> bool:
        """Return whether a version is still there at the end, unchanged."""
        ends = self.ends[version.rank]
        if version.maker is not None or version.block in ends:
            return ends.get(version.block) == version
        return not any(
            isinstance(self.lists[place.rank][place.position], Free)
            for place in self.users.get(version, ())
        )
