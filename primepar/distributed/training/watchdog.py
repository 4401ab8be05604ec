"""Ends a run in which a rank waits too long for another one, with one line of the whole run.

Every rank has two threads. One exchanges signs of life through the store that all ranks share: each
rank counts up a number, and reads that of the next rank. The other one measures how long the main
thread has been in one instruction, how long the next rank has been silent, and how long the store
has. It needs no answer of anybody, so that it goes on if the store's process is stopped.

A rank that waits in an instruction for longer than the timeout reports what it waits for. If nobody
waits, as in a proof, or if a rank is in no step, as in a checkpoint, only silence ends the run: a
process that was stopped, or a lost host. In the setup a rank imports libraries, and may give no
sign meanwhile, as Python's interpreter is locked. So there silence takes `SETUP_SECONDS` at least.

Time is counted in turns of the measuring thread, and a late turn counts as one interval: a process
that was stopped itself, or that others leave little time to run, has not waited meanwhile.
"""

from __future__ import annotations

import atexit
import os
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from math import inf
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec
from msgspec import Struct

from primepar.distributed.training.activity import Activity, Kind
from primepar.distributed.training.failures import FAILURES, GRACE_SECONDS, is_first
from primepar.distributed.training.launchers import WorldPlace
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


class Watchdog:
    """Ends the process after a line about who waits for whom, or after that of another rank."""

    def __init__(self, activity: Activity, store: Store, place: WorldPlace, timeout: float) -> None:
        self.activity, self.rank, self.size = activity, place.rank, place.size
        self.reports_alone = place.reports_alone
        self.timeout, self.every = timeout, min(LONGEST_INTERVAL, timeout / SIGNS)
        self.grace = min(GRACE_SECONDS, timeout)
        # A connection has one call at a time, and the main thread may wait in one for a day.
        cloned: Any = store  # torch's stubs lack its method
        self._store: Store = cloned.clone()
        self._reporting: Store = cloned.clone()
        self.turn = 0
        self.seen: dict[int, Sign] = {}
        """The last sign of each rank that was read."""
        self.heard: dict[int, int] = {}
        """The turn in which a rank gave a new sign, or the store answered."""
        self._token: object = None
        self._moved = 0
        """The turn in which the main thread went on."""
        self.failed: int | None = None
        """The turn in which a rank had reported a failure."""
        self._left: int | None = None
        self._asks_all = False
        self._stopped = Event()
        self._threads = [
            Thread(target=loop, daemon=True) for loop in (self._exchange, self._measure)
        ]

    def __enter__(self) -> Watchdog:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if error is None:
            self._stop(well=True)
        else:
            self.leave()
            atexit.register(self._stop, well=False)

    def leave(self) -> None:
        """Note that this rank has an error of its own, and is about to report it and to end."""
        self._left = self.turn if self._left is None else self._left

    def _stop(self, well: bool) -> None:
        """End both threads: one that uses or frees a store when Python ends would abort."""
        self._stopped.set()
        for thread in self._threads:
            thread.join(GRACE_SECONDS)
        with suppress(RuntimeError):
            if well:
                self.sign(ended=True)

    def _exchange(self) -> None:
        with suppress(RuntimeError):  # the store has ended
            while not self._stopped.is_set():
                self.exchange()
                self._stopped.wait(self.every)

    def exchange(self) -> None:
        """Give a sign of life, and read those of others."""
        self.sign()
        if self.failed is None and self._store.check([FAILURES]):
            self.failed = self.turn
        for peer in range(self.size) if self._asks_all else [(self.rank + 1) % self.size]:
            if peer != self.rank and self._store.check([f"sign/{peer}"]):
                sign = msgspec.json.decode(self._store.get(f"sign/{peer}"), type=Sign)
                if sign != self.seen.get(peer):
                    self.seen[peer], self.heard[peer] = sign, self.turn
        self.heard[STORE] = self.turn

    def sign(self, ended: bool = False) -> None:
        """Write a sign of life."""
        waiting = self.activity.waiting
        peers = () if waiting is None else waiting.peers
        sign = Sign(self.turn, self.activity.text, peers, self.activity.kind, ended)
        self._store.set(f"sign/{self.rank}", msgspec.json.encode(sign).decode())

    def _measure(self) -> None:
        while not self._stopped.wait(self.every):
            problem = self.problem()
            if problem is not None:
                self._end(problem)

    def problem(self) -> str | None:
        """Count a turn, and return the line to report; None if all is well.

        The line is empty if another rank has reported, or if this one has, and still runs: a thread
        that writes a checkpoint may wait for a rank that has gone.
        """
        self.turn += 1
        waiting = self.activity.waiting
        token = self.activity.token, waiting is None
        if token != self._token:
            self._token, self._moved = token, self.turn
        ending = self.failed if self._left is None else self._left
        if ending is not None:
            return "" if self._since(ending) > self.grace else None
        stuck = self._since(self._moved)
        self._asks_all = self._asks_all or stuck > self.timeout / 2
        if waiting is not None and stuck > self.timeout and not self._has_to_wait():
            return (
                f"rank {self.rank}: expected {self._named(waiting.peers)} to answer within "
                f"{self.timeout:g} s, got nothing in {waiting.text}{self._cause()}: {_REMEDY}"
            )
        # A rank that waits in an instruction knows more than one that only listens.
        margin = 3 * self.every
        for peer in (STORE, (self.rank + 1) % self.size):
            if self._silent(peer) > self._allowed(peer) + margin:
                since = f" since {self.seen[peer].text}" if peer in self.seen else ""
                return (
                    f"rank {self.rank}: expected a sign of life of {self._named([peer])} within "
                    f"{self._allowed(peer):g} s, got none{since}, in {self.activity.text}: "
                    f"{_REMEDY}"
                )
        return None

    def _since(self, turn: int) -> float:
        return (self.turn - turn) * self.every

    def _silent(self, peer: int) -> float:
        return self._since(self.heard.get(peer, 0))

    def _has_to_wait(self) -> bool:
        """Whether a rank is in no step, and thus takes as long as it does, unless it is silent."""
        return any(
            sign.kind != "step" and not sign.ended and self._silent(peer) <= self._allowed(peer)
            for peer, sign in self.seen.items()
        )

    def _allowed(self, peer: int) -> float:
        """Return how long a peer may be silent."""
        sign = self.seen.get(peer)
        if sign is not None and sign.ended:
            return inf
        if sign is None and peer != STORE:
            return START_SECONDS
        # Ranks leave the setup together; a sign of it may be an old one.
        in_setup = self.activity.kind == "setup" and (sign is None or sign.kind == "setup")
        return max(self.timeout, SETUP_SECONDS) if in_setup else self.timeout

    def _cause(self) -> str:
        """Return which ranks are silent, or else one that does not wait itself."""
        quiet = [peer for peer in (STORE, *self.seen) if self._silent(peer) > self.timeout / 4]
        if STORE in quiet:
            return f"; {self._named([STORE])} is silent"
        if quiet:
            verb = "are" if len(quiet) > 1 else "is"
            return f"; {self._named(quiet)} {verb} silent since {self.seen[quiet[0]].text}"
        busy = [peer for peer, sign in self.seen.items() if not sign.waits_for]
        return f"; {self._named(busy[:1])} is in {self.seen[busy[0]].text}" if busy else ""

    def _named(self, peers: Sequence[int]) -> str:
        """Return ranks as text, with their machine if all are on one that is not this one."""
        if peers == [STORE]:
            return f"{self._named([0])}, or the launcher that keeps the store,"
        machines = {self.seen[peer].host for peer in peers if peer in self.seen}
        there = f" on {min(machines)}" if len(machines - {HOST}) == len(machines) == 1 else ""
        return f"rank{'s' * (len(peers) > 1)} {', '.join(map(str, peers))}{there}"

    def reports(self) -> bool:
        """Whether this rank is to report the problem that it has found.

        Without a store rank 1 reports at once. The others that may do so give the launcher time
        to end them: it does unless their machine is cut off.
        """
        if self._silent(STORE) < 3 * self.every:
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
