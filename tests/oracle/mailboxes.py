"""Posted messages of the explorer that are not yet delivered, and which pairs may be next."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from oracle.contents import CellSums
from primepar.schedule.agreement import dispute
from primepar.schedule.program import ANY, ISend, Message, Send

Box = tuple[int, int, str]
"""Source, destination and communicator; under the rules of MPI the source is `ANY`."""


class Side(NamedTuple):
    """One side of a message; what is sent is read at its delivery, unless it is buffered."""

    rank: int
    number: int
    """How many messages the rank has posted before."""
    message: Message
    payload: CellSums | None = None

    @property
    def sends(self) -> bool:
        """Whether it is the sender's."""
        return isinstance(self.message, Send | ISend)

    @property
    def name(self) -> tuple[int, int]:
        """Its rank and number."""
        return self.rank, self.number

    @property
    def mode(self) -> str:
        """How it sends; empty for a receive."""
        return getattr(self.message, "mode", "")

    @property
    def may_be_buffered(self) -> bool:
        """Whether the system may let it return before it is received."""
        return self.mode in ("standard", "ready")


class Pair(NamedTuple):
    """A send and a receive that may be the next to be delivered."""

    send: Side
    receive: Side


class Mailboxes:
    """The undelivered messages, in the order of their posts."""

    def __init__(self, mpi: bool, boxes: dict[Box, tuple[Side, ...]]) -> None:
        self.mpi, self.boxes = mpi, boxes
        self.ready: dict[Box, list[Pair]] = {}
        """What fits, and may be next; its sides may dispute."""
        self.undelivered: set[tuple[int, int]] = set()
        """Names of the sides."""

    def copy(self) -> Mailboxes:
        """Return other mailboxes with the same messages."""
        other = Mailboxes(self.mpi, dict(self.boxes))
        other.ready, other.undelivered = dict(self.ready), set(self.undelivered)
        return other

    def post(self, side: Side) -> None:
        """Add a message."""
        box = self._box(side)
        self.undelivered.add(side.name)
        self._replace(box, (*self.boxes.get(box, ()), side))

    def remove(self, pair: Pair) -> None:
        """Remove a message that is delivered."""
        box = self._box(pair.send)
        self.undelivered -= {side.name for side in pair}
        gone = {side.name for side in pair}
        self._replace(box, tuple(side for side in self.boxes[box] if side.name not in gone))

    def has_partner(self, side: Side) -> bool:
        """Whether the receive of a send is posted, if no receive is from any rank."""
        sides = self.boxes[self._box(side)]
        while pair := next(self._pairs(sides), None):
            if side in pair:
                return True
            sides = tuple(other for other in sides if other not in pair)
        return False

    def _replace(self, box: Box, sides: tuple[Side, ...]) -> None:
        self.boxes[box] = sides
        if not sides:
            del self.boxes[box]
        pairs = list(self._pairs(sides))
        if pairs:
            self.ready[box] = pairs
        else:
            self.ready.pop(box, None)

    def _box(self, side: Side) -> Box:
        message = side.message
        source, target = (side.rank, message.peer) if side.sends else (message.peer, side.rank)
        return (ANY if self.mpi else source), target, message.communicator

    def _pairs(self, sides: tuple[Side, ...]) -> Iterator[Pair]:
        """Yield pairs of which each side is the first that fits the other, of its sender."""
        sends = [side for side in sides if side.sends]
        receives = [side for side in sides if not side.sends]
        if not self.mpi:
            pairs = zip(sends[:1], receives[:1], strict=False)
            yield from (Pair(*pair) for pair in pairs if _tags_fit(*pair))
            return
        for number, receive in enumerate(receives):
            senders = set()
            for send in sends:
                if send.rank in senders or not _fits(send, receive):
                    continue
                senders.add(send.rank)
                if not any(_fits(send, earlier) for earlier in receives[:number]):
                    yield Pair(send, receive)


def _fits(send: Side, receive: Side) -> bool:
    return receive.message.peer in (ANY, send.rank) and _tags_fit(send, receive)


def _tags_fit(send: Side, receive: Side) -> bool:
    return receive.message.tag in (ANY, send.message.tag)


def is_disputed(pair: Pair) -> bool:
    """Whether the sides state different counts or types of data."""
    return dispute([(side.rank, side.message) for side in pair]) is not None
