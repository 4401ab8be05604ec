"""How a rank's process talks with its parent: small values that other ranks need, and its end.

Ranks run one after another, so that a value may be asked for before its sender has run. The asking
process then waits until the parent has the value. Where no rank ever sends it, a real run would
hang there, and so the recording of the rank ends there.

With each value its sender states what it called: `AllReduce sum 1 4 int64`. The receiver compares
that with its own call before it takes the value. Where they differ, the recording ends there too:
what follows would be the doing of a value that nobody meant for it.
"""

from __future__ import annotations

import os
import signal
import socket
import struct
from types import FrameType
from typing import Any, NoReturn

import msgspec

from primepar.preflight.capture.source_lines import line_of
from primepar.preflight.recording import RankRecording
from primepar.schedule.program import Instruction

_HEAD = struct.Struct("<Q")


class NeverComesError(BaseException):
    """A value that no rank sends: the rank hangs where it asked. No handler of users sees it."""


class GivenValue(msgspec.Struct, frozen=True, array_like=True):
    """A value, and what its sender stated of the call; None depends on what others computed."""

    statement: str
    value: bytes | None
    lineage: int = 0
    """How its sender computed it: the receiver holds the same."""


class ValueMessage(msgspec.Struct, tag=True):
    """A value under its key."""

    key: str
    value: GivenValue


class ValueRequest(msgspec.Struct, tag=True):
    """The keys of values that are needed now."""

    keys: list[str]


class RankStep(msgspec.Struct, tag=True):
    """An instruction of a rank that is watched step by step, as its process died before."""

    place: int
    instruction: Instruction


class RankEnd(msgspec.Struct, tag=True):
    """What a rank recorded until its end, or why it could not."""

    recording: RankRecording | None = None
    raised: str = ""
    """An exception of the recorder."""
    late: bool = False
    source: str = ""
    """Where it was at the limit."""


FromRank = ValueMessage | ValueRequest | RankStep | RankEnd
_ENCODER = msgspec.msgpack.Encoder()
_DECODER: msgspec.msgpack.Decoder[FromRank] = msgspec.msgpack.Decoder(FromRank)
_Values = list[GivenValue] | None
_VALUES: msgspec.msgpack.Decoder[_Values] = msgspec.msgpack.Decoder(_Values)


class RankLink:
    """The rank's end of the connection. `limit` is the seconds that the rank may run.

    With `stepwise` every instruction is reported at once.
    """

    def __init__(self, connection: socket.socket, limit: float, stepwise: bool = False) -> None:
        self._connection, self.stepwise = connection, stepwise
        signal.signal(signal.SIGALRM, self._late)
        signal.setitimer(signal.ITIMER_REAL, limit)

    def give(self, key: str, value: GivenValue) -> None:
        """Give a value to every rank that asks for its key."""
        write(self._connection, ValueMessage(key, value))

    def step(self, place: int, instruction: Instruction) -> None:
        """Report an instruction, which may take the place of an earlier one."""
        if self.stepwise:
            write(self._connection, RankStep(place, instruction))

    def ask(self, keys: list[str]) -> list[GivenValue]:
        """Return the values of these keys. Raises `NeverComesError` if one is never given."""
        left, _ = signal.setitimer(signal.ITIMER_REAL, 0)
        write(self._connection, ValueRequest(keys))
        values = _VALUES.decode(receive_bytes(self._connection))
        signal.setitimer(signal.ITIMER_REAL, left)
        if values is None:
            raise NeverComesError
        return values

    def end(self, end: RankEnd) -> NoReturn:
        """Report the end, and end the process without any clean-up of the script's libraries."""
        signal.setitimer(signal.ITIMER_REAL, 0)
        write(self._connection, end)
        os._exit(0)

    def _late(self, number: int, frame: FrameType | None) -> None:
        self.end(RankEnd(late=True, source=line_of(frame)))


def write(connection: socket.socket, message: Any) -> None:
    """Write one message."""
    data = _ENCODER.encode(message)
    connection.sendall(_HEAD.pack(len(data)) + data)


def read(connection: socket.socket) -> FromRank | None:
    """Return the next message of a rank; None if its process died."""
    try:
        return _DECODER.decode(receive_bytes(connection))
    except EOFError:
        return None


def receive_bytes(connection: socket.socket) -> bytes:
    """Return the next message as it was written. Raises `EOFError` at the end."""
    size = _HEAD.unpack(_exactly(connection, _HEAD.size))[0]
    return _exactly(connection, size)


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        part = connection.recv(min(size - len(data), 1 << 20))
        if not part:
            raise EOFError
        data += part
    return bytes(data)
