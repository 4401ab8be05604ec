"""Channels between devices: a message is done only after both ends are posted."""

from __future__ import annotations

from dataclasses import dataclass

from primepar.errors import MismatchError
from primepar.reference.emulator.provenance import Block
from primepar.schedule.agreement import dispute
from primepar.schedule.program import ANY, ISend, Message, Send


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
        """The rank of the other end, or any that it may be."""
        peer = self.message.peer
        return (peer if peer != ANY else int(self.rank == 0),)

    @property
    def ends_at_once(self) -> bool:
        """Whether it is a buffered send, which waits for nothing."""
        return self.mode == "buffered"

    @property
    def mode(self) -> str:
        """How it sends; empty for a receive."""
        return getattr(self.message, "mode", "")

    def fits(self, other: PostedMessage) -> bool:
        """Whether MPI would match the opposite end with this one."""
        sent, received = (self, other) if self.sends else (other, self)
        tags = (ANY, sent.message.tag)
        return received.message.peer in (ANY, sent.rank) and received.message.tag in tags

    @property
    def channel(self) -> tuple[int, int, str]:
        """Source, destination and communicator: messages match in order within these."""
        ends = (self.rank, self.message.peer) if self.sends else (self.message.peer, self.rank)
        return *ends, self.message.communicator

    def __str__(self) -> str:
        """Text for error messages, `device 1 to receive I[0,0]`."""
        verb = f"receive {self.message.block}" if self.sends else f"send {self.message.block}"
        peer = self.message.peer
        return f"{'any device' if peer == ANY else f'device {peer}'} to {verb}"


class Channels:
    """All posted ends without a matching end; under the rules of MPI tags select."""

    def __init__(self, transfer: float, mpi: bool) -> None:
        self._transfer, self._mpi = transfer, mpi
        self._open: dict[tuple[int, int, str], list[PostedMessage]] = {}

    def post(self, end: PostedMessage) -> None:
        """Match an end with the oldest opposite end of its channel, or keep it open.

        Raises `MismatchError` if the two ends have different tags, and for a ready send without a
        posted receive.
        """
        source, target, communicator = end.channel
        channel = (ANY if self._mpi else source, target, communicator)
        waiting = self._open.setdefault(channel, [])
        opposite = (other for other in waiting if other.sends != end.sends)
        other = next((other for other in opposite if not self._mpi or end.fits(other)), None)
        if other is None:
            if end.mode == "ready":
                raise MismatchError(
                    "expected the receive of a ready send to be posted before, got none: post it "
                    "earlier, and let this device wait for it, or drop the mode"
                )
            waiting.append(end)
            return
        waiting.remove(other)
        self._match(*(end, other) if end.sends else (other, end))

    def never_received(self) -> PostedMessage | None:
        """Return a send that nothing has received; None if there is none."""
        sends = (end for waiting in self._open.values() for end in waiting if end.sends)
        return next(sends, None)

    def _match(self, sent: PostedMessage, received: PostedMessage) -> None:
        if received.message.tag not in (sent.message.tag, ANY):
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
