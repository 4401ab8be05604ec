"""Runs the communication of a program step by step, in slots and in queues.

A second opinion on `transport`: it knows no graph. Every rank has a place in its list, and a queue
of operations on each communicator, or one for all. The moves are those of the hardware: a rank goes
on; the first operation of a queue begins; data goes into a free slot of its channel; data is taken
out of a slot; without slots it goes over when both sides have begun. No move disables another one,
so every order of the moves ends in the same state; `chance` takes them in a random one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import NamedTuple

from primepar.schedule.program import (
    Collective,
    Group,
    Instruction,
    IRecv,
    ISend,
    Message,
    Program,
    Recv,
    Send,
    Wait,
)
from primepar.schedule.transport import Communicator, Transport, message_members, on_pairs

ChannelKey = tuple[str, int, int]
"""Communicator, source and destination."""


class MessagePart(NamedTuple):
    """One side of the n-th message of a channel."""

    channel: ChannelKey
    sends: bool
    number: int


class CallPart(NamedTuple):
    """One member's n-th call of a communicator."""

    communicator: Communicator
    rank: int
    number: int


@dataclass
class QueuedOperation:
    """What a rank posts at once."""

    parts: list[MessagePart | CallPart]
    has_begun: bool = False


@dataclass
class ChannelState:
    """How many messages of a channel have begun, are in slots or beyond, and have been taken."""

    begun: dict[bool, int] = field(default_factory=lambda: {True: 0, False: 0})
    put: int = 0
    taken: int = 0


class TrafficRun:
    """The state of a run; `run` makes moves until none is left."""

    def __init__(
        self, program: Program, transport: Transport, chance: Random | None = None
    ) -> None:
        self.program = on_pairs(program) if transport.order == "peer" else program
        self.transport, self.chance = transport, chance
        self._members = message_members(self.program)
        self._at = [0] * program.ranks
        self._inside: dict[int, list[QueuedOperation]] = {}
        """Rank -> the operations that its present instruction waits for."""
        self._requests: list[dict[str, list[QueuedOperation]]] = [{} for _ in range(program.ranks)]
        self._queues: dict[object, deque[QueuedOperation]] = {}
        self._channels: dict[ChannelKey, ChannelState] = {}
        self._posted: dict[object, int] = {}
        """(channel, side) or (communicator, rank) -> posts that were made."""
        self._called: dict[Communicator, dict[int, int]] = {}

    def run(self) -> bool:
        """Move until nothing moves; returns whether the program is finished."""
        moves: list[Callable[[], bool]] = [self._begin, self._transfer]
        moves += [partial(self._advance, rank) for rank in range(self.program.ranks)]
        moved = True
        while moved:
            if self.chance is not None:
                self.chance.shuffle(moves)
            moved = sum(move() for move in moves) > 0
        return self._is_finished()

    def _is_finished(self) -> bool:
        """Whether every rank is at its end, and every message was taken."""
        states = self._channels.values()
        return all({*state.begun.values()} == {state.taken} for state in states) and all(
            place == len(nodes)
            for place, nodes in zip(self._at, self.program.programs, strict=True)
        )

    @property
    def places(self) -> tuple[int, ...]:
        """The instruction that each rank is in, or the number of its instructions."""
        return tuple(self._at)

    def _advance(self, rank: int) -> bool:
        nodes = self.program.programs[rank]
        if self._at[rank] == len(nodes):
            return False
        if rank not in self._inside:
            self._inside[rank] = self._start(rank, nodes[self._at[rank]])
            return True
        if not all(map(self._has_ended, self._inside[rank])):
            return False
        del self._inside[rank]
        self._at[rank] += 1
        return True

    def _start(self, rank: int, node: Instruction) -> list[QueuedOperation]:
        """Post what an instruction posts; returns what it waits for."""
        match node:
            case Wait(request=request):
                return self._requests[rank].pop(request)
            case Send() | Recv():
                return [self._post(rank, [node])]
            case ISend() | IRecv():
                self._requests[rank][node.request] = [self._post(rank, [node])]
            case Group(body=body, request=request):
                posted = [self._post(rank, messages) for messages in self._operations(body)]
                if request is None:
                    return posted
                self._requests[rank][request] = posted
            case _ if isinstance(node, Collective):
                operation = self._call(rank, node)
                if node.request is None:
                    return [operation]
                self._requests[rank][node.request] = [operation]
        return []

    def _operations(self, body: tuple[Message, ...]) -> Iterator[list[Message]]:
        """Yield the messages of a group that are one operation.

        They are those of a communicator. In one queue they follow each other in the group, and a
        second send to a peer, or receive from it, begins the next one.
        """
        if self.transport.order != "queue":
            for name in dict.fromkeys(message.communicator for message in body):
                yield [message for message in body if message.communicator == name]
            return
        part: list[Message] = []
        for message in body:
            alike = [(type(m), m.peer) for m in part]
            other = part and part[0].communicator != message.communicator
            if other or (type(message), message.peer) in alike:
                yield part
                part = []
            part.append(message)
        yield part

    def _post(self, rank: int, messages: list[Message]) -> QueuedOperation:
        name, parts = messages[0].communicator, list[MessagePart | CallPart]()
        for message in messages:
            sends = isinstance(message, Send | ISend)
            ends = (rank, message.peer) if sends else (message.peer, rank)
            channel = (name, *ends)
            self._channels.setdefault(channel, ChannelState())
            parts.append(MessagePart(channel, sends, self._count((channel, sends))))
        return self._enqueue(rank, (name, self._members[name]), parts)

    def _call(self, rank: int, node: Collective) -> QueuedOperation:
        communicator = (node.communicator, tuple(sorted(node.group)))
        part = CallPart(communicator, rank, self._count((communicator, rank)))
        self._called.setdefault(communicator, dict.fromkeys(node.group, 0))
        return self._enqueue(rank, communicator, [part])

    def _count(self, key: object) -> int:
        number = self._posted.get(key, 0)
        self._posted[key] = number + 1
        return number

    def _enqueue(
        self, rank: int, communicator: Communicator, parts: list[MessagePart | CallPart]
    ) -> QueuedOperation:
        operation = QueuedOperation(parts)
        queues: dict[str, object] = {"free": operation.parts[0], "queue": rank}
        queue = queues.get(self.transport.order, (rank, communicator))
        self._queues.setdefault(queue, deque()).append(operation)
        return operation

    def _begin(self) -> bool:
        """Begin the first operations of queues that have not; drop those that have ended."""
        moved = False
        for queue in self._queues.values():
            while queue and queue[0].has_begun and self._has_ended(queue[0]):
                queue.popleft()
                moved = True
            if queue and not queue[0].has_begun:
                queue[0].has_begun = moved = True
                for part in queue[0].parts:
                    if isinstance(part, MessagePart):
                        self._channels[part.channel].begun[part.sends] += 1
                    else:
                        self._called[part.communicator][part.rank] += 1
        return moved

    def _transfer(self) -> bool:
        """Carry one message of each channel one move further."""
        return sum(map(self._carry, self._channels.values())) > 0

    def _carry(self, state: ChannelState) -> bool:
        slots, sent, wanted = self.transport.slots, state.begun[True], state.begun[False]
        if state.taken < min(state.put, wanted):
            state.taken += 1
        elif slots == 0 and state.taken < min(sent, wanted):
            state.put = state.taken = state.taken + 1
        elif state.put < sent and (slots is None or state.put - state.taken < slots):
            state.put += 1
        else:
            return False
        return True

    def _has_ended(self, operation: QueuedOperation) -> bool:
        return operation.has_begun and all(map(self._is_done, operation.parts))

    def _is_done(self, part: MessagePart | CallPart) -> bool:
        if isinstance(part, CallPart):
            return all(count > part.number for count in self._called[part.communicator].values())
        state = self._channels[part.channel]
        return (state.put if part.sends else state.taken) > part.number


def comes_to_an_end(program: Program, transport: Transport, seed: int | None = None) -> bool:
    """Whether a program ends in this transport; it must have partners for all it posts."""
    return TrafficRun(program, transport, None if seed is None else Random(seed)).run()
