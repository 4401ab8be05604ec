"""Failures: parts of a run that all ranks finish or none, and one line of one rank about an error.

A failure of the machine in the middle of a step, no memory left or a rank that ended, becomes an
error of one line.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, NoReturn

from primepar.errors import LaunchError, MemoryLimitError, PrimeParError

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
_LOST = (
    "connection closed by peer",
    "connection reset by peer",
    "broken pipe",
    "remote process exited",
    "nccl communicator was aborted",
)
"""What gloo and NCCL report, in lower case, when the process at the other end has gone."""
_NO_MEMORY = "defaultcpuallocator: can't allocate memory"


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


def failure_of(error: Exception, rank: int, where: str) -> PrimeParError | None:
    """Return the error of one line for a failure of the machine; None for any other exception.

    `where` is the part of the run in which it was raised.
    """
    from torch import OutOfMemoryError

    if isinstance(error, OutOfMemoryError | MemoryError) or _NO_MEMORY in str(error).lower():
        return MemoryLimitError(
            f"rank {rank}: expected room for a step in memory, got none left "
            f"({_sentence(error)}): take a smaller training.batch, more processes, or "
            "--set executor.device_memory=512MiB"
        )
    if is_lost_peer(error):
        return LaunchError(
            f"rank {rank}: expected every process to answer, got one that has ended, in {where}: "
            "look for the message of that process"
        )
    return None


def is_lost_peer(error: Exception) -> bool:
    """Whether a process at the other end of a message, a collective or the store has gone."""
    from torch.distributed import DistNetworkError

    text = str(error).lower()
    lost = isinstance(error, RuntimeError) and any(words in text for words in _LOST)
    return lost or isinstance(error, DistNetworkError)


def _sentence(error: Exception) -> str:
    """The part of a message that states the size, without the place in torch; else the class."""
    text = " ".join(str(error).split())
    start = text.lower().find("ried to allocate")
    if start < 0:
        return type(error).__name__
    return "t" + text[start:].partition(". ")[0].rstrip(".")
