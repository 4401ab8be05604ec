"""Messages and collectives in flight, from the post to the end.

A block is in flight from the post to the end of the communication that uses it. A block that is
only sent may be read but not changed; one that is received may not be used.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

from primepar.reference.emulator.collectives import Combine, Meeting, Meetings, results, sent
from primepar.reference.emulator.device import EmulatedDevice
from primepar.reference.emulator.messages import Channels, PostedMessage
from primepar.schedule.effects import effects
from primepar.schedule.program import Collective, Message


@dataclass
class CollectiveCall:
    """The call of one member of a collective, posted at `time`."""

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
        return str(self.meeting)


class End(NamedTuple):
    """A communication that was done at `done`, its blocks, and the elements that it sent."""

    node: Message | Collective
    block: str
    done: float
    sent: Fraction


class InFlight:
    """Posts and ends messages and collectives."""

    def __init__(self, combine: Combine, transfer: float) -> None:
        self.channels, self._meetings = Channels(transfer), Meetings()
        self._combine = combine

    def post(self, device: EmulatedDevice, message: Message) -> PostedMessage:
        """Start one end of a message. Raises an `EmulationError` if that is not possible."""
        post = PostedMessage(device.rank, message, device.clock)
        if post.sends:
            post.payload = device.begin_send(message.block)
        else:
            device.begin_receive(message.block)
        self.channels.post(post)
        return post

    def call(self, device: EmulatedDevice, node: Collective) -> CollectiveCall:
        """Start one member's call. Raises an `EmulationError` if that is not possible."""
        given, gotten = effects(node, device.rank).reads, effects(node, device.rank).writes
        blocks = tuple(device.read(name) for name in given)
        device.check_apart(gotten)
        for name in given:
            if name not in gotten:
                device.begin_send(name)
        for name in gotten:
            device.begin_receive(name)
        meeting = self._meetings.join(node, device.rank, blocks, device.clock)
        return CollectiveCall(node, device.clock, meeting)

    def end(self, device: EmulatedDevice, pending: PostedMessage | CollectiveCall) -> End:
        """End a communication that is done. Raises an `EmulationError` for a wrong block."""
        done = pending.done or 0.0
        if isinstance(pending, CollectiveCall):
            return self._end_call(device, pending, done)
        block, payload = pending.message.block, pending.payload
        assert payload is not None
        if pending.sends:
            device.end_send(block)
        else:
            device.end_receive(block, payload)
        elements = Fraction(payload.size if pending.sends else 0)
        return End(pending.message, block, done, elements)

    def _end_call(self, device: EmulatedDevice, call: CollectiveCall, done: float) -> End:
        node, rank, all_given = call.node, device.rank, call.meeting.given
        given, gotten = effects(node, rank).reads, effects(node, rank).writes
        made = results(node, rank, all_given, self._combine)
        received = dict(zip(gotten, made, strict=True))
        for name in given:
            if name not in gotten:
                device.end_send(name)
        for name, block in received.items():
            device.end_receive(name, block)
        return End(node, " ".join(gotten or given), done, sent(node, rank, all_given))
