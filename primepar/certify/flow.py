"""Who meets whom in a program, what every instruction waits for, and what it races with.

Part of the checker of certificates: it knows the grammar of programs and nothing of the proofs.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest
from typing import Any

from primepar.certify.contents import meet
from primepar.schedule import program as op
from primepar.schedule.meaning import Meaning
from primepar.schedule.program_uses import uses, writes

Place = tuple[int, int]
"""(rank, instruction)."""
Side = tuple[int, int, int]
"""(rank, instruction, place in its group)."""
Sending = op.Send | op.ISend
Post = op.Send | op.Recv | op.ISend | op.IRecv | op.Collective
"""One side of a message, or one member's call of a collective."""


def posts(node: op.Instruction) -> tuple[Post, ...]:
    """The messages of an instruction, or its collective."""
    if isinstance(node, op.Group):
        return node.body
    return (node,) if isinstance(node, Post) else ()


def changes(node: op.Instruction, rank: int) -> tuple[str, ...]:
    """Blocks that are not the same after an instruction: to free or evict one is to change it."""
    return (node.block,) if isinstance(node, op.Free | op.Evict) else writes(node, rank)


class Flow:
    """What meets what: messages in order per channel, collectives in order per ranks.

    `met` has all sides of a message or collective for each of them; what meets nothing is not in
    it.
    """

    def __init__(self, program: op.Program, buffered: bool) -> None:
        self.program, self.buffered, self.meaning = program, buffered, Meaning(program)
        self.met: dict[Side, tuple[Side, ...]] = {}
        lines: dict[tuple[Any, tuple[int, ...]], dict[int, list[Side]]] = {}
        for rank, nodes in enumerate(program.programs):
            for index, node in enumerate(nodes):
                for part, post in enumerate(posts(node)):
                    line, role = _line(post, rank)
                    lines.setdefault(line, {}).setdefault(role, []).append((rank, index, part))
        for (_, roles), sides in lines.items():
            for met in zip_longest(*(sides.get(role, []) for role in roles)):
                if None not in met and _agree([self.post(side) for side in met]):
                    self.met |= dict.fromkeys(met, met)

    def node(self, place: Place | Side) -> op.Instruction:
        """The instruction at a place."""
        return self.program.programs[place[0]][place[1]]

    def post(self, side: Side) -> Post:
        """The message or collective at a place."""
        return posts(self.node(side))[side[2]]

    def awaited(self, rank: int) -> list[list[Side | None] | None]:
        """For each instruction what must have started before it returns; None if it never waits.

        What is None in a list never comes. A buffered send waits for nothing.
        """
        pending: dict[str, list[Side | None]] = {}
        found: list[list[Side | None] | None] = []
        for index, node in enumerate(self.program.programs[rank]):
            wants = [
                want
                for part, post in enumerate(posts(node))
                if not (self.buffered and isinstance(post, Sending))
                for want in self.met.get((rank, index, part), (None,))
            ]
            request = getattr(node, "request", None)
            if isinstance(node, op.Wait):
                found.append(pending.pop(node.request, [None]))
            elif request is not None:
                pending[request] = wants
                found.append(None)
            else:
                found.append(wants if posts(node) else None)
        return found

    def lonely(self, place: Place) -> bool:
        """Whether a message or collective at a place meets nothing."""
        return any((*place, part) not in self.met for part in range(len(posts(self.node(place)))))

    def races(self, rank: int) -> set[tuple[int, str]]:
        """(instruction, block or request) of what races.

        That is what touches a block in flight, a request that is never waited for, and a block
        that shares elements with another one that the same collective brings.
        """
        flying: dict[str, tuple[int, op.Instruction]] = {}
        lost: list[op.Instruction] = []
        found: set[tuple[int, str]] = set()
        for index, node in enumerate(self.program.programs[rank]):
            if isinstance(node, op.Wait):
                flying.pop(node.request, None)
                continue
            inside = [*(each for _, each in flying.values()), *lost]
            for part in posts(node) or (node,):
                found |= {(index, name) for each in inside for name in _clash(part, each, rank)}
                inside += [part] * isinstance(node, op.Group)
            if isinstance(node, op.Collective):
                found |= {(index, name) for name in self._doubled(writes(node, rank))}
            request = getattr(node, "request", None)
            if request is not None:
                if request in flying:
                    found.add((flying[request][0], request))
                    lost.append(flying[request][1])
                flying[request] = (index, node)
        return found | {(index, request) for request, (index, _) in flying.items()}

    def _doubled(self, blocks: tuple[str, ...]) -> Iterator[str]:
        """Blocks that share elements with one before them."""
        before: dict[str, list[Any]] = {}
        for block in blocks:
            at = self.meaning.place(block)
            boxes = before.setdefault(at.tensor, []) if at else []
            if at and any(meet(at.box, box) is not None for box in boxes):
                yield block
            boxes += [at.box] if at else []


def _line(post: Post, rank: int) -> tuple[tuple[Any, tuple[int, ...]], int]:
    """The line in which posts of one role meet those of the others in order, and the own role.

    The roles of a message are 1, its sender, and 0; those of a collective are the ranks.
    """
    if isinstance(post, op.Collective):
        return (post.communicator, tuple(sorted(post.group))), rank
    sends = isinstance(post, Sending)
    ends = (rank, post.peer) if sends else (post.peer, rank)
    return ((*ends, post.communicator), (1, 0)), int(sends)


def _agree(met: list[Post]) -> bool:
    """Whether posts are one: of one tag, or of one kind, order, root, reduction and length."""
    claims = {
        (
            getattr(post, "tag", type(post)),
            *(getattr(post, name, None) for name in ("group", "root", "reduction")),
        )
        for post in met
    }
    lists = [getattr(post, name, met) for post in met for name in ("blocks", "into")]
    return len(claims) == 1 and all(len(names) == len(met) for names in lists)


def _clash(node: op.Instruction, flying: op.Instruction, rank: int) -> set[str]:
    """What an instruction reads while it arrives, or changes while it leaves or arrives."""
    taken, given = set(uses(flying, rank)), set(writes(flying, rank))
    return given & set(uses(node, rank)) | (taken | given) & set(changes(node, rank))
