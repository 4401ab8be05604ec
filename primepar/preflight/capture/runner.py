"""Runs a function once per rank, each in a process of its own that is forked from this one.

What the ranks share, such as torch, is imported once, before the first fork. Two ranks run at a
time. A rank that needs a value of another one asks this process for it, waits meanwhile, and others
go on; the one that it waits for starts next. Where too many wait for the memory of a laptop, more
of them end, and start anew once their values are there: a script that does the same again gives the
same values again. Where no rank ever gives a value, a real run would hang, and so the recording of
the rank ends there.

With each value its sender states what it called: `AllReduce sum 1 4 int64`. The receiver compares
that with its own call before it takes the value. Where they differ, the recording ends there too:
what follows would be the doing of a value that nobody meant for it.
"""

from __future__ import annotations

import gc
import os
import selectors
import signal
import sys
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe
from time import monotonic
from types import FrameType
from typing import NamedTuple, NoReturn

import msgspec

from primepar.errors import CaptureError
from primepar.preflight.capture.source_lines import line_of
from primepar.preflight.recording import Gap, RankRecording
from primepar.schedule.program import Instruction


class NeverComesError(BaseException):
    """A value that no rank sends: the rank hangs where it asked. No handler of users sees it."""


class GivenValue(msgspec.Struct, frozen=True, array_like=True):
    """A value, and what its sender stated of the call; None depends on what others computed."""

    statement: str
    value: bytes | None
    lineage: int = 0
    """How its sender computed it: the receiver holds the same."""
    question: tuple[int, bool, str, float, float] | None = None
    """The comparison that it is, if it is a truth value: lineage and whether it is unknown, ..."""


class ValueMessage(msgspec.Struct, tag=True):
    """A value under its key."""

    key: str
    value: GivenValue


class ValueRequest(msgspec.Struct, tag=True):
    """The keys of values that are needed now, and the ranks that give them, where known."""

    keys: list[str]
    senders: list[int]


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

    def __init__(self, connection: Connection, limit: float, stepwise: bool = False) -> None:
        self._connection, self.stepwise = connection, stepwise
        signal.signal(signal.SIGALRM, self._late)
        signal.setitimer(signal.ITIMER_REAL, limit)

    def give(self, key: str, value: GivenValue) -> None:
        """Give a value to every rank that asks for its key."""
        self._connection.send_bytes(_ENCODER.encode(ValueMessage(key, value)))

    def step(self, place: int, instruction: Instruction) -> None:
        """Report an instruction, which may take the place of an earlier one."""
        if self.stepwise:
            self._connection.send_bytes(_ENCODER.encode(RankStep(place, instruction)))

    def ask(self, keys: list[str], senders: Sequence[int] = ()) -> list[GivenValue]:
        """Return the values of these keys, which `senders` give, where the rank knows them.

        Raises `NeverComesError` if one is never given.
        """
        left, _ = signal.setitimer(signal.ITIMER_REAL, 0)
        self._connection.send_bytes(_ENCODER.encode(ValueRequest(keys, list(senders))))
        values = _VALUES.decode(self._connection.recv_bytes())
        signal.setitimer(signal.ITIMER_REAL, left)
        if values is None:
            raise NeverComesError
        return values

    def end(self, end: RankEnd) -> NoReturn:
        """Report the end, and end the process without any clean-up of the script's libraries."""
        signal.setitimer(signal.ITIMER_REAL, 0)
        self._connection.send_bytes(_ENCODER.encode(end))
        os._exit(0)

    def _late(self, number: int, frame: FrameType | None) -> None:
        self.end(RankEnd(late=True, source=line_of(frame)))


Body = Callable[[int, RankLink], RankRecording]
"""What runs in the process of a rank."""
AT_ONCE = 2
"""Ranks that run at a time."""
MOST_WAITING = 64
"""Processes that wait for values at a time; each has some 30 MiB of its own."""
FILE = "file "
"""Begins the key of a file that a rank wrote."""
_GRACE = 5.0
"""Seconds after the limit until a rank that does not report is ended from outside."""


class GivenValues(NamedTuple):
    """The values that ranks gave, and those that others asked for."""

    values: dict[str, GivenValue]
    asked: set[str]
    given_up: set[tuple[int, int, str]]
    """A rank, the number of its request, and the first key: so it is when it starts anew."""


class Alone(NamedTuple):
    """The one rank that runs, and what was given in an earlier run of all."""

    rank: int
    before: GivenValues


class OtherValueError(Exception):
    """A rank that runs alone gave another value than before, and others go on by it."""


def run_ranks(
    ranks: int, body: Body, limit: float, script: str = "script", alone: Alone | None = None,
    given: GivenValues | None = None,
) -> list[RankRecording]:  # fmt: skip
    """Return what `body` recorded on each rank, or only on the one that runs `alone`.

    `given` takes the values of this run. One that runs alone finds those of an earlier run; it
    raises `OtherValueError` where it gives another value than before that was asked for.

    A rank that raised or died has what it did until then. Raises `CaptureError` with the rank and
    the line where a script ran longer than `limit` seconds.
    """
    return _Run(ranks, body, limit, script, alone, given or GivenValues({}, set(), set())).results()


class _Run:
    def __init__(
        self, ranks: int, body: Body, limit: float, script: str, alone: Alone | None,
        given: GivenValues,
    ) -> None:  # fmt: skip
        self.ranks, self.body, self.limit, self.script = ranks, body, limit, script
        self.alone, self.given = alone, given
        self.next = deque(range(ranks) if alone is None else [alone.rank])
        """Ranks to start, in this order."""
        self.parked: dict[int, list[str]] = {}
        """Ranks that are to start anew, with the keys that they need."""
        self.failed: dict[int, CaptureError] = {}
        self.recordings: dict[int, RankRecording] = {}
        self.values = given.values if alone is None else dict(alone.before.values)
        self.given_up = given.given_up if alone is None else set(alone.before.given_up)
        self.requests = [0] * ranks
        """How many requests a rank has made since it started."""
        self.steps: dict[int, dict[int, Instruction]] = {}
        """Ranks whose processes died: they run once more, and report every instruction."""
        self.asked: dict[int, list[str]] = {}
        """Keys that a waiting rank asked for."""
        self.missing: dict[str, set[int]] = {}
        """Ranks that wait for a key, or once did."""
        self.processes: dict[int, int] = {}
        self.connections: dict[int, Connection] = {}
        self.deadlines: dict[int, float] = {}
        """When a running rank is ended from outside."""
        self.selector = selectors.DefaultSelector()

    def results(self) -> list[RankRecording]:
        # A rank that collected garbage would touch, and so copy, what torch has loaded.
        gc.freeze()
        try:
            while len(self.recordings) < (self.ranks if self.alone is None else 1):
                self._step()
        finally:
            for rank in list(self.processes):
                self._close(rank, kill=True)
            self.selector.close()
            gc.unfreeze()
        return [self.recordings[rank] for rank in sorted(self.recordings)]

    def _step(self) -> None:
        if self.failed and min(self.failed) <= min(self.deadlines, default=self.ranks):
            raise self.failed[min(self.failed)]
        while self.next and not self.failed and len(self.deadlines) < AT_ONCE:
            self._start(self.next.popleft())
        if not self.deadlines:
            self._give_up()
            return
        wait = max(0.0, min(self.deadlines.values()) - monotonic())
        for key, _ in self.selector.select(wait):
            self._hear(key.data)
        for rank, deadline in list(self.deadlines.items()):
            if monotonic() > deadline:
                self._close(rank, kill=True)
                self._fail(rank, self._late(""))

    def _start(self, rank: int) -> None:
        ours, theirs = Pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        process = os.fork()
        if process == 0:
            ours.close()
            for connection in self.connections.values():
                connection.close()
            _child(rank, self.body, RankLink(theirs, self.limit, rank in self.steps))
        theirs.close()
        self.processes[rank], self.connections[rank] = process, ours
        self.deadlines[rank], self.requests[rank] = monotonic() + self.limit + _GRACE, 0
        self.selector.register(ours, selectors.EVENT_READ, rank)

    def _give_up(self) -> None:
        """Nobody runs and nobody is left to start: what is missing never comes.

        Ranks that wait for a file go on without it, as in a run; the others may wait for what
        these do then.
        """
        waiting = self.asked | self.parked
        without = {rank: keys for rank, keys in waiting.items() if keys[0].startswith(FILE)}
        for rank, keys in (without or waiting).items():
            self.given_up.add((rank, self.requests[rank], keys[0]))
            if rank in self.asked:
                self._reply(rank, None)
            else:
                del self.parked[rank]
                self.next.append(rank)

    def _hear(self, rank: int) -> None:
        try:
            message = _DECODER.decode(self.connections[rank].recv_bytes())
        except EOFError:
            self._died(rank, self._close(rank))
            return
        match message:
            case ValueMessage(key=key, value=value):
                differs = self.values.setdefault(key, value) != value
                differs &= not key.startswith(FILE)  # of several ranks that write it
                if differs and self.alone is not None:
                    if key in self.alone.before.asked:
                        raise OtherValueError
                elif differs:
                    raise CaptureError(
                        f"{self.script}: expected rank {rank} to do the same when it starts anew, "
                        "got other values: seed its random numbers"
                    )
                for waiting in self.missing.pop(key, ()):
                    self._go_on_if_complete(waiting)
            case ValueRequest(keys=keys, senders=senders):
                pairs = zip(keys, senders, strict=False)
                missing = [sender for key, sender in pairs if key not in self.values]
                if missing and missing[0] in self.next:
                    self.next.remove(missing[0])
                    self.next.appendleft(missing[0])
                self.asked[rank] = keys
                self.given.asked.update(keys)
                self.requests[rank] += 1
                del self.deadlines[rank]
                for key in keys:
                    if key not in self.values:
                        self.missing.setdefault(key, set()).add(rank)
                if (rank, self.requests[rank], keys[0]) in self.given_up:
                    self._reply(rank, None)
                elif not self._go_on_if_complete(rank) and len(self.asked) > MOST_WAITING:
                    self.parked[rank] = self.asked.pop(rank)
                    self._close(rank, kill=True)
            case RankStep(place=place, instruction=instruction):
                self.steps[rank][place] = instruction
            case RankEnd() as end:
                self._end(rank, end)

    def _died(self, rank: int, status: int) -> None:
        """Start a rank whose process died once more, step by step; then take what it did."""
        if rank not in self.steps:
            self.steps[rank] = {}
            self.next.appendleft(rank)
            return
        instructions = list(self.steps[rank].values())
        last = (instructions[-1].source if instructions else None) or ""
        code = os.waitstatus_to_exitcode(status)
        how = f"ends by signal {-code}" if code < 0 else f"ends with exit code {code}"
        gaps = [] if code else [Gap(last, "ends its process, so that its gradients are not seen")]
        ended = f"{how}, after its last call" if code else ""
        self.recordings[rank] = RankRecording(instructions, gaps, ended=ended, ended_at=last)

    def _go_on_if_complete(self, rank: int) -> bool:
        """Whether all values that a rank waits for are there; then it goes on, or starts anew."""
        keys = self.asked.get(rank, self.parked.get(rank))
        if keys is None or not all(key in self.values for key in keys):
            return False
        if rank in self.parked:
            del self.parked[rank]
            self.next.append(rank)
        else:
            self._reply(rank, [self.values[key] for key in keys])
        return True

    def _reply(self, rank: int, values: list[GivenValue] | None) -> None:
        del self.asked[rank]
        self.deadlines[rank] = monotonic() + self.limit + _GRACE
        self.connections[rank].send_bytes(_ENCODER.encode(values))

    def _end(self, rank: int, end: RankEnd) -> None:
        self._close(rank)
        where = f" at {end.source}" if end.source else ""
        if end.late:
            self._fail(rank, self._late(where))
        elif end.recording is None:
            self._fail(rank, f"to be recorded, got {end.raised}: please report it")
        else:
            self.recordings[rank] = end.recording

    def _late(self, where: str) -> str:
        return (
            f"to end within {self.limit:g} s, got no end{where}: run fewer steps, or give more "
            "time with --limit"
        )

    def _fail(self, rank: int, what: str) -> None:
        """Note what is wrong with a rank; the lowest one is named once no lower one runs."""
        self.failed[rank] = CaptureError(f"{self.script}: expected rank {rank} {what}")

    def _close(self, rank: int, kill: bool = False) -> int:
        """End a rank's process, and return how it ended."""
        process, connection = self.processes.pop(rank), self.connections.pop(rank)
        if kill:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        _, status = os.waitpid(process, 0)
        self.selector.unregister(connection)
        connection.close()
        self.deadlines.pop(rank, None)
        return status


def _child(rank: int, body: Body, link: RankLink) -> NoReturn:
    """Run a rank; nothing of the parent's code goes on in its process."""
    try:
        link.end(RankEnd(body(rank, link)))
    except BaseException as error:
        link.end(RankEnd(raised=f"{type(error).__name__}: {error}"))
    finally:
        os._exit(1)
