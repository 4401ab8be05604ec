"""Messages of the stand-in for `mpi4py.MPI.Comm`: buffers, and objects that are pickled."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

from primepar.preflight.mpi.rank_side import MpiOutcome, RankSide
from primepar.preflight.mpi.requests import Finish, Request, Status
from primepar.preflight.mpi.values import MpiBuffer
from primepar.schedule.program import ANY, Group, IRecv, ISend, Recv, Send

PROC_NULL = -2
PICKLED = "pickled object"


class Messages:
    """The messages of a communicator; `group` has the ranks of the whole run."""

    def __init__(self, side: RankSide, name: str, group: tuple[int, ...]) -> None:
        self._side, self._name, self._group = side, name, group

    # How messages are recorded

    def _fields(self, peer: int, tag: int) -> dict[str, Any]:
        known = range(len(self._group))
        if peer not in known and peer != ANY:
            raise ValueError(f"expected a rank below {len(self._group)}, got {peer}")
        world = ANY if peer == ANY else self._group[peer]
        return {"peer": world, "tag": tag, "communicator": self._name}

    def _send(
        self, data: bytes, claims: dict[str, Any], dest: int, tag: int, mode: str
    ) -> Callable[[str | None], list[int]]:
        """Return the function that posts a send; with a request it is not blocking."""

        def post(request: str | None) -> list[int]:
            fields = self._fields(dest, tag) | claims | {"mode": mode}
            node = Send(**fields) if request is None else ISend(**fields, request=request)
            return self._side.post(node, payloads=[data])

        return post

    def _receive(
        self, claims: dict[str, Any], room: int | None, source: int, tag: int
    ) -> Callable[[str | None], list[int]]:
        def post(request: str | None) -> list[int]:
            fields = self._fields(source, tag) | claims
            node = Recv(**fields) if request is None else IRecv(**fields, request=request)
            return self._side.post(node, rooms=[room])

        return post

    def _object(self, value: Any) -> tuple[bytes, dict[str, Any]]:
        return pickle.dumps(value), self._object_claims()

    def _object_claims(self) -> dict[str, Any]:
        """The block and type of an object."""
        return {"block": self._side.name("object"), "dtype": PICKLED}

    def _buffer(self, given: Any) -> tuple[bytes, dict[str, Any]]:
        buffer = MpiBuffer.of(given)
        return buffer.data(), {
            "block": self._side.buffer(buffer.place),
            "dtype": buffer.dtype,
            "count": buffer.size,
        }

    def _filled(self, given: Any) -> tuple[Finish, dict[str, Any], int]:
        """What writes a message to a buffer, what its receive states, and the room."""
        buffer = MpiBuffer.of(given)

        def finish(outcome: MpiOutcome, status: Status | None) -> None:
            buffer.fill(outcome.payloads[0])
            size = len(outcome.payloads[0]) // buffer.elements.itemsize
            self._note(outcome, status, size)

        return (
            finish,
            {"block": self._side.buffer(buffer.place), "dtype": buffer.dtype},
            buffer.size,
        )

    def _unpickled(self, outcome: MpiOutcome, status: Status | None) -> Any:
        self._note(outcome, status, len(outcome.payloads[0]))
        return pickle.loads(outcome.payloads[0])

    def _note(self, outcome: MpiOutcome, status: Status | None, size: int) -> None:
        if status is not None:
            status.set(self._group.index(outcome.source), outcome.tag, size)

    def _posted(
        self, post: Callable[[str | None], list[int]], finish: Finish | None = None
    ) -> Request:
        name = self._side.name("request")
        return Request(self._side, name, post(name), finish)

    def _persistent(
        self, post: Callable[[str | None], list[int]], finish: Finish | None = None
    ) -> Request:
        name = self._side.name("request")
        return Request(self._side, name, (), finish, lambda: post(name))

    # Sends

    def _sent(self, made: tuple[bytes, dict[str, Any]], dest: int, tag: int, mode: str) -> None:
        if dest != PROC_NULL:
            self._side.wait(self._send(*made, dest, tag, mode)(None))

    def _isent(self, made: tuple[bytes, dict[str, Any]], dest: int, tag: int, mode: str) -> Request:
        if dest == PROC_NULL:
            return Request(None)
        return self._posted(self._send(*made, dest, tag, mode))

    def Send(self, buf: Any, dest: int, tag: int = 0) -> None:
        self._sent(self._buffer(buf), dest, tag, "standard")

    def Ssend(self, buf: Any, dest: int, tag: int = 0) -> None:
        self._sent(self._buffer(buf), dest, tag, "synchronous")

    def Bsend(self, buf: Any, dest: int, tag: int = 0) -> None:
        self._sent(self._buffer(buf), dest, tag, "buffered")

    def Rsend(self, buf: Any, dest: int, tag: int = 0) -> None:
        self._sent(self._buffer(buf), dest, tag, "ready")

    def Isend(self, buf: Any, dest: int, tag: int = 0) -> Request:
        return self._isent(self._buffer(buf), dest, tag, "standard")

    def Issend(self, buf: Any, dest: int, tag: int = 0) -> Request:
        return self._isent(self._buffer(buf), dest, tag, "synchronous")

    def Ibsend(self, buf: Any, dest: int, tag: int = 0) -> Request:
        return self._isent(self._buffer(buf), dest, tag, "buffered")

    def Irsend(self, buf: Any, dest: int, tag: int = 0) -> Request:
        return self._isent(self._buffer(buf), dest, tag, "ready")

    def send(self, obj: Any, dest: int, tag: int = 0) -> None:
        self._sent(self._object(obj), dest, tag, "standard")

    def ssend(self, obj: Any, dest: int, tag: int = 0) -> None:
        self._sent(self._object(obj), dest, tag, "synchronous")

    def bsend(self, obj: Any, dest: int, tag: int = 0) -> None:
        self._sent(self._object(obj), dest, tag, "buffered")

    def isend(self, obj: Any, dest: int, tag: int = 0) -> Request:
        return self._isent(self._object(obj), dest, tag, "standard")

    def issend(self, obj: Any, dest: int, tag: int = 0) -> Request:
        return self._isent(self._object(obj), dest, tag, "synchronous")

    def ibsend(self, obj: Any, dest: int, tag: int = 0) -> Request:
        return self._isent(self._object(obj), dest, tag, "buffered")

    def Send_init(self, buf: Any, dest: int, tag: int = 0) -> Request:
        if dest == PROC_NULL:
            return Request(None)

        def post(request: str | None) -> list[int]:
            return self._send(*self._buffer(buf), dest, tag, "standard")(request)

        return self._persistent(post)

    # Receives

    def Recv(
        self, buf: Any, source: int = ANY, tag: int = ANY, status: Status | None = None
    ) -> None:
        if source != PROC_NULL:
            finish, claims, room = self._filled(buf)
            numbers = self._receive(claims, room, source, tag)(None)
            finish(self._side.wait(numbers)[0], status)
        elif status is not None:
            status.set(PROC_NULL, ANY)

    def recv(
        self, buf: Any = None, source: int = ANY, tag: int = ANY, status: Status | None = None
    ) -> Any:
        if source == PROC_NULL:
            return None
        claims = self._object_claims()
        numbers = self._receive(claims, None, source, tag)(None)
        return self._unpickled(self._side.wait(numbers)[0], status)

    def Irecv(self, buf: Any, source: int = ANY, tag: int = ANY) -> Request:
        if source == PROC_NULL:
            return Request(None)
        finish, claims, room = self._filled(buf)
        return self._posted(self._receive(claims, room, source, tag), finish)

    def irecv(self, buf: Any = None, source: int = ANY, tag: int = ANY) -> Request:
        if source == PROC_NULL:
            return Request(None)
        claims = self._object_claims()
        return self._posted(self._receive(claims, None, source, tag), self._unpickled)

    def Recv_init(self, buf: Any, source: int = ANY, tag: int = ANY) -> Request:
        if source == PROC_NULL:
            return Request(None)
        finish, claims, room = self._filled(buf)
        return self._persistent(self._receive(claims, room, source, tag), finish)

    # Both

    def _exchange(
        self,
        made: tuple[bytes, dict[str, Any]],
        dest: int,
        sendtag: int,
        claims: dict[str, Any],
        room: int | None,
        source: int,
        recvtag: int,
    ) -> MpiOutcome | None:
        """Send and receive together; None where nothing is received."""
        data, sent = made
        body: list[Any] = []
        if dest != PROC_NULL:
            body.append(Send(**self._fields(dest, sendtag), **sent))
        if source != PROC_NULL:
            body.append(Recv(**self._fields(source, recvtag), **claims))
        if not body:
            return None
        numbers = self._side.post(Group(tuple(body)), [data], [room], len(body))
        outcome = self._side.wait(numbers)[-1]
        return outcome if source != PROC_NULL else None

    def Sendrecv(
        self,
        sendbuf: Any,
        dest: int,
        sendtag: int = 0,
        recvbuf: Any = None,
        source: int = ANY,
        recvtag: int = ANY,
        status: Status | None = None,
    ) -> None:
        finish, claims, room = self._filled(recvbuf)
        made = self._buffer(sendbuf)
        outcome = self._exchange(made, dest, sendtag, claims, room, source, recvtag)
        if outcome is not None:
            finish(outcome, status)

    def Sendrecv_replace(
        self,
        buf: Any,
        dest: int,
        sendtag: int = 0,
        source: int = ANY,
        recvtag: int = ANY,
        status: Status | None = None,
    ) -> None:
        data, sent = self._buffer(buf)
        finish, claims, room = self._filled(buf)
        made = data, sent | {"block": sent["block"] + " as sent"}
        outcome = self._exchange(made, dest, sendtag, claims, room, source, recvtag)
        if outcome is not None:
            finish(outcome, status)

    def sendrecv(
        self,
        sendobj: Any,
        dest: int,
        sendtag: int = 0,
        recvbuf: Any = None,
        source: int = ANY,
        recvtag: int = ANY,
        status: Status | None = None,
    ) -> Any:
        claims = self._object_claims()
        made = self._object(sendobj)
        outcome = self._exchange(made, dest, sendtag, claims, None, source, recvtag)
        return None if outcome is None else self._unpickled(outcome, status)
