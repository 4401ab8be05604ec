"""Parts of a run that all ranks finish or none, and which rank reports a failure."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, NoReturn

from primepar.errors import LaunchError, PrimeParError

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

GRACE_SECONDS = 10.0
"""How long a rank waits for another to report an error, and for the launcher to end the job."""
HOSTS = "GROUP_WORLD_SIZE"
"""Variable in which torchrun gives the number of hosts."""
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
        _leave()


def _leave() -> NoReturn:
    """Exit without a message, as another rank has one.

    After an exit code of 0 mpirun gives that rank the time to print. Where each host has its own
    torchrun, this one would wait five minutes for the others: then the code is that of an error.
    """
    if int(os.environ.get(HOSTS, "1")) > 1:
        time.sleep(GRACE_SECONDS)  # a torchrun that ends a failed rank ends its neighbours
        raise SystemExit(LaunchError.exit_code)
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


def is_first(store: Store, without_store: bool) -> bool:
    """Whether no rank has failed before: this one is to report it.

    The answer is `without_store` if the store is gone, with the process that kept it.
    """
    try:
        return bool(store.add(FAILURES, 1) == 1)
    except RuntimeError:
        return without_store
