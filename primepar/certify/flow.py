"""Who meets whom in a program, what every instruction waits for, and what it touches.

Part of the checker of certificates: it knows the grammar of programs and nothing of the proofs.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest
from typing import Any, NamedTuple

from primepar.certify.data import meet as overlap
from primepar.schedule.meaning import Meaning
from primepar.schedule.program import (
    AllGather,
    AllReduce,
    AllToAll,
    Barrier,
    Broadcast,
    Collective,
    Compute,
    Cut,
    Group,
    Instruction,
    IRecv,
    ISend,
    Join,
    Program,
    Recv,
    Reduce,
    ReduceScatter,
    Send,
    Wait,
)

Place = tuple[int, int]
"""(rank, instruction)."""
Side = tuple[int, int, int]
"""(rank, instruction, place in its group)."""


class Touched(NamedTuple):
    """Blocks that an instruction takes and gives, those of its messages too."""

    reads: tuple[str, ...]
    writes: tuple[str, ...]


def messages(node: Instruction) -> tuple[Send | Recv | ISend | IRecv, ...]:
    """The messages of an instruction."""
    if isinstance(node, Group):
        return node.body
    return (node,) if isinstance(node, Send | Recv | ISend | IRecv) else ()


def touched(node: Instruction, rank: int) -> Touched:
    """What an instruction takes and gives; to free or evict a block is to change it."""
    match node:
        case Compute(reads=reads, accumulates=block):
            return Touched((*reads, block), (block,))
        case Send(block=block) | ISend(block=block):
            return Touched((block,), ())
        case Cut(block=block, blocks=blocks):
            return Touched((block,), blocks)
        case Join(block=block, blocks=blocks):
            return Touched(blocks, (block,))
        case Wait() | Group():
            return Touched((), ())
        case _ if isinstance(node, Collective):
            return _collective(node, rank)
        case _:
            return Touched((), (node.block,))


def _collective(node: Collective, rank: int) -> Touched:
    match node:
        case Barrier():
            return Touched((), ())
        case Broadcast(block=block, root=root):
            return Touched((block,), ()) if rank == root else Touched((), (block,))
        case Reduce(block=block, root=root):
            return Touched((block,), (block,) if rank == root else ())
        case AllToAll(blocks=blocks, into=into):
            return Touched(blocks, into)
        case AllGather(block=block, blocks=blocks):
            return Touched((block,), blocks)
        case ReduceScatter(block=block, blocks=blocks):
            return Touched(blocks, (block,))
        case AllReduce(block=block):
            return Touched((block,), (block,))


class Flow:
    """What meets what: messages in order per channel, collectives in order per ranks."""

    def __init__(self, program: Program, buffered: bool) -> None:
        self.program, self.buffered, self.meaning = program, buffered, Meaning(program)
        self.partner: dict[Side, Side] = {}
        self.meeting: dict[Place, tuple[Place, ...]] = {}
        self._match_messages()
        self._match_collectives()

    def _match_messages(self) -> None:
        lines: dict[Any, tuple[list[Side], list[Side]]] = {}
        for rank, nodes in enumerate(self.program.programs):
            for index, node in enumerate(nodes):
                for part, message in enumerate(messages(node)):
                    sends = isinstance(message, Send | ISend)
                    ends = (rank, message.peer) if sends else (message.peer, rank)
                    line = lines.setdefault((ends, message.communicator), ([], []))
                    line[not sends].append((rank, index, part))
        for line in lines.values():
            for send, receive in zip(*line, strict=False):
                if self.message(send).tag == self.message(receive).tag:
                    self.partner[send], self.partner[receive] = receive, send

    def _match_collectives(self) -> None:
        calls: dict[Any, dict[int, list[Place]]] = {}
        for rank, nodes in enumerate(self.program.programs):
            for index, node in enumerate(nodes):
                if isinstance(node, Collective) and rank in node.group:
                    key = (node.communicator, tuple(sorted(node.group)))
                    calls.setdefault(key, {}).setdefault(rank, []).append((rank, index))
        for (_, ranks), by_rank in calls.items():
            for met in zip_longest(*(by_rank.get(rank, []) for rank in ranks)):
                if None not in met and self._agree(met):
                    self.meeting |= dict.fromkeys(met, met)

    def node(self, place: Place | Side) -> Instruction:
        """The instruction at a place."""
        return self.program.programs[place[0]][place[1]]

    def message(self, side: Side) -> Send | Recv | ISend | IRecv:
        """The message at a place."""
        return messages(self.node(side))[side[2]]

    def _agree(self, met: tuple[Place, ...]) -> bool:
        """Whether these calls are one: of one kind, order, root and reduction, with all blocks."""
        nodes = [node for place in met if isinstance(node := self.node(place), Collective)]
        claims = {
            (type(n), *(getattr(n, name, None) for name in ("group", "root", "reduction")))
            for n in nodes
        }
        lists = [getattr(n, name, n.group) for n in nodes for name in ("blocks", "into")]
        return len(claims) == 1 and all(len(names) == len(met) for names in lists)

    def awaited(self, rank: int) -> list[list[Side | Place | None] | None]:
        """For each instruction what must have started before it returns; None if it never waits.

        What is None in a list never comes.
        """
        posted: dict[str, list[Side | Place | None]] = {}
        found: list[list[Side | Place | None] | None] = []
        for index, node in enumerate(self.program.programs[rank]):
            wants = self._wants(rank, index, node)
            request = getattr(node, "request", None)
            if isinstance(node, Wait):
                found.append(posted.pop(node.request, [None]))
            elif request is not None:
                posted[request] = wants
                found.append(None)
            else:
                waits = bool(messages(node)) or isinstance(node, Collective)
                found.append(wants if waits else None)
        return found

    def _wants(self, rank: int, index: int, node: Instruction) -> list[Side | Place | None]:
        if isinstance(node, Collective):
            return list(self.meeting.get((rank, index), (None,)))
        return [
            self.partner.get((rank, index, part))
            for part, message in enumerate(messages(node))
            if not (self.buffered and isinstance(message, Send | ISend))
        ]

    def lonely(self, place: Place) -> bool:
        """Whether a message or collective at a place meets nothing."""
        node = self.node(place)
        if isinstance(node, Collective):
            return place not in self.meeting
        return any((*place, part) not in self.partner for part in range(len(messages(node))))

    def _shared(self, blocks: tuple[str, ...]) -> Iterator[str]:
        """Blocks that lie where one before them does."""
        for place, block in enumerate(blocks):
            at = self.meaning.place(block)
            for other in map(self.meaning.place, blocks[:place]):
                if at and other and at.tensor == other.tensor and overlap(at.box, other.box):
                    yield block

    def races(self, rank: int) -> set[tuple[int, str]]:
        """(instruction, block or request) of what is touched in flight, or never waited for."""
        flying: dict[str, tuple[int, Touched]] = {}
        lost: list[Touched] = []
        found: set[tuple[int, str]] = set()
        for index, node in enumerate(self.program.programs[rank]):
            if isinstance(node, Wait):
                flying.pop(node.request, None)
                continue
            inside = [*(each for _, each in flying.values()), *lost]
            for part in messages(node) or (node,):
                reads, writes = touched(part, rank)
                for taken, given in inside:
                    found |= {(index, name) for name in reads if name in given}
                    found |= {(index, name) for name in writes if name in (*taken, *given)}
                inside += [Touched(reads, writes)] * isinstance(node, Group)
            if isinstance(node, Collective):
                found |= {(index, name) for name in self._shared(touched(node, rank).writes)}
            request = getattr(node, "request", None)
            if request is not None:
                if request in flying:
                    found.add((flying[request][0], request))
                    lost.append(flying[request][1])
                flying[request] = (index, touched(node, rank))
        return found | {(index, request) for request, (index, _) in flying.items()}
