"""Posted messages of the explorer that are not yet delivered, and which pairs may be next."""

from __future__ import annotations

from typing import NamedTuple

from oracle.contents import CellSums
from primepar.schedule.matching import Elements, dispute
from primepar.schedule.program import ISend, Message, Send

Box = tuple[int, int, str]
"""Source, destination and communicator."""


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


class Pair(NamedTuple):
    """A send and a receive that may be the next to be delivered."""

    send: Side
    receive: Side


class Mailboxes:
    """The undelivered messages, in the order of their posts."""

    def __init__(self, boxes: dict[Box, tuple[Side, ...]]) -> None:
        self.boxes = boxes
        self.ready: dict[Box, Pair] = {}
        """The first send and the first receive of a box, if their tags fit; they may dispute."""
        self.undelivered: set[tuple[int, int]] = set()
        """Names of the sides."""

    def copy(self) -> Mailboxes:
        """Return other mailboxes with the same messages."""
        other = Mailboxes(dict(self.boxes))
        other.ready, other.undelivered = dict(self.ready), set(self.undelivered)
        return other

    def post(self, side: Side) -> Pair | None:
        """Add a message; returns the two sides of its box that are the next to meet."""
        box = self._box(side)
        self.undelivered.add(side.name)
        return self._replace(box, (*self.boxes.get(box, ()), side))

    def remove(self, pair: Pair) -> Pair | None:
        """Remove a message that is delivered; returns the next two of its box."""
        box = self._box(pair.send)
        self.undelivered -= {side.name for side in pair}
        gone = {side.name for side in pair}
        return self._replace(box, tuple(side for side in self.boxes[box] if side.name not in gone))

    def _replace(self, box: Box, sides: tuple[Side, ...]) -> Pair | None:
        self.boxes[box] = sides
        if not sides:
            del self.boxes[box]
        send = next((side for side in sides if side.sends), None)
        receive = next((side for side in sides if not side.sends), None)
        if send and receive and send.message.tag == receive.message.tag:
            self.ready[box] = Pair(send, receive)
        else:
            self.ready.pop(box, None)
        return self.ready.get(box)

    def _box(self, side: Side) -> Box:
        message = side.message
        source, target = (side.rank, message.peer) if side.sends else (message.peer, side.rank)
        return source, target, message.communicator


def is_disputed(pair: Pair, elements: Elements) -> bool:
    """Whether the sides state different counts or types of data, or are of different sizes."""
    return dispute([(side.rank, side.message) for side in pair], elements) is not None
