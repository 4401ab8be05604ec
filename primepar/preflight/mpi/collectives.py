"""Collectives of the stand-in for `mpi4py.MPI.Comm`.

A call gives its data, and gets those of all members once all have made the same call; what it
writes to its buffer, or returns, is computed from these on each rank.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np
from msgspec.structs import replace

from primepar.preflight.mpi.point_to_point import PICKLED, Messages
from primepar.preflight.mpi.rank_side import MpiOutcome
from primepar.preflight.mpi.requests import Request, Status
from primepar.preflight.mpi.values import OPS, MpiBuffer, Op
from primepar.schedule.program import (
    AllGather,
    AllReduce,
    AllToAll,
    Barrier,
    Broadcast,
    Gather,
    Reduce,
    ReduceScatter,
    Scan,
    Scatter,
)

IN_PLACE = object()
Use = Callable[[list[bytes]], Any]
"""What a member does with the data of all members."""


class MpiCollectives(Messages):
    """The collectives of a communicator. `posts` turns a method into its form with a request."""

    @property
    def _own(self) -> int:
        return self._group.index(self._side.rank)

    def _call(self, node: Any, data: bytes, use: Use, posted: bool = False) -> Any:
        """Make a call, whose result is returned, or post it, and return its request."""
        if not posted:
            return use(self._side.wait(self._side.post(node, [data]))[0].payloads)

        def finish(outcome: MpiOutcome, status: Status | None) -> Any:
            return use(outcome.payloads)

        def post(request: str | None) -> list[int]:
            return self._side.post(replace(node, request=request), [data])

        return self._posted(post, finish)

    def _common(self) -> dict[str, Any]:
        return {"group": self._group, "communicator": self._name}

    def _names(self, name: str) -> tuple[str, ...]:
        return tuple(f"{name}[{place}]" for place in range(len(self._group)))

    def _block(self, buffer: MpiBuffer) -> str:
        return self._side.buffer(buffer.place)

    def _parts(self, buffer: MpiBuffer | None) -> tuple[str, ...]:
        """Names for the parts of a buffer; none off the root."""
        return () if buffer is None else self._names(self._block(buffer))

    # Buffers

    def Barrier(self) -> None:
        self._barrier(posted=False)

    def Ibarrier(self) -> Request:
        request: Request = self._barrier(posted=True)
        return request

    def _barrier(self, posted: bool) -> Any:
        return self._call(Barrier(**self._common()), b"", lambda data: None, posted)

    def Bcast(self, buf: Any, root: int = 0, posted: bool = False) -> Any:
        buffer = MpiBuffer.of(buf)
        node = Broadcast(**self._common(), block=self._block(buffer), root=self._group[root],
                         count=buffer.size, dtype=buffer.dtype)  # fmt: skip
        data = buffer.data() if root == self._own else b""
        return self._call(node, data, lambda given: buffer.fill(given[root]), posted)

    def _reducing(
        self, kind: Any, sendbuf: Any, recvbuf: Any, op: Op, posted: bool, **fields: Any
    ) -> Any:
        """Reduce; each kind of call takes other members' data, in the order of the ranks."""
        source = recvbuf if sendbuf is IN_PLACE else sendbuf
        given = MpiBuffer.of(source)
        into = MpiBuffer.of(source if recvbuf is None else recvbuf)
        node = kind(**self._common(), block=self._block(into), reduction=op.reduction,
                    count=given.size, dtype=op.typed(given.dtype), **fields)  # fmt: skip

        def use(data: list[bytes]) -> None:
            taken = _taken(data, node, self._own, fields.get("root"), self._group)
            if taken:
                arrays = [np.frombuffer(part, given.dtype) for part in taken]
                into.fill(np.asarray(reduce(op.function, arrays)).astype(given.dtype).tobytes())

        return self._call(node, given.data(), use, posted)

    def Allreduce(
        self, sendbuf: Any, recvbuf: Any, op: Op = OPS["SUM"], posted: bool = False
    ) -> Any:
        return self._reducing(AllReduce, sendbuf, recvbuf, op, posted)

    def Reduce(
        self,
        sendbuf: Any,
        recvbuf: Any,
        op: Op = OPS["SUM"],
        root: int = 0,
        posted: bool = False,
    ) -> Any:
        return self._reducing(Reduce, sendbuf, recvbuf, op, posted, root=self._group[root])

    def Scan(self, sendbuf: Any, recvbuf: Any, op: Op = OPS["SUM"], posted: bool = False) -> Any:
        return self._reducing(Scan, sendbuf, recvbuf, op, posted)

    def Exscan(self, sendbuf: Any, recvbuf: Any, op: Op = OPS["SUM"], posted: bool = False) -> Any:
        return self._reducing(Scan, sendbuf, recvbuf, op, posted, exclusive=True)

    def _given(self, sendbuf: Any, into: MpiBuffer | None) -> MpiBuffer:
        """What a member gives to a gather; in place it is its part of the result."""
        if sendbuf is not IN_PLACE or into is None:
            return MpiBuffer.of(sendbuf)
        return MpiBuffer(np.frombuffer(into.part(self._own, len(self._group)), into.dtype))

    def Gather(self, sendbuf: Any, recvbuf: Any, root: int = 0, posted: bool = False) -> Any:
        size = len(self._group)
        into = MpiBuffer.of(recvbuf) if root == self._own else None
        given = self._given(sendbuf, into)
        node = Gather(
            **self._common(), block=self._block(given), root=self._group[root], count=given.size,
            blocks=self._parts(into), dtype=given.dtype,
            counts=into.sizes(size) if into else None,
        )  # fmt: skip
        return self._call(node, given.data(), lambda data: _fill(into, data), posted)

    def Allgather(self, sendbuf: Any, recvbuf: Any, posted: bool = False) -> Any:
        into, size = MpiBuffer.of(recvbuf), len(self._group)
        given = self._given(sendbuf, into)
        node = AllGather(**self._common(), block=self._block(given), blocks=self._parts(into),
                         count=given.size, counts=into.sizes(size), dtype=given.dtype)  # fmt: skip
        return self._call(node, given.data(), lambda data: _fill(into, data), posted)

    def Scatter(self, sendbuf: Any, recvbuf: Any, root: int = 0, posted: bool = False) -> Any:
        size = len(self._group)
        given = MpiBuffer.of(sendbuf) if root == self._own else None
        in_place = recvbuf is IN_PLACE and given is not None
        into = given if given is not None and in_place else MpiBuffer.of(recvbuf)
        node = Scatter(
            **self._common(), block=self._block(into), root=self._group[root], dtype=into.dtype,
            count=None if in_place else into.size,
            blocks=self._parts(given),
            counts=given.sizes(size) if given else None,
        )  # fmt: skip
        parts = [given.part(place, size) for place in range(size)] if given else []

        def use(data: list[bytes]) -> None:
            if not in_place:
                into.fill(pickle.loads(data[root])[self._own])

        return self._call(node, pickle.dumps(parts), use, posted)

    def Alltoall(self, sendbuf: Any, recvbuf: Any, posted: bool = False) -> Any:
        size, into = len(self._group), MpiBuffer.of(recvbuf)
        given = into if sendbuf is IN_PLACE else MpiBuffer.of(sendbuf)
        node = AllToAll(
            **self._common(), blocks=self._parts(given), into=self._names(self._block(into) + ">"),
            counts=given.sizes(size), into_counts=into.sizes(size), dtype=given.dtype,
        )  # fmt: skip
        parts = [given.part(place, size) for place in range(size)]

        def use(data: list[bytes]) -> None:
            _fill(into, [pickle.loads(lists)[self._own] for lists in data])

        return self._call(node, pickle.dumps(parts), use, posted)

    def Reduce_scatter_block(
        self, sendbuf: Any, recvbuf: Any, op: Op = OPS["SUM"], posted: bool = False
    ) -> Any:
        return self.Reduce_scatter(sendbuf, recvbuf, None, op, posted)

    def Reduce_scatter(
        self,
        sendbuf: Any,
        recvbuf: Any,
        recvcounts: Any = None,
        op: Op = OPS["SUM"],
        posted: bool = False,
    ) -> Any:
        into, size = MpiBuffer.of(recvbuf), len(self._group)
        given = MpiBuffer.of(sendbuf)
        if recvcounts is not None:
            given = given._replace(counts=tuple(map(int, recvcounts)))
        node = ReduceScatter(
            **self._common(), blocks=self._parts(given), block=self._block(into),
            reduction=op.reduction, counts=given.sizes(size), dtype=op.typed(given.dtype),
        )  # fmt: skip

        def use(data: list[bytes]) -> None:
            total = np.asarray(
                reduce(op.function, [np.frombuffer(part, given.dtype) for part in data])
            )
            whole = MpiBuffer(total, given.sizes(size))
            into.fill(whole.part(self._own, size))

        return self._call(node, given.data(), use, posted)

    Gatherv, Scatterv, Allgatherv, Alltoallv = Gather, Scatter, Allgather, Alltoall

    # Pickled objects

    def barrier(self) -> None:
        self.Barrier()

    def _objects(self, node: Any, value: Any) -> list[Any]:
        """Make a call with an object, and return those of all members."""
        data: list[bytes] = self._call(node, pickle.dumps(value), lambda given: given)
        return [pickle.loads(part) for part in data]

    def _pickled(self) -> dict[str, Any]:
        return {**self._common(), **self._object_claims()}

    def bcast(self, obj: Any = None, root: int = 0) -> Any:
        node = Broadcast(**self._pickled(), root=self._group[root])
        return self._objects(node, obj if root == self._own else None)[root]

    def gather(self, sendobj: Any, root: int = 0) -> list[Any] | None:
        is_root = root == self._own
        blocks = self._names(self._side.name("gathered")) if is_root else ()
        node = Gather(**self._pickled(), root=self._group[root], blocks=blocks)
        objects = self._objects(node, sendobj)
        return objects if is_root else None

    def scatter(self, sendobj: Any = None, root: int = 0) -> Any:
        blocks = self._names(self._side.name("scattered")) if root == self._own else ()
        node = Scatter(**self._pickled(), root=self._group[root], blocks=blocks)
        return self._objects(node, sendobj)[root][self._own]

    def allgather(self, sendobj: Any) -> list[Any]:
        blocks = self._names(self._side.name("gathered"))
        return self._objects(AllGather(**self._pickled(), blocks=blocks), sendobj)

    def alltoall(self, sendobj: Any) -> list[Any]:
        name = self._side.name("exchanged")
        node = AllToAll(**self._common(), blocks=self._names(name), dtype=PICKLED,
                        into=self._names(name + ">"))  # fmt: skip
        return [objects[self._own] for objects in self._objects(node, list(sendobj))]

    def _reduced(self, kind: Any, value: Any, op: Op, **fields: Any) -> Any:
        typed = {**self._pickled(), "dtype": op.typed(PICKLED)}
        node = kind(**typed, reduction=op.reduction, **fields)
        objects = self._objects(node, value)
        taken = _taken(objects, node, self._own, fields.get("root"), self._group)
        return reduce(op.function, taken) if taken else None

    def reduce(self, sendobj: Any, op: Op = OPS["SUM"], root: int = 0) -> Any:
        return self._reduced(Reduce, sendobj, op, root=self._group[root])

    def allreduce(self, sendobj: Any, op: Op = OPS["SUM"]) -> Any:
        return self._reduced(AllReduce, sendobj, op)

    def scan(self, sendobj: Any, op: Op = OPS["SUM"]) -> Any:
        return self._reduced(Scan, sendobj, op)

    def exscan(self, sendobj: Any, op: Op = OPS["SUM"]) -> Any:
        return self._reduced(Scan, sendobj, op, exclusive=True)


def _taken(
    data: list[Any], node: Any, place: int, root: int | None, group: tuple[int, ...]
) -> list[Any]:
    """What a member reduces: all data, of a scan those up to its own, and nothing off the root."""
    if isinstance(node, Scan):
        return data[: place + (not node.exclusive)]
    return data if root is None or group[place] == root else []


def _fill(into: MpiBuffer | None, data: list[bytes]) -> None:
    """Write the parts of all members, each at its place."""
    if into is not None:
        for first, part in zip(into.starts(len(data)), data, strict=True):
            into.fill(part, first)
