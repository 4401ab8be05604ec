"""Matches messages and collectives; derives what each instruction waits for and races with.

Messages match in order per (source, destination, communicator), collectives in order per
(communicator, set of ranks). There are no wildcards, so the matches depend on no order of events.
For example, the second send from rank 0 to rank 1 matches the second receive of rank 1 from rank 0,
however the ranks run.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, combinations, zip_longest
from typing import Any

from primepar.certify.block_contents import ProgramNames
from primepar.schedule import program as op
from primepar.schedule.agreement import Side as StatingSide
from primepar.schedule.agreement import dispute
from primepar.schedule.program_uses import frees, uses, writes

Place = tuple[int, int]
"""(rank, instruction)."""
Side = tuple[int, int, int]
"""(rank, instruction, index in its group)."""
Post = op.Send | op.Recv | op.ISend | op.IRecv | op.Collective
"""One side of a message, or one member's call of a collective."""


def posts(node: op.Instruction) -> tuple[Post, ...]:
    """The messages of an instruction, or its collective; empty for a local instruction."""
    if isinstance(node, op.Group):
        return node.body
    return (node,) if isinstance(node, Post) else ()


class Matches:
    """The matched sides of messages and collectives, and what waits for what.

    `partners` maps each side to all sides of its message or collective; `unmatched` are the places
    of sides without partners. `awaited` maps each blocking instruction to the sides that must have
    started before it returns, None for one that never starts; `posted` maps each wait to the
    instruction that it completes.
    """

    def __init__(self, program: op.Program, names: ProgramNames, buffered: bool) -> None:
        self.program, self._names, self._buffered = program, names, buffered
        self.partners: dict[Side, tuple[Side, ...]] = {}
        self.unmatched = {side[:2] for side in self._match() if side not in self.partners}
        self.posted: dict[Place, Place] = {}
        self.awaited: dict[Place, list[Side | None]] = {}
        for rank, nodes in enumerate(program.programs):
            pending: dict[str, Place] = {}
            for index, node in enumerate(nodes):
                here, request = (rank, index), getattr(node, "request", None)
                if isinstance(node, op.Wait):
                    post = pending.pop(node.request, None)
                    self.posted |= {here: post} if post else {}
                    self.awaited[here] = self._awaited(post) if post else [None]
                elif request is not None:
                    pending[request] = here
                elif posts(node):
                    self.awaited[here] = self._awaited(here)

    def _match(self) -> Iterator[Side]:
        """Yield all sides; records in `partners` those that match."""
        channels: dict[tuple[Any, tuple[int, ...]], dict[int, list[Side]]] = {}
        for rank, nodes in enumerate(self.program.programs):
            for index, node in enumerate(nodes):
                for part, post in enumerate(posts(node)):
                    channel, role = _channel(post, rank)
                    sides = channels.setdefault(channel, {}).setdefault(role, [])
                    sides.append((rank, index, part))
        for (_, roles), queues in channels.items():
            for match in zip_longest(*(queues.get(role, []) for role in roles)):
                agrees = None not in match
                if agrees and _agree(
                    [(side[0], posts(self.node(side))[side[2]]) for side in match]
                ):
                    self.partners |= dict.fromkeys(match, match)
            yield from chain(*queues.values())

    def node(self, place: Place | Side) -> op.Instruction:
        """The instruction at a place."""
        return self.program.programs[place[0]][place[1]]

    def _awaited(self, place: Place) -> list[Side | None]:
        """All sides of the posts at a place; a buffered send waits for none."""
        return [
            side
            for part, post in enumerate(posts(self.node(place)))
            if not (self._buffered and isinstance(post, op.Send | op.ISend))
            for side in self.partners.get((*place, part), (None,))
        ]

    def races(self) -> set[tuple[int, int, str]]:
        """(rank, instruction, block) of every access to a block in flight.

        A request without a wait is reported in place of a block. A collective races with itself
        where two blocks that it delivers share elements.
        """
        races: set[tuple[int, int, str]] = set()
        ends = {post: wait[1] for wait, post in self.posted.items()}
        for rank, nodes in enumerate(self.program.programs):
            for index, node in enumerate(nodes):
                delivered = writes(node, rank) if isinstance(node, op.Collective) else ()
                raced = list(self._names.overlapping(delivered))
                if isinstance(node, op.Group):
                    pairs = combinations(node.body, 2)
                    raced += [
                        name for first, second in pairs for name in _conflicts(second, first, rank)
                    ]
                request = getattr(node, "request", None)
                if request is not None and not isinstance(node, op.Wait):
                    raced += [] if (rank, index) in ends else [request]
                    for later in range(index + 1, ends.get((rank, index), len(nodes))):
                        for part in posts(nodes[later]) or (nodes[later],):
                            races |= {(rank, later, name) for name in _conflicts(part, node, rank)}
                races |= {(rank, index, name) for name in raced}
        return races


def _channel(post: Post, rank: int) -> tuple[tuple[Any, tuple[int, ...]], int]:
    """((channel, its roles), role of this post): a message has role 1 to send and 0 to receive."""
    if isinstance(post, op.Collective):
        return (post.communicator, tuple(sorted(post.group))), rank
    sends = isinstance(post, op.Send | op.ISend)
    ends = (rank, post.peer) if sends else (post.peer, rank)
    return ((*ends, post.communicator), (1, 0)), int(sends)


def _agree(sides: list[StatingSide]) -> bool:
    """Whether posts have the same tag, or the same kind, order, root, reduction and length."""
    match = [post for _, post in sides]
    fields = ("group", "root", "reduction", "scale")
    claims = {(getattr(post, "tag", type(post)), *(getattr(post, field, None) for field in fields))
              for post in match}  # fmt: skip
    lists = [
        getattr(post, name, match)
        for post in match
        for name in ("blocks", "into")
        if not isinstance(post, op.Gather | op.Scatter)
    ]
    several = {len(getattr(post, "also", ())) for post in match}
    alike = len(claims) == len(several) == 1 and all(len(blocks) == len(match) for blocks in lists)
    return alike and dispute(sides) is None


def _conflicts(node: op.Instruction, in_flight: op.Instruction, rank: int) -> set[str]:
    """Blocks that `node` reads while they are received, or changes while they are in flight."""
    sent, received = set(uses(in_flight, rank)), set(writes(in_flight, rank))
    changed = {*writes(node, rank), *frees(node)}
    return received & set(uses(node, rank)) | (sent | received) & changed
