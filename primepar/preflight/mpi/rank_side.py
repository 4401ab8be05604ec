"""A rank's process in a capture of mpi4py: what it posts, and what it waits for.

The parent process matches messages and calls, and sends back the data: so a script computes with
real values, and takes the branches that it takes on a cluster.
"""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Sequence
from types import FrameType
from typing import Any, NoReturn

import msgspec
from msgspec.structs import replace

from primepar.preflight.capture.rank_link import receive_bytes, write
from primepar.preflight.capture.source_lines import line_of, source_line
from primepar.schedule.program import Instruction, Wait


class Post(msgspec.Struct, tag=True):
    """An instruction, with the data that its sends, or its call, carry.

    `rooms` has for each receive the elements that it has space for.
    """

    instruction: Instruction
    payloads: list[bytes] = []
    rooms: list[int | None] = []


class Await(msgspec.Struct, tag=True):
    """Numbers of posts that must be done before the rank goes on."""

    numbers: list[int]


class Missing(msgspec.Struct, tag=True):
    """Something that no instruction expresses, and where the script did it."""

    source: str
    what: str


class Ended(msgspec.Struct, tag=True):
    """The end of the script: the exception that it raised, if it did, and where."""

    raised: str = ""
    late: bool = False
    source: str = ""


FromMpiRank = Post | Await | Missing | Ended


class MpiOutcome(msgspec.Struct):
    """What came of a post: the source and tag of a message, and its data, or that of all members.

    Empty for a send.
    """

    source: int = -1
    tag: int = -1
    payloads: list[bytes] = []


_OUTCOMES = msgspec.msgpack.Decoder(list[MpiOutcome])


class NotModelledError(BaseException):
    """The script did what is not modelled: its rank ends here. No handler of users sees it."""


class RankSide:
    """The rank's end of the connection to the parent."""

    def __init__(self, connection: socket.socket, rank: int, ranks: int, limit: float) -> None:
        self._connection, self.rank, self.ranks = connection, rank, ranks
        self._posted = 0
        self._names: dict[str, int] = {}
        self._buffers: dict[str, str] = {}
        """Place in memory -> the name of its block."""
        signal.signal(signal.SIGALRM, self._late)
        signal.setitimer(signal.ITIMER_REAL, limit)

    def name(self, prefix: str) -> str:
        """Return a name that no other block, request or communicator of this rank has."""
        self._names[prefix] = number = self._names.get(prefix, -1) + 1
        return f"{prefix}{number}"

    def buffer(self, place: str) -> str:
        """Return the name of a buffer, by its place in memory."""
        if place not in self._buffers:
            self._buffers[place] = self.name("buffer")
        return self._buffers[place]

    def post(
        self,
        instruction: Any,
        payloads: Sequence[bytes] = (),
        rooms: Sequence[int | None] = (),
        count: int = 1,
    ) -> list[int]:
        """Post messages or a call, and return the numbers to wait for."""
        placed = replace(instruction, source=source_line() or None)
        write(self._connection, Post(placed, list(payloads), list(rooms)))
        first, self._posted = self._posted, self._posted + count
        return list(range(first, self._posted))

    def wait(self, numbers: Sequence[int], requests: Sequence[str] = ()) -> list[MpiOutcome]:
        """Wait until posts are done; `requests` are those that waits in the program name."""
        for request in requests:
            self.post(Wait(request), count=0)
        write(self._connection, Await(list(numbers)))
        left, _ = signal.setitimer(signal.ITIMER_REAL, 0)
        outcomes = _OUTCOMES.decode(receive_bytes(self._connection))
        signal.setitimer(signal.ITIMER_REAL, left)
        return outcomes

    def note(self, what: str) -> None:
        """Report what is not modelled; the verdict is then not proved."""
        write(self._connection, Missing(source_line(), what))

    def stop(self, what: str) -> NoReturn:
        """Report what is not modelled, and end the rank there."""
        self.note(what)
        raise NotModelledError

    def end(self, end: Ended) -> NoReturn:
        """Report the end, and end the process."""
        signal.setitimer(signal.ITIMER_REAL, 0)
        write(self._connection, end)
        os._exit(0)

    def _late(self, number: int, frame: FrameType | None) -> None:
        self.end(Ended(late=True, source=line_of(frame)))
