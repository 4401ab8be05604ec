"""Runs all ranks of an mpi4py script at once, each in a process, and matches what they post.

Sends are buffered here, so that every rank records as much as it can; whether the program needs
buffers is the prover's question. A receive from any rank takes nothing until no rank can go on.
Then one message is chosen for one such receive, by `decisions`; how many could be chosen is
recorded, so that other runs take the others.
"""

from __future__ import annotations

import os
import selectors
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, NoReturn

import msgspec
from msgspec.structs import replace
from oracle.collectives import agree, members
from oracle.mailboxes import Mailboxes, Pair, Side, is_disputed

from primepar.errors import CaptureError
from primepar.preflight.capture.rank_link import receive_bytes, write
from primepar.preflight.mpi.rank_side import (
    Await,
    Ended,
    FromMpiRank,
    Missing,
    MpiOutcome,
    Post,
    RankSide,
)
from primepar.preflight.recording import Gap, RankRecording
from primepar.schedule.program import ANY, Collective, Group, messages_of

Place = tuple[int, int, int]
"""Rank, instruction, and position in its group."""
_DECODER: msgspec.msgpack.Decoder[FromMpiRank] = msgspec.msgpack.Decoder(FromMpiRank)
_GRACE = 5.0
"""Seconds after the limit until a rank that does not report is ended from outside."""


@dataclass
class MpiRun:
    """One run: what the ranks recorded, and what receives from any rank took."""

    recordings: list[RankRecording]
    taken: dict[Place, Place] = field(default_factory=dict)
    """Receive from any rank -> the send that it took."""
    choices: list[int] = field(default_factory=list)
    """For each decision how many messages there were to choose from."""
    waiting: list[int] = field(default_factory=list)
    """Ranks that waited when none could go on."""


class MpiScheduler:
    """The parent of the processes of one run."""

    def __init__(
        self, script: str, body: Callable[[RankSide], None], ranks: int, limit: float
    ) -> None:
        self.script, self.body, self.ranks, self.limit = script, body, ranks, limit
        self.run = MpiRun([RankRecording([], []) for _ in range(ranks)])
        self._processes: dict[int, int] = {}
        self._connections: dict[int, socket.socket] = {}
        self._selector = selectors.DefaultSelector()
        self._mailboxes = Mailboxes(mpi=True, boxes={})
        self._calls: dict[Any, dict[int, list[tuple[Collective, int, list[bytes]]]]] = {}
        self._payloads: dict[tuple[int, int], bytes] = {}
        self._places: dict[tuple[int, int], Place] = {}
        self._rooms: dict[tuple[int, int], int | None] = {}
        self._done: dict[tuple[int, int], MpiOutcome] = {}
        self._posted = [0] * ranks
        self._awaited: dict[int, list[int]] = {}
        """Ranks that wait, and for what."""

    def result(self, decisions: Sequence[int]) -> MpiRun:
        """Run to the end. Raises `CaptureError` where the script raises, or does not end."""
        try:
            for rank in range(self.ranks):
                self._start(rank)
            while self._processes:
                self._hear()
                while len(self._awaited) == len(self._processes) and self._processes:
                    if not self._decide(decisions):
                        self.run.waiting = sorted(self._awaited)
                        return self.run
        finally:
            for rank in list(self._processes):
                self._close(rank, kill=True)
            self._selector.close()
        return self.run

    def _start(self, rank: int) -> None:
        ours, theirs = socket.socketpair()
        sys.stdout.flush()
        sys.stderr.flush()
        process = os.fork()
        if process == 0:
            for connection in (ours, *self._connections.values()):
                connection.close()
            _child(self.body, RankSide(theirs, rank, self.ranks, self.limit))
        theirs.close()
        self._processes[rank], self._connections[rank] = process, ours
        self._selector.register(ours, selectors.EVENT_READ, rank)

    def _hear(self) -> None:
        last = monotonic() + self.limit + _GRACE
        ready = self._selector.select(max(0.0, last - monotonic()))
        if not ready:
            raise self._late(min(set(self._processes) - set(self._awaited)), "")
        for key, _ in ready:
            rank: int = key.data
            try:
                message = _DECODER.decode(receive_bytes(self._connections[rank]))
            except EOFError:
                raise CaptureError(
                    f"{self.script}: expected rank {rank} to run to its end, got its process "
                    "ended: run it under a debugger on one rank"
                ) from None
            self._take(rank, message)

    def _take(self, rank: int, message: FromMpiRank) -> None:
        recorded = self.run.recordings[rank]
        match message:
            case Post():
                self._post(rank, message)
            case Await(numbers=numbers):
                self._awaited[rank] = numbers
                self._go_on_if_done(rank)
            case Missing(source=source, what=what):
                recorded.gaps.append(Gap(source, what, len(recorded.instructions)))
            case Ended(late=True, source=source):
                raise self._late(rank, source)
            case Ended(raised=raised, source=source) if raised:
                where = f" at {source}" if source else ""
                raise CaptureError(
                    f"{self.script}: expected rank {rank} to run to its end, got {raised}{where}: "
                    "correct it there, or give the script its arguments after its name"
                )
            case _:
                self._close(rank)

    def _late(self, rank: int, source: str) -> CaptureError:
        where = f" at {source}" if source else ""
        return CaptureError(
            f"{self.script}: expected rank {rank} to end within {self.limit:g} s, got no end{where}"
            ": run fewer steps, or give more time with --limit"
        )

    def _post(self, rank: int, post: Post) -> None:
        recorded = self.run.recordings[rank].instructions
        index, node = len(recorded), post.instruction
        recorded.append(node)
        payloads, rooms = iter(post.payloads), iter(post.rooms)
        if isinstance(node, Collective):
            calls = self._calls.setdefault(members(node), {}).setdefault(rank, [])
            calls.append((node, self._number(rank), post.payloads))
            self._meet(node, len(calls) - 1)
        for part, message in enumerate(messages_of(node)):
            side = Side(rank, self._number(rank), message)
            self._places[side.name] = (rank, index, part)
            if side.sends:
                self._payloads[side.name] = next(payloads)
                if side.mode != "synchronous":
                    self._done[side.name] = MpiOutcome()
            else:
                self._rooms[side.name] = next(rooms)
            self._mailboxes.post(side)
        self._deliver_certain()

    def _number(self, rank: int) -> int:
        self._posted[rank] += 1
        return self._posted[rank] - 1

    def _deliver_certain(self) -> None:
        """Deliver all messages for receives that name their rank."""
        delivered = True
        while delivered:
            pairs = [pair for pair in self._pairs() if pair.receive.message.peer != ANY]
            certain = [pair for pair in pairs if not is_disputed(pair)]
            delivered = bool(certain)
            for pair in certain[:1]:
                self._deliver(pair)

    def _pairs(self) -> list[Pair]:
        """What may be delivered, in an order that does not depend on who posted first."""
        pairs = (pair for ready in self._mailboxes.ready.values() for pair in ready)
        return sorted(pairs, key=lambda pair: (pair.receive.name, pair.send.name))

    def _claim(self, place: Place, count: int | None) -> None:
        """State in the program how many elements a receive got."""
        rank, index, part = place
        recorded: Any = self.run.recordings[rank].instructions
        node = recorded[index]
        if isinstance(node, Group):
            body: list[Any] = list(node.body)
            body[part] = replace(body[part], count=count)
            recorded[index] = replace(node, body=tuple(body))
        else:
            recorded[index] = replace(node, count=count)

    def _deliver(self, pair: Pair) -> None:
        send, receive = pair
        self._mailboxes.remove(pair)
        payload = self._payloads.pop(send.name)
        self._done[send.name] = MpiOutcome()
        self._done[receive.name] = MpiOutcome(send.rank, send.message.tag, [payload])
        count, room = send.message.count, self._rooms[receive.name]
        if count is not None and room is not None:
            # More than there is room for is an error of MPI: then the two sides state other counts.
            self._claim(self._places[receive.name], min(count, room))
        if receive.message.peer == ANY:
            self.run.taken[self._places[receive.name]] = self._places[send.name]
        for rank in (send.rank, receive.rank):
            self._go_on_if_done(rank)

    def _meet(self, node: Collective, number: int) -> None:
        """Complete a collective once all members have made the same call."""
        calls = self._calls[members(node)]
        made = {
            rank: calls[rank][number] for rank in node.group if len(calls.get(rank, ())) > number
        }
        nodes = {rank: call[0] for rank, call in made.items()}
        if len(made) < len(node.group) or not agree(nodes, mpi=True):
            return
        payloads = [made[rank][2][0] for rank in node.group]
        for rank, (_, posted, _) in made.items():
            self._done[rank, posted] = MpiOutcome(payloads=payloads)
        for rank in made:
            self._go_on_if_done(rank)

    def _go_on_if_done(self, rank: int) -> None:
        numbers = self._awaited.get(rank)
        if numbers is not None and all((rank, number) in self._done for number in numbers):
            del self._awaited[rank]
            write(self._connections[rank], [self._done.pop((rank, number)) for number in numbers])

    def _decide(self, decisions: Sequence[int]) -> bool:
        """Let one receive from any rank take a message; False if there is none to take."""
        pairs = [pair for pair in self._pairs() if pair.receive.message.peer == ANY]
        if not pairs:
            return False
        made = len(self.run.choices)
        self.run.choices.append(len(pairs))
        pair = pairs[decisions[made] if made < len(decisions) else 0]
        if is_disputed(pair):  # the run ends here, as an error of MPI
            self.run.taken[self._places[pair.receive.name]] = self._places[pair.send.name]
            return False
        self._deliver(pair)
        self._deliver_certain()
        return True

    def _close(self, rank: int, kill: bool = False) -> None:
        process, connection = self._processes.pop(rank), self._connections.pop(rank)
        if kill:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        self._selector.unregister(connection)
        connection.close()


def _child(body: Callable[[RankSide], None], side: RankSide) -> NoReturn:
    """Run a rank; nothing of the parent's code goes on in its process."""
    try:
        body(side)
        side.end(Ended())
    except BaseException as error:
        side.end(Ended(raised=f"{type(error).__name__}: {error}"))
    finally:
        os._exit(1)
