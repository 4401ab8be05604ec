"""How a rank's process talks with its parent: small values that other ranks need, and its end.

Ranks run one after another, so that a value may be asked for before its sender has run. The asking
process then waits until the parent has the value. Where no rank ever sends it, a real run would
hang there, and so the recording of the rank ends there.
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

_HEAD = struct.Struct("<Q")


class NeverComesError(BaseException):
    """A value that no rank sends: the rank hangs where it asked. No handler of users sees it."""


class ValueMessage(msgspec.Struct, tag=True):
    """A value under its key; None where it depends on what other ranks computed."""

    key: str
    value: bytes | None


class ValueRequest(msgspec.Struct, tag=True):
    """The keys of values that are needed now."""

    keys: list[str]


class RankEnd(msgspec.Struct, tag=True):
    """What a rank recorded until its end, or why it could not."""

    recording: RankRecording | None = None
    raised: str = ""
    """The exception of the script, `ValueError: ...`."""
    late: bool = False
    source: str = ""
    """Where it raised, or was at the limit."""


FromRank = ValueMessage | ValueRequest | RankEnd
_ENCODER = msgspec.msgpack.Encoder()
_DECODER: msgspec.msgpack.Decoder[FromRank] = msgspec.msgpack.Decoder(FromRank)
_Values = list[bytes | None] | None
_VALUES: msgspec.msgpack.Decoder[_Values] = msgspec.msgpack.Decoder(_Values)


class RankLink:
    """The rank's end of the connection. `limit` is the seconds that the rank may run."""

    def __init__(self, connection: socket.socket, limit: float) -> None:
        self._connection = connection
        signal.signal(signal.SIGALRM, self._late)
        signal.setitimer(signal.ITIMER_REAL, limit)

    def give(self, key: str, value: bytes | None) -> None:
        """Give a value to every rank that asks for its key."""
        write(self._connection, ValueMessage(key, value))

    def ask(self, keys: list[str]) -> list[bytes | None]:
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
