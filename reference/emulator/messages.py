"""Channels between devices: a message is done only after both ends are posted."""

from __future__ import annotations

from dataclasses import dataclass

from primepar.errors import MismatchError
from primepar.reference.emulator.provenance import Block
from primepar.schedule.agreement import dispute
from primepar.schedule.program import ISend, Message, Send


@dataclass(eq=False)
class PostedMessage:
    """One end of a message; `done` is the time at which it is done, `payload` the sent block."""

    rank: int
    message: Message
    time: float
    payload: Block | None = None
    done: float | None = None

    @property
    def sends(self) -> bool:
        """Whether this is the sending end."""
        return isinstance(self.message, Send | ISend)

    @property
    def waits_for(self) -> tuple[int, ...]:
        """The rank of the other end."""
        return (self.message.peer,)

    @property
    def channel(self) -> tuple[int, int, str]:
        """Source, destination and communicator: messages match in order within these."""
        ends = (self.rank, self.message.peer) if self.sends else (self.message.peer, self.rank)
        return *ends, self.message.communicator

    def __str__(self) -> str:
        """Text for error messages, `device 1 to receive I[0,0]`."""
        verb = f"receive {self.message.block}" if self.sends else f"send {self.message.block}"
        return f"device {self.message.peer} to {verb}"


class Channels:
    """All posted ends without a matching end."""

    def __init__(self, transfer: float) -> None:
        self._transfer = transfer
        self._open: dict[tuple[int, int, str], list[PostedMessage]] = {}

    def post(self, end: PostedMessage) -> None:
        """Match an end with the oldest opposite end of its channel, or keep it open.

        Raises `MismatchError` if the two ends have different tags.
        """
        waiting = self._open.setdefault(end.channel, [])
        # All that wait in a channel are of one direction: an opposite end would have met the first.
        if not waiting or waiting[0].sends == end.sends:
            waiting.append(end)
            return
        other = waiting.pop(0)
        self._match(*(end, other) if end.sends else (other, end))

    def _match(self, sent: PostedMessage, received: PostedMessage) -> None:
        if received.message.tag != sent.message.tag:
            raise MismatchError(
                f"expected tag {received.message.tag} for {received.message.block} from device "
                f"{sent.rank} to device {received.rank}, got {sent.message.block} with tag "
                f"{sent.message.tag}: post sends and receives in one order, tags select nothing"
            )
        wrong = dispute([(sent.rank, sent.message), (received.rank, received.message)])
        if wrong is not None:
            raise MismatchError(
                f"expected {wrong.claim} {wrong.want} of {sent.message.block} from device "
                f"{sent.rank}, got {wrong.got} on device {received.rank}: write the same on both "
                "sides"
            )
        sent.done = received.done = max(sent.time, received.time) + self._transfer
        received.payload = sent.payload
