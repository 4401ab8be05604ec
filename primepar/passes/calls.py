"""Which instructions of several ranks meet: the ends of one message, the members of one call.

The n-th of a queue (`primepar.schedule.matching.queue_of`) on one rank meets the n-th on others:

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
from typing import NamedTuple, get_args

from primepar.passes.block_uses import LOCAL
from primepar.schedule.effects import effects
from primepar.schedule.matching import Channel, Members, Queue, queue_of
from primepar.schedule.program import (
    AllGather,
    AllReduce,
    Broadcast,
    Collective,
    Instruction,
    Program,
    Reduce,
    ReduceScatter,
)
from primepar.schedule.sharing import shared

_COLLECTIVES = frozenset(get_args(Collective))
Elementwise = AllGather | AllReduce | Broadcast | Reduce | ReduceScatter
"""Collectives that copy, add and scale element by element."""
Meeting = tuple[Queue, int]
"""A queue and a number: the same on all ranks that take part."""


class Call(NamedTuple):
    """One collective: its members, and their positions in their lists, by rank."""

    communicator: str
    members: tuple[int, ...]
    places: dict[int, int]

    @property
    def messages(self) -> list[Channel]:
        """From each member to each other one."""
        return [(*pair, self.communicator) for pair in permutations(self.members, 2)]


def queues(node: Instruction, rank: int) -> list[Queue]:
    """Return where an instruction's messages, or its call, take their turn."""
    posts = () if type(node) in LOCAL else effects(node, rank).posts
    return [queue for post in posts if (queue := queue_of(post, rank)) is not None]


def meetings(nodes: Sequence[Instruction], rank: int) -> Iterator[list[Meeting]]:
    """Yield for every instruction of a rank what it meets others in."""
    counts = Counter[Queue]()
    for node in nodes:
        met = list[Meeting]()
        for queue in queues(node, rank):
            met.append((queue, counts[queue]))
            counts[queue] += 1
        yield met


@shared("programs")
def calls(program: Program) -> list[list[Call]]:
    """Return the collectives of each queue, in order; none where members make unequally many."""
    made: dict[Members, dict[int, list[int]]] = {}
    for rank, nodes in enumerate(program.programs):
        for place, node in enumerate(nodes):
            if type(node) in _COLLECTIVES:
                for queue in queues(node, rank):
                    if len(queue) == 2:
                        made.setdefault(queue, {}).setdefault(rank, []).append(place)
    return [
        [
            Call(communicator, members, dict(zip(members, places, strict=True)))
            for places in zip(*(by_rank[rank] for rank in members), strict=True)
        ]
        for (communicator, members), by_rank in made.items()
        # Rank 0 makes three calls and rank 1 two: which of them meet is not known, so none is
        # touched.
        if len({len(by_rank.get(rank, ())) for rank in members}) == 1
    ]


def in_order(program: Program, given: list[Call]) -> list[Call]:
    """Return the calls that can be messages from each member to each other one.

    A call whose messages would not match is left out, until those of all others do.
    """
    # Leaving one out changes the turns of the others behind it, so all are counted again; each
    # round has fewer, so it ends.
    while True:
        sent, received = _turns(program, given)
        kept = [
            call
            for number, call in enumerate(given)
            if all(sent[number, channel] == received[number, channel] for channel in call.messages)
        ]
        if len(kept) == len(given):
            return given
        given = kept


def _turns(program: Program, given: list[Call]) -> list[dict[tuple[int, Queue], int]]:
    """Return how many messages are sent, and how many received, before those of each call."""
    numbers = {
        (rank, place): number
        for number, call in enumerate(given)
        for rank, place in call.places.items()
    }
    turns: list[dict[tuple[int, Queue], int]] = [{}, {}]
    for rank, nodes in enumerate(program.programs):
        count = Counter[Queue]()
        for place, node in enumerate(nodes):
            number = numbers.get((rank, place))
            if number is None:
                count.update(queues(node, rank))
                continue
            for channel in given[number].messages:
                # On the sender the turn among sends, on the receiver among receives: a call may be
                # a message where both are the same number.
                if rank in channel[:2]:
                    turns[rank != channel[0]][number, channel] = count[channel]
                    count[channel] += 1
    return turns
