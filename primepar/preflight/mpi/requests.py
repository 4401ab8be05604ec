"""Requests and statuses of the stand-in for `mpi4py.MPI`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from primepar.preflight.mpi.rank_side import MpiOutcome, RankSide


class Status:
    """Where a message came from."""

    def __init__(self) -> None:
        self.source, self.tag, self.error, self.count = -1, -1, 0, 0

    def set(self, source: int, tag: int, count: int = 0) -> None:
        """Fill it in."""
        self.source, self.tag, self.count = source, tag, count

    def Get_source(self) -> int:
        """The rank of the sender."""
        return self.source

    def Get_tag(self) -> int:
        """The tag of the message."""
        return self.tag

    def Get_error(self) -> int:
        """The error code, 0."""
        return self.error

    def Get_count(self, datatype: Any = None) -> int:
        """Elements, or bytes of a pickled object."""
        return self.count

    Get_elements = Get_count


Finish = Callable[[MpiOutcome, Status | None], Any]
"""Takes what came of a post, and returns what the user gets."""


class Request:
    """A message or call that is posted; a persistent one has `begin`, which posts it again."""

    def __init__(
        self,
        side: RankSide | None,
        name: str = "",
        numbers: Sequence[int] = (),
        finish: Finish | None = None,
        begin: Callable[[], list[int]] | None = None,
    ) -> None:
        self._side, self.name, self.numbers, self._finish = side, name, list(numbers), finish
        self._begin = begin

    def wait(self, status: Status | None = None) -> Any:
        """Wait, and return the object that was received."""
        if self._side is None or not self.numbers:
            return None
        numbers, self.numbers = self.numbers, []
        outcomes = self._side.wait(numbers, [self.name])
        return self._finish(outcomes[-1], status) if self._finish else None

    def Wait(self, status: Status | None = None) -> bool:
        """Wait."""
        self.wait(status)
        return True

    def test(self, status: Status | None = None) -> tuple[bool, Any]:
        """Wait, as if the message had come just before; the program proves nothing then."""
        if self._side is not None and self.numbers:
            self._side.note("tests whether a request is done, which depends on the time")
        return True, self.wait(status)

    def Test(self, status: Status | None = None) -> bool:
        """As `test`."""
        return self.test(status)[0]

    def Start(self) -> None:
        """Post a persistent request again."""
        if self._begin is not None:
            self.numbers = self._begin()

    def Free(self) -> None:
        """Nothing is to be freed."""

    @staticmethod
    def Startall(requests: Sequence[Request]) -> None:
        """Start all."""
        for request in requests:
            request.Start()

    @staticmethod
    def waitall(requests: Sequence[Request], statuses: Any = None) -> list[Any]:
        """Wait for all, in their order."""
        pairs = zip(requests, statuses or [None] * len(requests), strict=False)
        return [request.wait(status) for request, status in pairs]

    @staticmethod
    def Waitall(requests: Sequence[Request], statuses: Any = None) -> bool:
        """Wait for all."""
        Request.waitall(requests, statuses)
        return True

    @staticmethod
    def waitany(requests: Sequence[Request], status: Status | None = None) -> tuple[int, Any]:
        """Wait for the first that is left; which one is done first depends on the time."""
        for place, request in enumerate(requests):
            if request.numbers and request._side is not None:
                request._side.note("waits for any of several requests, which depends on the time")
                return place, request.wait(status)
        return -32766, None

    @staticmethod
    def Waitany(requests: Sequence[Request], status: Status | None = None) -> int:
        """As `waitany`."""
        return Request.waitany(requests, status)[0]
