"""Runs `primepar train` in processes of one world, forked from a server with torch loaded.

They start as under `--ranks` without MPI: with its variables, on gloo, or on NCCL with a GPU.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist
from distributed_ranks import forked, one_host_each, sums_in_one_order

from primepar.cli import main
from primepar.distributed.training import launchers, watchdog
from primepar.distributed.training.launchers import RANK, RANKS, STORE
from primepar.distributed.training.trainer import Trainer
from primepar.errors import ProgramError

SECONDS = 120.0
"""The deadline of a whole command."""
GRACE = 0.5
"""Instead of the seconds in which a launcher ends a job: here nobody does."""
FAILING = 3
"""The step in which a rank fails."""


class EndedRank(NamedTuple):
    """How the process of a rank ended: its exit code, or minus the signal, and what it printed."""

    code: int | None
    out: str
    err: str


def killed() -> None:
    """As the kernel ends a process when memory runs out."""
    os.kill(os.getpid(), signal.SIGKILL)


def out_of_memory() -> None:
    """Allocate what no machine has."""
    torch.empty(1 << 48, device="cuda" if torch.cuda.is_available() else "cpu")


def raises() -> None:
    """An error of one line, while a collective is outstanding that nobody joins."""
    dist.barrier(async_op=True)
    raise ProgramError("expected a step, got none")


def crashes() -> None:
    """An error that nobody foresaw."""
    raise RuntimeError("unforeseen")


Fail = Callable[[], None]


def train_ranks(
    size: int,
    folder: Path,
    backend: str,
    words: Sequence[str],
    fail: Fail | None = None,
    by_itself: bool = True,
) -> list[EndedRank]:
    """Train on `size` processes, the last of which may fail; how each ended, before the deadline.

    What must end `by_itself` gets no signal; else the others are killed when one has failed, as a
    launcher does. Raises `TimeoutError` for a process that hangs.
    """
    folder.mkdir(exist_ok=True)
    words = [*words, "--set", f"training.device={'cuda' if backend == 'nccl' else 'cpu'}"]
    processes = [
        forked(_rank, rank, size, folder, backend, list(words), fail) for rank in range(size)
    ]
    try:
        _wait(processes, by_itself)
    finally:
        for process in processes:
            process.kill()
            process.join()
    return [
        EndedRank(
            process.exitcode,
            (folder / f"out-{rank}").read_text(),
            "".join(_ours((folder / f"err-{rank}").read_text().splitlines(keepends=True))),
        )
        for rank, process in enumerate(processes)
    ]


def _ours(lines: Sequence[str]) -> Iterator[str]:
    """The lines that are not warnings of torch or of NCCL."""
    foreign = re.compile(
        r"(\[rank\d+\]:)?\[[WE]\d{4} |.*Warning: |  warnings\.warn\(|.* NCCL WARN "
    )
    return (line for line in lines if not foreign.match(line))


def _wait(processes: Sequence[BaseProcess], by_itself: bool) -> None:
    deadline = time.monotonic() + SECONDS
    while any(process.exitcode is None for process in processes):
        if time.monotonic() > deadline:
            running = [rank for rank, process in enumerate(processes) if process.exitcode is None]
            raise TimeoutError(f"ranks {running} hang")
        if not by_itself and any(process.exitcode for process in processes):
            return
        time.sleep(0.02)


def _rank(
    rank: int, size: int, folder: Path, backend: str, words: list[str], fail: Fail | None
) -> None:
    """The process of one rank: the command, with its streams in files."""
    for stream, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(folder / f"{name}-{rank}", os.O_CREAT | os.O_WRONLY), stream)
    os.environ.update({RANK: str(rank), RANKS: str(size), STORE: str(folder / "store")})
    if backend == "nccl":
        one_host_each(rank, size)
        sums_in_one_order(torch.device("cuda"))
    torch.set_num_threads(1)
    launchers.GRACE_SECONDS = watchdog.GRACE_SECONDS = GRACE  # type: ignore[attr-defined]
    if fail is not None and rank == size - 1:
        _fail_in_a_step(fail)
    sys.argv = ["primepar", "train", *words]
    try:
        main()
    except Exception:
        traceback.print_exc()
        sys.stderr.flush()
        raise SystemExit(1) from None


def _fail_in_a_step(fail: Fail) -> None:
    """Fail after the batch is read, while the other ranks wait in the step."""
    on_device = Trainer._on_device

    def read(self: Trainer, batch: object) -> object:
        if self.done + 1 == FAILING:
            fail()
        return on_device(self, batch)  # type: ignore[arg-type]

    Trainer._on_device = read  # type: ignore[assignment, method-assign]
