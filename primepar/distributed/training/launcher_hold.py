"""Holds Open MPI's launcher while a run saves, since it gives its processes no time for that.

After SIGTERM or Ctrl-C Open MPI's mpirun sends its processes SIGTERM, and SIGKILL a quarter of a
second later; no option changes this (`prte_odls_base_default_kill_local_procs` in PRRTE's sources).
So a rank that gets SIGTERM stops its parent, the launcher on its machine, by SIGSTOP. At the end of
the run, after an error, or after `HOLD_SECONDS` it lets the launcher go on. MPICH, torchrun and
SLURM wait by themselves.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Lock, Thread

HOLD_SECONDS = 30.0
"""As long as torchrun and SLURM wait between SIGTERM and SIGKILL."""
_LAUNCHERS = ("prterun", "prted")
"""Programs of Open MPI that start processes and end them."""


class LauncherHold:
    """The launcher of this process, which may be held once."""

    def __init__(self) -> None:
        self._held: int | None = None
        self._over, self._lock = Event(), Lock()

    def hold(self) -> None:
        """Stop the launcher, if there was no error before, and let it go on after a time limit."""
        with self._lock:
            if not self._over.is_set():
                self._held = os.getppid()
                os.kill(self._held, signal.SIGSTOP)
        self._over.wait(HOLD_SECONDS)
        self.release()

    def release(self) -> None:
        """Let the launcher go on; from now on it is not held any more."""
        with self._lock:
            self._over.set()
            if self._held is not None:
                with suppress(ProcessLookupError):
                    os.kill(self._held, signal.SIGCONT)
                self._held = None


HOLD = LauncherHold()


def can_be_held(environment: Mapping[str, str]) -> bool:
    """Return whether Open MPI's launcher is the parent of this process, and not a shell."""
    name = Path(f"/proc/{os.getppid()}/comm")
    is_open_mpi = "OMPI_COMM_WORLD_RANK" in environment and name.exists()
    return is_open_mpi and name.read_text().strip() in _LAUNCHERS


@contextmanager
def launcher_held() -> Iterator[None]:
    """Hold the launcher from a SIGTERM in the body to the end of the body, where it is needed.

    A thread does it at once: the main thread may be in a call of torch. Only the main thread may
    enter, and SIGTERM must have a handler of Python's.
    """
    if not can_be_held(os.environ):
        yield
        return
    read, write = os.pipe()
    os.set_blocking(write, False)
    before = signal.set_wakeup_fd(write)
    Thread(target=_listen, args=(read,), daemon=True).start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        HOLD.release()


def _listen(read: int) -> None:
    """Hold the launcher at the first SIGTERM; every signal comes as one byte."""
    while signal.SIGTERM not in os.read(read, 64):
        pass
    HOLD.hold()
