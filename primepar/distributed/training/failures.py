"""Failures in the middle of a step as errors of one line: no memory left, or a rank that ended."""

from __future__ import annotations

from primepar.errors import LaunchError, MemoryLimitError, PrimeParError

_LOST = (
    "connection closed by peer",
    "connection reset by peer",
    "broken pipe",
    "remote process exited",
    "nccl communicator was aborted",
)
"""What gloo and NCCL report, in lower case, when the process at the other end has gone."""
_NO_MEMORY = "defaultcpuallocator: can't allocate memory"


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
