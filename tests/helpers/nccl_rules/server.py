"""Keeps the streams of all ranks in a thread of rank 0, and answers each rank when its wait ends.

A rank sends its posts and goes on. Where it waits, it asks and gets an answer. So the server knows
which ranks wait: if all do and nothing runs, that is a deadlock, and nobody has to be patient.
"""

from __future__ import annotations

from multiprocessing.connection import Connection, Listener, wait
from threading import Thread
from typing import Any

from nccl_rules.streams import RulesError, Streams

PATIENCE = 60.0
"""Seconds without a call of any rank after which ranks that wait are given up."""


class Server:
    """Serves the ranks of one world; `address` is where they connect."""

    def __init__(self, ranks: int, queues: int) -> None:
        self.ranks, self._queues = ranks, queues
        self._listener = Listener(None, "AF_UNIX", backlog=ranks)
        self.address = str(self._listener.address)
        self._streams = Streams(queues)
        self._joined: dict[str, set[int]] = {}
        self._opened: set[tuple[str, int, int, int]] = set()
        """Ends of connections: communicator, source, destination, and whose end it is."""
        self._blocked: dict[int, tuple[Any, ...]] = {}
        """Rank -> what it asked for: a wait, a join, a connection or a restart."""
        self._failure: str | None = None
        self._ends: dict[Connection, int] = {}
        self._gone = 0
        self.thread = Thread(target=self._serve, daemon=True)
        self.thread.start()

    def _serve(self) -> None:
        for _ in range(self.ranks):
            end = self._listener.accept()
            self._ends[end] = end.recv()
        self._listener.close()
        while self._ends:
            ready = wait(list(self._ends), PATIENCE)
            for end in [end for end in self._ends if end in ready]:
                self._handle(end)
            if self._failure is None and self._blocked and (self._all_blocked() or not ready):
                self._failure = self._deadlock()
            self._answer()

    def _handle(self, end: Connection) -> None:
        rank = self._ends[end]
        try:
            kind, *arguments = end.recv()
        except (EOFError, OSError):
            del self._ends[end]
            self._gone += 1
            self._blocked.pop(rank, None)
            return
        if kind == "post":
            self._streams.post(rank, *arguments)
        elif kind == "begin":
            self._begin(rank, *arguments)
        else:
            self._blocked[rank] = (kind, *arguments)
            if kind == "join":
                self._joined.setdefault(arguments[0], set()).add(rank)
            if kind == "connect":
                communicator, ways = arguments
                self._opened |= {(communicator, *way, rank) for way in ways}
            self._answer()

    def _begin(self, rank: int, number: int, given: dict[int, bytes]) -> None:
        try:
            self._streams.begin(rank, number, given)
        except RulesError as error:
            self._failure = self._failure or str(error)
        self._answer()

    def _answer(self) -> None:
        restarts = [rank for rank, asked in self._blocked.items() if asked[0] == "restart"]
        if len(restarts) == self.ranks - self._gone:
            self._streams = Streams(self._queues, self._streams.numbers)
            self._joined, self._opened, self._failure = {}, set(), None
        for end, rank in list(self._ends.items()):
            asked = self._blocked.get(rank)
            if asked is not None:
                answer = self._answer_to(rank, *asked, restarted=len(restarts) == len(self._ends))
                if answer is not None:
                    del self._blocked[rank]
                    end.send(answer)

    def _answer_to(self, rank: int, kind: str, *arguments: Any, restarted: bool) -> Any:
        """Return what a blocked rank asked for, None where it has to wait on."""
        if kind == "restart":
            return ("done", {}) if restarted else None
        if self._failure is not None:
            return "failed", self._failure
        if kind == "join":
            communicator, members = arguments
            return ("done", {}) if self._joined[communicator] >= set(members) else None
        if kind == "connect":
            return None if self._missing(rank, *arguments) else ("done", {})
        (number,) = arguments
        done = self._streams.is_done(rank, number)
        return ("done", self._streams.take(rank, number)) if done else None

    def _missing(self, rank: int, communicator: str, ways: Any) -> list[int]:
        """The ranks that have not opened their ends of connections."""
        ends = {(source + target - rank, source, target) for source, target in ways}
        return sorted(peer for peer, *way in ends if (communicator, *way, peer) not in self._opened)

    def _all_blocked(self) -> bool:
        return len(self._blocked) == len(self._ends)

    def _deadlock(self) -> str:
        lines = ["deadlock under the rules of NCCL: no rank can go on"]
        for rank, (kind, *arguments) in sorted(self._blocked.items()):
            lines.append(f"  rank {rank} {self._waited(rank, kind, *arguments)}")
        for rank, communicator, head, behind in sorted(self._streams.waiting()):
            more = f", then {behind} more" if behind else ""
            lines.append(f"  rank {rank}, communicator {communicator}: {head}{more}")
        return "\n".join(lines)

    def _waited(self, rank: int, kind: str, *arguments: Any) -> str:
        if kind == "restart":
            return "has ended"
        if kind == "join":
            communicator, members = arguments
            missing = sorted(set(members) - self._joined[communicator])
            return f"makes communicator {communicator}: expected ranks {missing} to call it too"
        if kind == "connect":
            missing = self._missing(rank, *arguments)
            return f"sends or receives first on {arguments[0]}: expected ranks {missing} there"
        return f"waits for {self._streams.operation(rank, arguments[0])}"
