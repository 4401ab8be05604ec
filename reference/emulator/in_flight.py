"""What is between the devices: messages and collectives, from the post to the end.

A block is in flight from the post to the end of what uses it: one that is only given may be read
and not changed, one that is got, given too or not, may not be touched.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

from primepar.reference.emulator.collectives import Combine, Meeting, Meetings, results, sent
from primepar.reference.emulator.device import EmulatedDevice
from primepar.reference.emulator.messages import Channels, Message, PostedMessage
from primepar.schedule.program import Collective
from primepar.schedule.program_uses import gets, gives


@dataclass
class CollectiveCall:
    """One member's part in a collective, posted at `time`."""

    node: Collective
    time: float
    meeting: Meeting

    @property
    def done(self) -> float | None:
        """Time at which the collective was over."""
        return self.meeting.done

    @property
    def waits_for(self) -> tuple[int, ...]:
        """Ranks whose part is missing."""
        return self.meeting.missing()

    def __str__(self) -> str:
        return str(self.meeting)


class End(NamedTuple):
    """What was over at `done`, the block it brought or took, and the elements that it sent."""

    node: Message | Collective
    block: str
    done: float
    sent: Fraction


class InFlight:
    """Posts and ends messages and collectives."""

    def __init__(self, combine: Combine) -> None:
        self._channels, self._meetings, self._combine = Channels(), Meetings(), combine

    def post(self, device: EmulatedDevice, message: Message) -> PostedMessage:
        """Start one end of a message. Raises an `EmulationError` where that is not possible."""
        post = PostedMessage(device.rank, message, device.clock)
        if post.sends:
            post.payload = device.begin_send(message.block)
        else:
            device.begin_receive(message.block)
        self._channels.post(post)
        return post

    def call(self, device: EmulatedDevice, node: Collective) -> CollectiveCall:
        """Start one member's part. Raises an `EmulationError` where that is not possible."""
        given, gotten = gives(node, device.rank), gets(node, device.rank)
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
        """Take what is done off the wire. Raises an `EmulationError` for what must not arrive."""
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
        given, gotten = gives(node, rank), gets(node, rank)
        made = results(node, rank, all_given, self._combine)
        brought = dict(zip(gotten, made, strict=True))
        for name in given:
            if name not in gotten:
                device.end_send(name)
        for name, block in brought.items():
            device.end_receive(name, block)
        return End(node, " ".join(gotten or given), done, sent(node, rank, all_given))
