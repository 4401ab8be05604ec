"""One error of all ranks: parts that all of them finish or none, and who reports a failure."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

from primepar.distributed.training.failures import failure_of, is_lost_peer
from primepar.distributed.training.launcher_hold import HOLD
from primepar.errors import PrimeParError

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

    from primepar.distributed.training.watchdog import Watchdog

GRACE_SECONDS = 10.0
"""How long a rank waits for another to report an error, and for the launcher to end the job."""
FAILURES = "failures"
"""Key of the number of ranks that have failed."""
PATIENCE = timedelta(days=1)
"""How long a rank waits for the others' answers: rank 0 may prove a large program meanwhile.

The watchdog ends the rank if another one is silent."""


@contextmanager
def agreed(store: Store, rank: int, size: int, name: str) -> Iterator[None]:
    """Run a part of the setup on every rank, and continue only if no rank failed.

    The lowest rank that failed raises its error; the others exit without a message.
    """
    error: PrimeParError | None = None
    try:
        yield
    except PrimeParError as raised:
        error = raised
    store.set(f"{name}/{rank}", "failed" if error else "done")
    failed = [peer for peer, end in enumerate(answers(store, size, name)) if end == b"failed"]
    if failed:
        _wait_for_all(store, rank, size, name)
    if error is not None and failed[0] == rank:
        raise error
    if failed:
        raise SystemExit(0)


def _wait_for_all(store: Store, rank: int, size: int, name: str) -> None:
    """Keep rank 0 and its store running until every rank has read the answers."""
    store.set(f"{name}-read/{rank}", "")
    if rank == 0:
        answers(store, size, f"{name}-read")


def answers(store: Store, size: int, name: str) -> list[bytes]:
    """Return what every rank has stored under a name."""
    keys = [f"{name}/{rank}" for rank in range(size)]
    store.wait(keys, PATIENCE)
    return [store.get(key) for key in keys]


@contextmanager
def first_error(store: Store, rank: int, watchdog: Watchdog) -> Iterator[None]:
    """Report an error that ranks meet on their own once: the first rank to fail raises it.

    A rank that fails later, or because another has ended, waits for the launcher to end the job,
    and exits without a message. Where nobody ends it, it reports the other's end itself. An error
    that is no user's error, with its traceback, is raised on each rank.
    """
    try:
        yield
    except Exception as raised:
        HOLD.release()
        where = watchdog.activity.text
        error = raised if isinstance(raised, PrimeParError) else failure_of(raised, rank, where)
        lost = is_lost_peer(raised)
        if lost:
            time.sleep(watchdog.grace)
        first = is_first(store, rank)
        if first or error is None:
            watchdog.stopped.set()  # this rank has a message, and must not be ended before it
        if error is None:
            raise
        if not first:
            time.sleep(0.0 if lost else watchdog.grace)
            raise SystemExit(error.exit_code) from None
        raise error from None


def is_first(store: Store, rank: int) -> bool:
    """Whether no rank has failed before: this one is to report it.

    If the store is gone, with rank 0 that kept it, rank 1 is.
    """
    try:
        return bool(store.add(FAILURES, 1) == 1)
    except RuntimeError:
        return rank == 1
