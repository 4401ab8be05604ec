"""Which instructions of several ranks meet: the ends of one message, the members of one call.

Messages match in order per communicator, source and destination, collectives per communicator and
members. So the n-th of its kind on one rank meets the n-th on the others:

    rank 0    isend a -> 1      isend b -> 1      all_reduce x over 0,1
    rank 1    irecv c <- 0      all_reduce x over 0,1      irecv d <- 0

Here the second instructions of the ranks do not meet: `isend b` is message 1 from 0 to 1, and so is
`irecv d`. Messages in place of the all-reduce would be message 2 on rank 0, but 1 on rank 1: they
would not match, though the all-reduce does. `in_order` finds that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import permutations
from typing import NamedTuple

from primepar.schedule.program import (
    Collective,
    Group,
    Instruction,
    IRecv,
    ISend,
    Program,
    Recv,
    Send,
)

Line = tuple[object, ...]
"""A communicator with the source and destination of messages, or the members of collectives."""
Meeting = tuple[Line, int]
"""A line and a number: the same on all ranks that take part."""


class Call(NamedTuple):
    """One collective: its members, and their positions in their lists, by rank."""

    communicator: str
    members: tuple[int, ...]
    places: dict[int, int]

    @property
    def messages(self) -> list[Line]:
        """From each member to each other one."""
        return [(self.communicator, *pair) for pair in permutations(self.members, 2)]


def lines(node: Instruction, rank: int) -> list[Line]:
    """Return where an instruction's messages, or its call, take their turn."""
    match node:
        case Send() | ISend():
            return [(node.communicator, rank, node.peer)]
        case Recv() | IRecv():
            return [(node.communicator, node.peer, rank)]
        case Group(body=body):
            return [line for message in body for line in lines(message, rank)]
        case _ if isinstance(node, Collective) and rank in node.group:
            return [(node.communicator, tuple(sorted(node.group)))]
        case _:
            return []


def meetings(nodes: Sequence[Instruction], rank: int) -> Iterator[list[Meeting]]:
    """Yield for every instruction of a rank what it meets others in."""
    counts = Counter[Line]()
    for node in nodes:
        met = list[Meeting]()
        for line in lines(node, rank):
            met.append((line, counts[line]))
            counts[line] += 1
        yield met


def calls(program: Program) -> dict[Line, list[Call]]:
    """Return the collectives of each line, in order; none where members make unequally many."""
    made: dict[tuple[str, tuple[int, ...]], dict[int, list[int]]] = {}
    for rank, nodes in enumerate(program.programs):
        for place, node in enumerate(nodes):
            if isinstance(node, Collective) and rank in node.group:
                line = node.communicator, tuple(sorted(node.group))
                made.setdefault(line, {}).setdefault(rank, []).append(place)
    return {
        (communicator, members): [
            Call(communicator, members, dict(zip(members, places, strict=True)))
            for places in zip(*(by_rank[rank] for rank in members), strict=True)
        ]
        for (communicator, members), by_rank in made.items()
        if len({len(by_rank.get(rank, ())) for rank in members}) == 1
    }


def in_order(program: Program, given: list[Call]) -> list[Call]:
    """Return the calls that can be messages from each member to each other one.

    A call whose messages would not match is left out, until those of all others do.
    """
    while True:
        sent, received = _turns(program, given)
        kept = [
            call
            for number, call in enumerate(given)
            if all(sent[number, line] == received[number, line] for line in call.messages)
        ]
        if len(kept) == len(given):
            return given
        given = kept


def _turns(program: Program, given: list[Call]) -> list[dict[tuple[int, Line], int]]:
    """Return how many messages are sent, and how many received, before those of each call."""
    numbers = {
        (rank, place): number
        for number, call in enumerate(given)
        for rank, place in call.places.items()
    }
    turns: list[dict[tuple[int, Line], int]] = [{}, {}]
    for rank, nodes in enumerate(program.programs):
        count = Counter[Line]()
        for place, node in enumerate(nodes):
            number = numbers.get((rank, place))
            if number is None:
                count.update(lines(node, rank))
                continue
            for line in given[number].messages:
                if rank in line[1:]:
                    turns[rank != line[1]][number, line] = count[line]
                    count[line] += 1
    return turns
