"""One error of all ranks: parts that all of them finish or none, and who reports a failure."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

from primepar.distributed.training.failures import failure_of, is_lost_peer
from primepar.errors import PrimeParError

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

GRACE_SECONDS = 10.0
"""How long a rank waits for another to report an error, and for the launcher to end the job."""
PATIENCE = timedelta(days=1)
"""How long a rank waits for the others' answers: rank 0 may prove a large program meanwhile.

The launcher ends the job if a rank dies."""


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
def first_error(store: Store, rank: int) -> Iterator[None]:
    """Report an error that ranks meet on their own once: the first rank to fail raises it.

    A rank that fails later, or because another has ended, waits for the launcher to end the job,
    and exits without a message. Where nobody ends it, it reports the other's end itself. An error
    that is no user's error, with its traceback, is raised on each rank.
    """
    try:
        yield
    except Exception as raised:
        error = raised if isinstance(raised, PrimeParError) else failure_of(raised, rank)
        lost = is_lost_peer(raised)
        if lost:
            time.sleep(GRACE_SECONDS)
        first = _is_first(store)
        if error is None:
            raise
        if not first:
            time.sleep(0.0 if lost else GRACE_SECONDS)
            raise SystemExit(error.exit_code) from None
        raise error from None


def _is_first(store: Store) -> bool:
    """Whether no rank has failed before; not, if the store is gone with the rank that kept it."""
    try:
        return bool(store.add("failures", 1) == 1)
    except RuntimeError:
        return False
