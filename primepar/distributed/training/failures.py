"""Failures: one line of one rank about an error, whatever the others meet.

A failure of the machine in the middle of a step, no memory left or a rank that ended, becomes an
error of one line.
"""

from __future__ import annotations

import ctypes
from threading import Thread
from typing import TYPE_CHECKING

from primepar.errors import LaunchError, MemoryLimitError, PrimeParError

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

GRACE_SECONDS = 10.0
"""How long a rank waits for another to report an error, and for the launcher to end the job."""
FAILURES = "failures"
"""Key of the number of ranks that have failed."""
ABORT_SECONDS = 5.0
"""How long a process waits for its communication to be aborted after an error."""
_LOST = (
    "connection closed by peer",
    "connection reset by peer",
    "broken pipe",
    "remote process exited",
    "nccl communicator was aborted",
)
"""What gloo and NCCL report, in lower case, when the process at the other end has gone."""
_NO_MEMORY = "defaultcpuallocator: can't allocate memory"


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


def abort_groups(seconds: float = ABORT_SECONDS) -> None:
    """Abort all process groups after an error, within a time limit.

    Peers may never join what is outstanding. `destroy_process_group` waits for it, as do the
    destructors of gloo's groups, which cannot abort. So the groups stay in memory until the
    process ends.
    """
    from torch import distributed as dist
    from torch.distributed import distributed_c10d as c10d

    if not dist.is_initialized():
        return
    for group in list(c10d._world.pg_map):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))
    aborting = Thread(target=c10d._abort_process_group, daemon=True)
    aborting.start()
    aborting.join(seconds)
