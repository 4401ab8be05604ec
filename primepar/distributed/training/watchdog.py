"""Ends a run in which a rank waits too long for another one, with one line of the whole run.

Every rank has two threads. One exchanges signs of life through the store that all ranks share: each
rank counts up a number, and reads that of the next rank. The other one measures how long the main
thread has been in one instruction, how long the next rank has been silent, and how long the store
has. It needs no answer of anybody, so that it goes on if the store's process is stopped.

A rank that waits in an instruction for longer than the timeout reports what it waits for. If nobody
waits, as in a proof, or if a rank is in no step, as in a checkpoint, only silence ends the run: a
process that was stopped, or a lost host. In the setup a rank imports libraries, and may give no
sign meanwhile, as Python's interpreter is locked. So there silence takes `SETUP_SECONDS` at least.
"""

from __future__ import annotations

import atexit
import os
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from math import inf
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec
from msgspec import Struct

from primepar.distributed.training.activity import Activity, Kind, PeerWait
from primepar.distributed.training.agreement import FAILURES, GRACE_SECONDS, is_first
from primepar.distributed.training.rendezvous import WorldPlace
from primepar.errors import LaunchError

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

START_SECONDS = 300.0
"""How long a rank waits for the first sign of life of another one, as torch's rendezvous does."""
SETUP_SECONDS = 60.0
"""How long a rank in its setup may be silent, if the timeout is shorter."""
LONGEST_INTERVAL = 5.0
"""Seconds between two signs of life, at most."""
SIGNS = 12
"""Signs of life in a timeout."""
HOST = socket.gethostname()
STORE = -1
"""Stands for the process that keeps the store, among the peers."""
_REMEDY = "look at its process and its machine, or raise --timeout"


class Sign(Struct, frozen=True):
    """A sign of life: how many came before, where the rank is, and for whom it waits there."""

    number: int
    text: str
    waits_for: tuple[int, ...] = ()
    kind: Kind = "step"
    """Of the part of the run that the rank is in."""
    ended: bool = False
    """Whether it is the last one of a run that ended well."""
    host: str = HOST


class Exchange:
    """Writes this rank's signs of life to the store, and reads those of others."""

    def __init__(
        self, activity: Activity, store: Store, rank: int, size: int, every: float
    ) -> None:
        self.store, self.rank, self.size, self.every = store, rank, size, every
        self.activity, self.stopped, self.asked = activity, Event(), Event()
        self.answers = 0
        """How often the store has answered."""
        self.failed = False
        """Whether a rank has reported a failure."""
        self.seen: dict[int, Sign] = {}
        """The last sign of each rank that was read."""
        self._thread = Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Go on until the run ends, or the store does."""
        self._thread.start()

    def _run(self) -> None:
        with suppress(RuntimeError):
            while not self.stopped.is_set():
                self._turn()
                self.stopped.wait(self.every)

    def _turn(self) -> None:
        self._write(ended=False)
        self.failed = self.failed or self.store.check([FAILURES])
        others = range(self.size) if self.asked.is_set() else [(self.rank + 1) % self.size]
        for peer in others:
            if self.store.check([f"sign/{peer}"]):
                self.seen[peer] = msgspec.json.decode(self.store.get(f"sign/{peer}"), type=Sign)
        self.answers += 1

    def _write(self, ended: bool) -> None:
        waiting, kind = self.activity.waiting, self.activity.kind
        peers = () if waiting is None else waiting.peers
        sign = Sign(self.answers, self.activity.text, peers, kind, ended)
        self.store.set(f"sign/{self.rank}", msgspec.json.encode(sign).decode())

    def number(self, peer: int) -> int | None:
        """Return how many signs a rank has given; None without any."""
        sign = self.seen.get(peer)
        return None if sign is None else sign.number

    def stop(self, well: bool) -> None:
        """End the thread; `well` leaves a last sign of life."""
        self.stopped.set()
        self._thread.join(GRACE_SECONDS)
        with suppress(RuntimeError):
            if well:
                self._write(ended=True)


class Silence:
    """Counts how long a number has stayed the same, while this process ran itself."""

    def __init__(self) -> None:
        self.last: object = None
        self.seconds = 0.0

    def count(self, value: object, passed: float) -> float:
        """Return the seconds since the value has changed."""
        self.seconds = self.seconds + passed if value == self.last else 0.0
        self.last = value
        return self.seconds


class Watchdog:
    """Ends the process after a line about who waits for whom, or after that of another rank."""

    def __init__(self, activity: Activity, store: Store, place: WorldPlace, timeout: float) -> None:
        rank, size = place.rank, place.size
        self.activity, self.rank = activity, rank
        self.reports_alone = place.reports_alone
        self.timeout, self.every = timeout, min(LONGEST_INTERVAL, timeout / SIGNS)
        # A connection has one call at a time, and the main thread may wait in one for a day.
        cloned: Any = store  # torch's stubs lack its method
        self.exchange = Exchange(activity, cloned.clone(), rank, size, self.every)
        self._reporting: Store = cloned.clone()
        self._stuck, self._store = Silence(), Silence()
        self._failed, self._left = Silence(), Silence()
        self.leaving = False
        """Whether this rank has an error of its own, and is about to report it and to end."""
        self._peers = {peer: Silence() for peer in range(size) if peer != rank}
        self._next = (rank + 1) % size
        self.grace = min(GRACE_SECONDS, timeout)
        self.stopped = Event()
        self._thread = Thread(target=self._run, daemon=True)

    def __enter__(self) -> Watchdog:
        self.exchange.start()
        self._thread.start()
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if error is None:
            self._stop(well=True)
        else:
            self.leaving = True
            atexit.register(self._stop, well=False)

    def _stop(self, well: bool) -> None:
        """End both threads: one that uses or frees a store when Python ends would abort."""
        self.stopped.set()
        self.exchange.stop(well)
        self._thread.join(GRACE_SECONDS)

    def _run(self) -> None:
        """Measure until the run ends.

        However late a turn is, it counts as one interval: a process that was stopped itself, or
        that other processes leave little time to run, has not waited meanwhile.
        """
        while not self.stopped.wait(self.every):
            problem = self._problem(self.every)
            if problem is not None:
                self._end(problem)

    def _problem(self, passed: float) -> str | None:
        """Return the line to report, empty if another rank has done so; None if all is well."""
        if self.leaving:
            # A thread that writes a checkpoint may wait for a rank that has gone.
            return "" if self._left.count(True, passed) > self.grace else None
        exchange, waiting = self.exchange, self.activity.waiting
        stuck = self._stuck.count((self.activity.token, waiting is None), passed)
        silent = {
            peer: count.count(exchange.number(peer), passed) for peer, count in self._peers.items()
        }
        silent[STORE] = self._store.count(exchange.answers, passed)
        if exchange.failed:
            return "" if self._failed.count(True, passed) > self.grace else None
        if stuck > self.timeout / 2:
            exchange.asked.set()
        if waiting is not None and stuck > self.timeout and not self._has_to_wait(silent):
            return self._late(waiting, silent)
        # A rank that waits in an instruction knows more than one that only listens.
        margin = 3 * self.every
        for peer in (STORE, self._next):
            if silent[peer] > self._allowed(peer) + margin:
                return self._lost(peer)
        return None

    def _has_to_wait(self, silent: Mapping[int, float]) -> bool:
        """Whether a rank is in no step, and thus takes as long as it does, unless it is silent."""
        return any(
            sign.kind != "step" and not sign.ended and silent[peer] <= self._allowed(peer)
            for peer, sign in self.exchange.seen.items()
            if peer != self.rank
        )

    def _allowed(self, peer: int) -> float:
        """Return how long a peer may be silent."""
        sign = self.exchange.seen.get(peer)
        if sign is not None and sign.ended:
            return inf
        if sign is None and peer != STORE:
            return START_SECONDS
        # Ranks leave the setup together; a sign of it may be an old one.
        in_setup = self.activity.kind == "setup" and (sign is None or sign.kind == "setup")
        return max(self.timeout, SETUP_SECONDS) if in_setup else self.timeout

    def _late(self, waiting: PeerWait, silent: Mapping[int, float]) -> str:
        return (
            f"rank {self.rank}: expected {_ranks(waiting.peers)} to answer within "
            f"{self.timeout:g} s, got nothing in {waiting.text}{self._cause(silent)}: {_REMEDY}"
        )

    def _cause(self, silent: Mapping[int, float]) -> str:
        """Return which ranks are silent, or else which do not wait themselves."""
        if silent[STORE] > self.timeout / 4:
            return f"; {self._name(STORE)} is silent"
        seen = self.exchange.seen
        quiet = [peer for peer in seen if silent.get(peer, 0.0) > self.timeout / 4]
        busy = [peer for peer in seen if peer != self.rank and not seen[peer].waits_for]
        if quiet:
            verb = "are" if len(quiet) > 1 else "is"
            return f"; {self._named(quiet)} {verb} silent since {seen[quiet[0]].text}"
        return f"; {self._named(busy[:1])} is in {seen[busy[0]].text}" if busy else ""

    def _lost(self, peer: int) -> str:
        sign = self.exchange.seen.get(peer)
        since = "" if sign is None else f" since {sign.text}"
        return (
            f"rank {self.rank}: expected a sign of life of {self._name(peer)} within "
            f"{self._allowed(peer):g} s, got none{since}, in {self.activity.text}: {_REMEDY}"
        )

    def _name(self, peer: int) -> str:
        if peer != STORE:
            return self._named([peer])
        return f"{self._named([0])}, or the launcher that keeps the store,"

    def _named(self, peers: Sequence[int]) -> str:
        """Return ranks as text, with their machine if all are on one that is not this one."""
        machines = {self.exchange.seen[peer].host for peer in peers if peer in self.exchange.seen}
        there = f" on {min(machines)}" if len(machines - {HOST}) == len(machines) == 1 else ""
        return f"{_ranks(peers)}{there}"

    def reports(self) -> bool:
        """Whether this rank is to report the problem that it has found.

        Without a store rank 1 reports at once. The others that may do so give the launcher time
        to end them: it does unless their machine is cut off.
        """
        if self._store.seconds < 3 * self.every:
            return is_first(self._reporting, self.reports_alone)
        if self.reports_alone and self.rank > 1:
            time.sleep(self.grace)
        return self.reports_alone

    def _end(self, problem: str) -> NoReturn:
        """Report the problem if no rank has reported one, and end this process."""
        if problem and self.reports():
            # On a terminal the cursor is hidden while there is a progress bar.
            shown = "\x1b[?25h" if sys.stderr.isatty() else ""
            print(f"{shown}primepar: error: {problem}", file=sys.stderr, flush=True)
            time.sleep(2 * self.every)  # the others look whether a rank has failed
        elif problem:
            time.sleep(self.grace)
        os._exit(LaunchError.exit_code)


def _ranks(peers: Sequence[int]) -> str:
    return f"rank{'s' * (len(peers) > 1)} {', '.join(map(str, peers))}"
