"""Ends the launcher of this machine, if it waits for a lost one after its ranks have ended.

mpirun of Open MPI and of MPICH waits until TCP gives the other machine up, which takes Linux a
quarter of an hour. So a rank that ends a run leaves a process behind, for some seconds: it waits
for the end of the launcher, and ends it. torchrun and srun end by themselves.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from select import select

_PROGRAMS = ("prterun", "prted", "hydra_pmi_proxy", "mpirun", "mpiexec", "mpiexec.hydra")
"""Programs of Open MPI and MPICH that start processes; the kernel shows 15 letters of a name."""
WAIT_SECONDS = 10.0
"""How long a launcher may take to end the ranks of all machines."""
STEP_SECONDS = 1.5
"""Time between two signals; Open MPI takes a second SIGTERM within 5 seconds as an order."""


def end_launchers_later(seconds: float = WAIT_SECONDS) -> None:
    """Start a process that ends this one's launchers, unless they end within some seconds.

    It knows them by a file descriptor of the process: a number may be another process by then.
    """
    if not hasattr(os, "pidfd_open"):
        return
    with suppress(OSError):
        launchers = [os.pidfd_open(process) for process in launchers_of(os.getpid())]
        if launchers:
            subprocess.Popen(
                [sys.executable, "-m", __name__, str(seconds), *map(str, launchers)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=launchers,
                start_new_session=True,  # the launcher ends the group of the rank
            )


def launchers_of(process: int) -> list[int]:
    """Return the launchers of a process on this machine: its parent, and that one's, and so on."""
    parent = _status(process)[1]
    chain = []
    while (status := _status(parent))[0] in _PROGRAMS:
        chain.append(parent)
        parent = status[1]
    return chain


def _status(process: int) -> tuple[str, int]:
    """Return the name and the parent of a process; no name where there is none."""
    try:
        text = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return "", 0
    name, _, others = text.partition("(")[2].rpartition(")")
    return name, int(others.split()[1])


def end(launchers: list[int], seconds: float) -> None:
    """Wait for the end of launchers, given as file descriptors, and then end them."""
    for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + seconds
        while launchers and time.monotonic() < deadline:
            ended = select(launchers, [], [], max(0.0, deadline - time.monotonic()))[0]
            launchers = [launcher for launcher in launchers if launcher not in ended]
        for launcher in launchers:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(launcher, number)
        seconds = STEP_SECONDS


if __name__ == "__main__":
    end([int(word) for word in sys.argv[2:]], float(sys.argv[1]))
