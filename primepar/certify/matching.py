"""Who meets whom in a program, what every instruction waits for, and what it races with."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, combinations, zip_longest
from typing import Any

from primepar.certify.block_contents import ProgramNames
from primepar.schedule import program as op
from primepar.schedule.program_uses import frees, uses, writes

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


class Matches:
    """What meets what: messages in order per channel, collectives in order per ranks.

    `met` maps each side to all sides of its message or collective; `lonely` are the places of
    sides that meet nothing. `wants` maps each instruction that waits to what must have started
    before it returns, None for what never comes; `posted` maps each wait to what it finishes.
    """

    def __init__(self, program: op.Program, names: ProgramNames, buffered: bool) -> None:
        self.program, self._names, self._buffered = program, names, buffered
        self.met: dict[Side, tuple[Side, ...]] = {}
        self.lonely = {side[:2] for side in self._match() if side not in self.met}
        self.posted: dict[Place, Place] = {}
        self.wants: dict[Place, list[Side | None]] = {}
        for rank, nodes in enumerate(program.programs):
            pending: dict[str, Place] = {}
            for index, node in enumerate(nodes):
                here, request = (rank, index), getattr(node, "request", None)
                if isinstance(node, op.Wait):
                    post = pending.pop(node.request, None)
                    self.posted |= {here: post} if post else {}
                    self.wants[here] = self._wanted(post) if post else [None]
                elif request is not None:
                    pending[request] = here
                elif posts(node):
                    self.wants[here] = self._wanted(here)

    def _match(self) -> Iterator[Side]:
        """All sides; those that meet others are in `met` then."""
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
            yield from chain(*sides.values())

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

    def races(self) -> set[tuple[int, int, str]]:
        """(rank, instruction, block or request) of what touches a block in flight, or stays there.

        A collective races with itself where two blocks that it brings share elements.
        """
        found: set[tuple[int, int, str]] = set()
        ends = {post: wait[1] for wait, post in self.posted.items()}
        for rank, nodes in enumerate(self.program.programs):
            for index, node in enumerate(nodes):
                brought = writes(node, rank) if isinstance(node, op.Collective) else ()
                raced = list(self._names.doubled(brought))
                if isinstance(node, op.Group):
                    pairs = combinations(node.body, 2)
                    raced += [name for one, two in pairs for name in _clash(two, one, rank)]
                request = getattr(node, "request", None)
                if request is not None and not isinstance(node, op.Wait):
                    raced += [] if (rank, index) in ends else [request]
                    for later in range(index + 1, ends.get((rank, index), len(nodes))):
                        for part in posts(nodes[later]) or (nodes[later],):
                            found |= {(rank, later, name) for name in _clash(part, node, rank)}
                found |= {(rank, index, name) for name in raced}
        return found


def _line(post: Post, rank: int) -> tuple[tuple[Any, tuple[int, ...]], int]:
    """Within what posts meet in order, and the own role: of a message 1 sends, 0 receives."""
    if isinstance(post, op.Collective):
        return (post.communicator, tuple(sorted(post.group))), rank
    sends = isinstance(post, op.Send | op.ISend)
    ends = (rank, post.peer) if sends else (post.peer, rank)
    return ((*ends, post.communicator), (1, 0)), int(sends)


def _agree(met: list[Post]) -> bool:
    """Whether posts are one: of one tag, or of one kind, order, root, reduction and length."""
    fields = ("group", "root", "reduction")
    claims = {(getattr(post, "tag", type(post)), *(getattr(post, field, None) for field in fields))
              for post in met}  # fmt: skip
    lists = [getattr(post, name, met) for post in met for name in ("blocks", "into")]
    return len(claims) == 1 and all(len(blocks) == len(met) for blocks in lists)


def _clash(node: op.Instruction, flying: op.Instruction, rank: int) -> set[str]:
    """What an instruction reads while it arrives, or changes while it leaves or arrives."""
    taken, given = set(uses(flying, rank)), set(writes(flying, rank))
    changed = {*writes(node, rank), *frees(node)}
    return given & set(uses(node, rank)) | (taken | given) & changed
