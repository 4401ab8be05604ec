"""Who meets whom in a program, what every instruction waits for, and what it races with."""

from __future__ import annotations

from itertools import combinations, zip_longest
from typing import Any

from primepar.certify.data import Names
from primepar.schedule import program as op
from primepar.schedule.program_uses import uses, writes

Place = tuple[int, int]
"""(rank, instruction)."""
Side = tuple[int, int, int]
"""(rank, instruction, place in its group)."""
Post = op.Send | op.Recv | op.ISend | op.IRecv | op.Collective
"""One side of a message, or one member's call of a collective."""


def posts(node: op.Instruction) -> tuple[Post, ...]:
    """The messages of an instruction, or its collective."""
    if isinstance(node, op.Group):
        return node.body
    return (node,) if isinstance(node, Post) else ()


class Flow:
    """What meets what: messages in order per channel, collectives in order per ranks.

    `met` has all sides of a message or collective for each of them that meets the others. `wants`
    says of each instruction that waits what must have started before it returns, None for what
    never comes. `posted` says of each wait what it finishes.
    """

    def __init__(self, program: op.Program, names: Names, buffered: bool) -> None:
        self.program, self._names, self._buffered = program, names, buffered
        self.met: dict[Side, tuple[Side, ...]] = {}
        self.lonely: set[Place] = set()
        """Where a message or collective meets nothing."""
        self._match()
        self.posted: dict[Place, Place] = {}
        self.wants: dict[Place, list[Side | None]] = {}
        for rank, nodes in enumerate(program.programs):
            pending: dict[str, Place] = {}
            for index, node in enumerate(nodes):
                request = getattr(node, "request", None)
                if isinstance(node, op.Wait) and node.request in pending:
                    self.posted[rank, index] = pending.pop(node.request)
                    self.wants[rank, index] = self._wanted(self.posted[rank, index])
                elif isinstance(node, op.Wait):
                    self.wants[rank, index] = [None]
                elif request is not None:
                    pending[request] = rank, index
                elif posts(node):
                    self.wants[rank, index] = self._wanted((rank, index))

    def _match(self) -> None:
        lines: dict[tuple[Any, tuple[int, ...]], dict[int, list[Side]]] = {}
        for rank, nodes in enumerate(self.program.programs):
            for index, node in enumerate(nodes):
                for part, post in enumerate(posts(node)):
                    line, role = _line(post, rank)
                    lines.setdefault(line, {}).setdefault(role, []).append((rank, index, part))
        for (_, roles), sides in lines.items():
            for met in zip_longest(*(sides.get(role, []) for role in roles)):
                if None not in met and _agree([posts(self.node(side))[side[2]] for side in met]):
                    self.met |= dict.fromkeys(met, met)
        sides_ = [side for own in lines.values() for line in own.values() for side in line]
        self.lonely = {side[:2] for side in sides_ if side not in self.met}

    def node(self, place: Place | Side) -> op.Instruction:
        """The instruction at a place."""
        return self.program.programs[place[0]][place[1]]

    def _wanted(self, place: Place) -> list[Side | None]:
        """All sides of what is posted at a place; a buffered send waits for nothing."""
        return [
            want
            for part, post in enumerate(posts(self.node(place)))
            if not (self._buffered and isinstance(post, op.Send | op.ISend))
            for want in self.met.get((*place, part), (None,))
        ]

    def races(self, rank: int) -> set[tuple[int, str]]:
        """(instruction, block or request) of what touches a block in flight, or is left in flight.

        A collective races with itself where two blocks that it brings share elements.
        """
        nodes, found = self.program.programs[rank], set[tuple[int, str]]()
        ends = {post: index for (owner, index), (_, post) in self.posted.items() if owner == rank}
        for index, node in enumerate(nodes):
            if isinstance(node, op.Group):
                pairs = combinations(node.body, 2)
                found |= {(index, name) for one, two in pairs for name in _clash(two, one, rank)}
            if isinstance(node, op.Collective):
                found |= {(index, name) for name in self._names.doubled(writes(node, rank))}
            request = getattr(node, "request", None)
            if request is None or isinstance(node, op.Wait):
                continue
            if index not in ends:
                found.add((index, request))
            for later in range(index + 1, ends.get(index, len(nodes))):
                for part in posts(nodes[later]) or (nodes[later],):
                    found |= {(later, name) for name in _clash(part, node, rank)}
        return found


def _line(post: Post, rank: int) -> tuple[tuple[Any, tuple[int, ...]], int]:
    """The line in which posts of one role meet those of the others in order, and the own role.

    The roles of a message are 1, its sender, and 0; those of a collective are the ranks.
    """
    if isinstance(post, op.Collective):
        return (post.communicator, tuple(sorted(post.group))), rank
    sends = isinstance(post, op.Send | op.ISend)
    ends = (rank, post.peer) if sends else (post.peer, rank)
    return ((*ends, post.communicator), (1, 0)), int(sends)


def _agree(met: list[Post]) -> bool:
    """Whether posts are one: of one tag, or of one kind, order, root, reduction and length."""
    names = ("group", "root", "reduction")
    claims = {
        (getattr(post, "tag", type(post)), *(getattr(post, name, None) for name in names))
        for post in met
    }
    lists = [getattr(post, name, met) for post in met for name in ("blocks", "into")]
    return len(claims) == 1 and all(len(blocks) == len(met) for blocks in lists)


def _clash(node: op.Instruction, flying: op.Instruction, rank: int) -> set[str]:
    """What an instruction reads while it arrives, or changes while it leaves or arrives."""
    taken, given, changed = (set(each) for each in (
        uses(flying, rank), writes(flying, rank), writes(node, rank)))  # fmt: skip
    if isinstance(node, op.Free | op.Evict):
        changed = {node.block}
    return given & set(uses(node, rank)) | (taken | given) & changed
