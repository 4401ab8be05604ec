"""What `primepar train --ranks N` and `primepar profile` do: one process here for each rank.

The processes meet in a file. A stop request makes them stop after their current step, by SIGUSR1:
they end with 0, so that none looks failed while others save. A file is named like the signal.
After SIGINT or SIGTERM the next one ends them. So does the end of this process, however it comes.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from primepar.distributed.training.launchers import RANK, RANKS, STORE
from primepar.distributed.training.stopping import ASKING, exit_code
from primepar.errors import LaunchError

TRAIN = ("-m", "primepar", "train")
_SET_PARENT_DEATH_SIGNAL = 1
"""`PR_SET_PDEATHSIG` in Linux' sys/prctl.h."""
_C = ctypes.CDLL(None) if sys.platform == "linux" else None


def end_with_parent() -> None:
    """Let Linux kill this process when its parent ends, however that happens.

    Also after `exec`, so it may be called between fork and exec. A launcher that is killed cannot
    end its processes itself. Elsewhere than on Linux nothing changes.
    """
    if _C is not None:
        _C.prctl(_SET_PARENT_DEATH_SIGNAL, int(signal.SIGKILL), 0, 0, 0)


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def run_ranks(ranks: int, arguments: Sequence[str], program: Sequence[str] = TRAIN) -> int:
    """Run a Python program in `ranks` processes; the threads of all are as many as the cores.

    Returns 0, or the exit code of the first that failed: the others are then killed. After a stop
    request it returns the code of a run that the signal stopped, or 128 + the signal if they could
    not save. Raises `LaunchError` if a process was killed.
    """
    children: list[subprocess.Popen[bytes]] = []
    asked: list[int] = []

    def pass_on(number: int, frame: FrameType | None) -> None:
        ends = number != signal.SIGUSR1 and any(one != signal.SIGUSR1 for one in asked)
        if not asked:
            Path(folder, signal.Signals(number).name).touch()
        for child in children:
            child.send_signal(signal.SIGKILL if ends else signal.SIGUSR1)
        asked.append(number)

    with tempfile.TemporaryDirectory(prefix="primepar-") as folder:
        before = {number: signal.signal(number, pass_on) for number in ASKING}
        try:
            world = {RANKS: str(ranks), STORE: str(Path(folder, "store")),
                     "OMP_NUM_THREADS": str(max(1, cores() // ranks))}  # fmt: skip
            for rank in range(ranks):
                child = subprocess.Popen(
                    [sys.executable, *program, *arguments],
                    env={**os.environ, **world, RANK: str(rank)},
                    stdin=subprocess.DEVNULL,
                    start_new_session=True,  # Ctrl-C comes to this process alone
                    preexec_fn=end_with_parent,
                )
                children.append(child)
            rank, code = _first_failure(children)
        finally:
            for child in children:
                child.kill()
                child.wait()
            for number, handler in before.items():
                signal.signal(number, handler)
    if asked:
        return 128 + asked[0] if code else exit_code(asked[0])
    if code < 0:
        raise LaunchError(
            f"rank {rank}: expected a process that ends by itself, got "
            f"{signal.Signals(-code).name}: look for what ended it, as a lack of memory does"
        )
    return code


def _first_failure(children: Sequence[subprocess.Popen[bytes]]) -> tuple[int, int]:
    """Wait for all, or for one to fail, and return rank and exit code of that one."""
    while True:
        codes = [child.poll() for child in children]
        failed = next(((rank, code) for rank, code in enumerate(codes) if code), None)
        if failed is not None or None not in codes:
            return failed or (0, 0)
        time.sleep(0.05)
