"""Messages and collectives in flight, from the post to the end.

A message is done one transfer after both of its ends are posted (rendezvous, no buffer). Ends match
in order within (source, destination, communicator), and calls of a collective within (communicator,
group); tags select nothing. Example: device 0 posts sends of x and y to device 1. The first receive
of device 1 from device 0 gets x, also if its tag is that of y, which is an error.

A block is in flight from the post to the end of the communication that uses it. A block that is
only sent may be read but not changed; one that is received may not be used.

How many times the size of a block leaves a rank is read off `primepar.schedule.ledger`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import NamedTuple

from primepar.errors import MismatchError
from primepar.reference.emulator.contents import Block
from primepar.reference.emulator.device import EmulatedDevice
from primepar.schedule.effects import effects
from primepar.schedule.ledger import sends
from primepar.schedule.matching import Elements, dispute
from primepar.schedule.program import (
    AllGather,
    AllReduce,
    AllToAll,
    Barrier,
    Broadcast,
    Collective,
    Gather,
    ISend,
    Message,
    Reduce,
    ReduceScatter,
    Scatter,
    Send,
)
from primepar.schedule.signature import Reduction, Scale

Combine = Callable[[Sequence[Block], Reduction, Scale], Block]
"""Reduces blocks into one, times a coefficient, or raises `WrongDataError`."""
Given = dict[int, tuple[Block, ...]]
"""Rank -> the blocks that it contributes."""


@dataclass(eq=False)
class PostedMessage:
    """One end of a message; `done` is the time at which it is done, `payload` the sent block."""

    rank: int
    node: Message
    time: float
    payload: Block | None = None
    done: float | None = None

    @property
    def sends(self) -> bool:
        """Whether this is the sending end."""
        return isinstance(self.node, Send | ISend)

    @property
    def waits_for(self) -> tuple[int, ...]:
        """The rank of the other end."""
        return (self.node.peer,)

    def __str__(self) -> str:
        """Text for error messages, `device 1 to receive I[0,0]`."""
        verb = f"receive {self.node.block}" if self.sends else f"send {self.node.block}"
        return f"device {self.node.peer} to {verb}"


@dataclass
class Meeting:
    """One call of a collective: the members that called, their blocks, and the time it is done."""

    calls: dict[int, Collective] = field(default_factory=dict)
    given: Given = field(default_factory=dict)
    latest: float = 0.0
    done: float | None = None

    @property
    def first(self) -> Collective:
        """The call that came first."""
        return next(iter(self.calls.values()))

    def missing(self) -> tuple[int, ...]:
        """Return the members that have not called."""
        return tuple(rank for rank in self.first.group if rank not in self.given)


@dataclass(eq=False)
class CollectiveCall:
    """The call of one member of a collective, posted at `time`."""

    rank: int
    node: Collective
    time: float
    meeting: Meeting

    @property
    def done(self) -> float | None:
        """Time at which the collective is done, None before."""
        return self.meeting.done

    @property
    def waits_for(self) -> tuple[int, ...]:
        """Ranks that have not called."""
        return self.meeting.missing()

    def __str__(self) -> str:
        """Text for error messages, `devices 1, 2 to call barrier over 0,1,2`."""
        missing = self.meeting.missing()
        devices = f"device{'s' * (len(missing) > 1)} {', '.join(map(str, missing))}"
        return f"{devices} to call {claim(self.meeting.first)}"


Posted = PostedMessage | CollectiveCall


class End(NamedTuple):
    """The end of a communication: the time it was done, its blocks, and the elements it sent."""

    done: float
    block: str
    sent: Fraction


class InFlight:
    """Posts and ends the messages and collectives of all devices; `elements` are of blocks."""

    def __init__(self, combine: Combine, transfer: float, elements: Elements) -> None:
        self._combine, self._transfer, self._elements = combine, transfer, elements
        self._open: dict[tuple[int, int, str], list[PostedMessage]] = {}
        self._meetings: dict[tuple[str, frozenset[int]], list[Meeting]] = {}
        self._calls: dict[tuple[int, str, frozenset[int]], int] = {}

    def post(self, device: EmulatedDevice, node: Message | Collective) -> Posted:
        """Start one end of a message, or one member's call; it may be done at once.

        Raises an `EmulationError` if that is not possible.
        """
        if isinstance(node, Collective):
            return self._call(device, node)
        end = PostedMessage(device.rank, node, device.clock)
        if end.sends:
            end.payload = device.begin_send(node.block)
        else:
            device.begin_receive(node.block)
        ends = (end.rank, node.peer) if end.sends else (node.peer, end.rank)
        waiting = self._open.setdefault((*ends, node.communicator), [])
        # All that wait in a channel are of one direction: an opposite end would have met the first.
        if not waiting or waiting[0].sends == end.sends:
            waiting.append(end)
            return end
        other = waiting.pop(0)
        sent, received = (end, other) if end.sends else (other, end)
        self._check_message(sent, received)
        sent.done = received.done = max(sent.time, received.time) + self._transfer
        received.payload = sent.payload
        return end

    def _call(self, device: EmulatedDevice, node: Collective) -> CollectiveCall:
        given, gotten = effects(node, device.rank).reads, effects(node, device.rank).writes
        blocks = tuple(device.read(name) for name in given)
        device.check_apart(gotten)
        for name in given:
            if name not in gotten:  # in place, as in an all-reduce, a block is received alone
                device.begin_send(name)
        for name in gotten:
            device.begin_receive(name)
        meeting = self._join(device.rank, node)
        meeting.given[device.rank] = blocks
        meeting.latest = max(meeting.latest, device.clock)
        if not meeting.missing():
            meeting.done = meeting.latest + (0.0 if isinstance(node, Barrier) else 1.0)
        return CollectiveCall(device.rank, node, device.clock, meeting)

    def _join(self, rank: int, node: Collective) -> Meeting:
        """Join the next call of this group. Raises `MismatchError` if other members differ."""
        if rank not in node.group:
            raise MismatchError(
                f"expected device {rank} in the group of its own collective, got {list(node.group)}"
            )
        for what in () if isinstance(node, Gather | Scatter) else ("blocks", "into"):
            names = getattr(node, what, None)
            if names is not None and len(names) != len(node.group):
                raise MismatchError(
                    f"expected {what} to name one block for each of {len(node.group)} members, got "
                    f"{len(names)}"
                )
        key = node.communicator, frozenset(node.group)
        meetings, call = self._meetings.setdefault(key, []), self._calls.get((rank, *key), 0)
        self._calls[(rank, *key)] = call + 1
        # The third call of this member is part of the third meeting of its group, which the first
        # of its members to come opens.
        if call == len(meetings):
            meetings.append(Meeting())
        meeting = meetings[call]
        meeting.calls[rank] = node
        self._check_alike(meeting, rank)
        return meeting

    def end(self, device: EmulatedDevice, pending: Posted) -> End:
        """End a communication that is done. Raises an `EmulationError` for a wrong block."""
        done, node = pending.done or 0.0, pending.node
        if isinstance(pending, PostedMessage):
            block, payload = pending.node.block, pending.payload
            assert payload is not None
            if pending.sends:
                device.end_send(block)
            else:
                device.end_receive(block, payload)
            return End(done, block, Fraction(payload.size if pending.sends else 0))
        node, all_given = pending.node, pending.meeting.given
        given, gotten = effects(node, device.rank).reads, effects(node, device.rank).writes
        made = results(node, device.rank, all_given, self._combine)
        for name in given:
            if name not in gotten:
                device.end_send(name)
        for name, received in zip(gotten, made, strict=True):
            device.end_receive(name, received)
        return End(done, " ".join(gotten or given), self._sent(node, device.rank, all_given))

    @staticmethod
    def _sent(node: Collective, rank: int, all_given: Given) -> Fraction:
        """Return the elements that a rank sends; a broadcast passes on the root's block."""
        if isinstance(node, Broadcast):
            sizes = {node.block: all_given[node.root][0].size}
        else:
            pairs = zip(effects(node, rank).reads, all_given[rank], strict=True)
            sizes = {name: block.size for name, block in pairs}
        return sum(
            (Fraction(times * sizes[name]) for name, times in sends(node, rank)), Fraction(0)
        )

    def _check_message(self, sent: PostedMessage, received: PostedMessage) -> None:
        """Raise `MismatchError` if two ends that met differ in tag, type of data, count or size."""
        if received.node.tag != sent.node.tag:
            raise MismatchError(
                f"expected tag {received.node.tag} for {received.node.block} from device "
                f"{sent.rank} to device {received.rank}, got {sent.node.block} with tag "
                f"{sent.node.tag}: post sends and receives in one order, tags select nothing"
            )
        wrong = dispute([(sent.rank, sent.node), (received.rank, received.node)], self._elements)
        if wrong is not None:
            raise MismatchError(
                f"expected {wrong.claim} {wrong.want} of {sent.node.block} from device "
                f"{sent.rank}, got {wrong.got} on device {received.rank}: write the same on both "
                "sides"
            )

    def _check_alike(self, meeting: Meeting, rank: int) -> None:
        """Raise `MismatchError` unless kind, order of the group and all claims are the same."""
        mine, first = claim(meeting.calls[rank]), claim(meeting.first)
        if mine != first:
            raise MismatchError(
                f"expected {first} as on device {next(iter(meeting.given))}, got {mine}: "
                "call collectives in one order on every member"
            )
        wrong = dispute([*meeting.calls.items()], self._elements)
        if wrong is not None:
            raise MismatchError(
                f"expected {wrong.claim} {wrong.want} of {mine} on every device, got "
                f"{wrong.got} on device {rank}: write the same on every member"
            )


def claim(collective: Collective) -> str:
    """Return what all members must agree on, `reduce over 0,1 root=0 reduction=sum`."""
    where = "" if collective.communicator == "world" else f" in {collective.communicator}"
    tag = collective.__struct_config__.tag
    rest = [
        f"{what}={getattr(collective, what)}"
        for what in ("root", "reduction", "scale")
        if hasattr(collective, what) and (what != "scale" or collective.scale_value != 1)
    ]
    if isinstance(collective, AllReduce) and collective.also:
        rest.append(f"blocks={len(collective.reduced)}")
    return " ".join([f"{tag}{where} over", ",".join(map(str, collective.group)), *rest])


def results(collective: Collective, rank: int, given: Given, combine: Combine) -> tuple[Block, ...]:
    """Return the blocks that `rank` receives, in the order of `gets`.

    Raises `WrongDataError` for a wrong sum.
    """
    members = collective.group
    match collective:
        case AllReduce() | Reduce():
            if getattr(collective, "root", rank) != rank:
                return ()
            lists = zip(*(given[member] for member in members), strict=True)
            return tuple(
                combine(blocks, collective.reduction, collective.scale_value) for blocks in lists
            )
        case Broadcast(root=root):
            return given[root] if rank != root else ()
        case Scatter(root=root):
            return (given[root][members.index(rank)],)
        case AllGather() | Gather():
            return tuple(given[member][0] for member in members if effects(collective, rank).writes)
        case ReduceScatter():
            # Member 1 of 3 gets the sum of what each member gives as its second block.
            blocks = [given[member][members.index(rank)] for member in members]
            return (combine(blocks, collective.reduction, collective.scale_value),)
        case AllToAll():
            return tuple(given[member][members.index(rank)] for member in members)
        case _:
            return ()
