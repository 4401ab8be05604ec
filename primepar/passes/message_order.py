"""Whether messages that replace collectives match: the n-th sent is the n-th received.

Messages match in order per communicator, source and destination. A collective does not: a message
that is sent before it may be received after it. Example: rank 0 sends y, then takes part in a
reduce-scatter with rank 1. If rank 1 receives y only after that, messages in place of the
reduce-scatter would come second on rank 0 and first on rank 1.
"""

from __future__ import annotations

from collections import Counter
from itertools import permutations
from typing import NamedTuple

from primepar.schedule.program import Group, Instruction, IRecv, ISend, Program, Recv, Send

Channel = tuple[str, int, int]
"""Communicator, source and destination."""
Numbers = dict[tuple[int, Channel], int]
"""(call, channel) -> number of messages in that channel before those of the call."""


class Call(NamedTuple):
    """One collective on all its members: their positions in their lists, by rank."""

    communicator: str
    group: tuple[int, ...]
    places: dict[int, int]

    @property
    def channels(self) -> list[Channel]:
        """From each member to each other one."""
        return [(self.communicator, *pair) for pair in permutations(self.group, 2)]


def in_order(program: Program, calls: list[Call]) -> list[Call]:
    """Return the calls that can be messages from each member to each other one.

    A call whose messages would not match is left out, until those of all others do.
    """
    while True:
        sent, received = _numbers(program, calls)
        kept = [
            call
            for number, call in enumerate(calls)
            if all(sent[number, way] == received[number, way] for way in call.channels)
        ]
        if len(kept) == len(calls):
            return calls
        calls = kept


def _numbers(program: Program, calls: list[Call]) -> tuple[Numbers, Numbers]:
    """Return how many messages are sent, and how many received, before each call."""
    numbers_of = {
        (rank, place): number
        for number, call in enumerate(calls)
        for rank, place in call.places.items()
    }
    sent, received = Numbers(), Numbers()
    for rank, nodes in enumerate(program.programs):
        count = Counter[Channel]()
        for place, node in enumerate(nodes):
            number = numbers_of.get((rank, place))
            if number is None:
                count.update(_channels(node, rank))
                continue
            for channel in calls[number].channels:
                if rank in channel[1:]:
                    numbers = sent if rank == channel[1] else received
                    numbers[number, channel] = count[channel]
                    count[channel] += 1
    return sent, received


def _channels(node: Instruction, rank: int) -> list[Channel]:
    """Return the channel of each message of an instruction."""
    match node:
        case Send() | ISend():
            return [(node.communicator, rank, node.peer)]
        case Recv() | IRecv():
            return [(node.communicator, node.peer, rank)]
        case Group(body=body):
            return [channel for message in body for channel in _channels(message, rank)]
        case _:
            return []
