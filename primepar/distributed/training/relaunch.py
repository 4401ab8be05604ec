"""Starts `primepar train --ranks N` or `primepar profile`, and forwards stop requests.

mpirun starts the processes; where there is none, they are started one by one. Open MPI's mpirun
kills its processes half a second after a stop signal. So the first signal is not forwarded as it
is: the processes get SIGUSR1, and stop after their current step. A second signal ends them. So does
the end of this process, even if it is killed.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import FrameType

from primepar.distributed.training.launcher_output import LauncherOutput, killed_message
from primepar.distributed.training.launchers import RANK, RANKS, STORE
from primepar.distributed.training.process_tree import end_with_parent
from primepar.distributed.training.progress import TERMINAL
from primepar.errors import ConfigError, LaunchError

STOP_SECONDS = 2.0
"""How long a launcher has after SIGTERM to end its processes, before SIGKILL."""
_PROGRAM = ("-m", "primepar", "train")


@dataclass(frozen=True)
class CommandLine:
    """A command line and the variables that it adds to the environment.

    `processes` are those to start of it, one for each rank; 0 if it starts them itself.
    """

    words: tuple[str, ...]
    variables: dict[str, str]
    processes: int = 0

    def __str__(self) -> str:
        added = [f"{name}={value}" for name, value in self.variables.items()]
        times = [f" # {self.processes} processes"] if self.processes else []
        return " ".join([*added, shlex.join(self.words), *times])


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def start_line(
    ranks: int, arguments: list[str], program: tuple[str, ...] = _PROGRAM
) -> CommandLine:
    """Return the command line that runs a Python program in `ranks` processes on this machine.

    It is mpirun's, or without an mpirun next to python that of one process. Raises `ConfigError`
    for `ranks` below 1.
    """
    if ranks < 1:
        raise ConfigError(f"--ranks: expected 1 or more, got {ranks}")
    if has_mpirun():
        return mpirun_line(ranks, arguments, program)
    words = (sys.executable, *program, *arguments)
    return CommandLine(words, _threads(ranks), ranks)


def has_mpirun() -> bool:
    """Return whether there is an mpirun next to python."""
    return _mpirun().exists()


def _mpirun() -> Path:
    return Path(sys.executable).with_name("mpirun")


def _threads(ranks: int) -> dict[str, str]:
    return {"OMP_NUM_THREADS": str(max(1, cores() // ranks))}


def mpirun_line(
    ranks: int, arguments: list[str], program: tuple[str, ...] = _PROGRAM
) -> CommandLine:
    """Return mpirun's command line for `ranks` processes on this machine.

    It has the options that mpirun needs as root, for fewer cores than ranks, and against binding
    each process to one core. The threads of all processes together are as many as the cores.
    """
    words = [str(_mpirun()), "-n", str(ranks), "--bind-to", "none"]
    words += ["--allow-run-as-root"] if os.geteuid() == 0 else []
    words += ["--oversubscribe"] if ranks > cores() else []
    words += [sys.executable, *program, *arguments]
    return CommandLine(tuple(words), _threads(ranks))


def run(line: CommandLine) -> int:
    """Run a command line; returns its exit code, or 128 + the signal after a stop request.

    Raises `LaunchError` if the launcher or a process that it started was killed.
    """
    if line.processes:
        with tempfile.TemporaryDirectory(prefix="primepar-") as folder:
            return run_all(rank_lines(line, Path(folder, "store")))
    terminal = {TERMINAL: "1"} if sys.stdout.isatty() else {}
    line, output = replace(line, variables=line.variables | terminal), LauncherOutput()
    with _started([line], signal.SIGTERM, stderr=subprocess.PIPE) as (children, asked):
        for text in output.lines(_text_of(children[0])):
            print(text, end="", file=sys.stderr, flush=True)
        code = children[0].wait()
    if asked:
        return 128 + asked[0]
    if output.killed:
        raise LaunchError(output.killed)
    if code < 0:
        raise LaunchError(killed_message(Path(line.words[0]).name, -code))
    return code


def _text_of(child: subprocess.Popen[bytes]) -> Iterator[str]:
    """Yield the lines that a process writes to its stderr, with their ends."""
    for line in child.stderr or ():
        yield line.decode(errors="replace")


def rank_lines(line: CommandLine, store: Path) -> list[CommandLine]:
    """Return the command line of each rank; the ranks meet in the file `store`."""
    world = {RANKS: str(line.processes), STORE: str(store)}
    return [
        CommandLine(line.words, {**line.variables, **world, RANK: str(rank)})
        for rank in range(line.processes)
    ]


def run_all(lines: Sequence[CommandLine]) -> int:
    """Run one process for each rank; returns 0, or the exit code of the first that failed.

    The others are then ended. After a stop request it returns 128 + the signal. Raises
    `LaunchError` if a process was killed.
    """
    with _started(lines, signal.SIGKILL) as (children, asked):
        failed = _first_failure(children)
    if asked:
        return 128 + asked[0]
    rank, code = failed
    if code < 0:
        raise LaunchError(killed_message(f"rank {rank}", -code))
    return code


def _first_failure(children: Sequence[subprocess.Popen[bytes]]) -> tuple[int, int]:
    """Wait for all, end them when one has failed, and return rank and exit code of that one."""
    while True:
        codes = [child.poll() for child in children]
        failed = next(((rank, code) for rank, code in enumerate(codes) if code), None)
        if failed is not None or None not in codes:
            return failed or (0, 0)
        time.sleep(0.05)


@contextmanager
def _started(
    lines: Sequence[CommandLine], ending: signal.Signals, stderr: int | None = None
) -> Iterator[tuple[list[subprocess.Popen[bytes]], list[int]]]:
    """Start processes, forward stop requests, and end at last what still runs.

    `ending` is the signal that ends one: SIGTERM a launcher, which then ends its processes, and
    SIGKILL a rank. Yields the processes and the signals that came.
    """
    children: list[subprocess.Popen[bytes]] = []
    asked: list[int] = []

    def pass_on(number: int, frame: FrameType | None) -> None:
        for child in children:
            child.send_signal(ending if asked else signal.SIGUSR1)
        asked.append(number)

    before = {number: signal.signal(number, pass_on) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        for line in lines:
            environment = {**os.environ, **line.variables}
            children.append(
                subprocess.Popen(
                    line.words,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stderr=stderr,
                    start_new_session=True,
                    preexec_fn=partial(end_with_parent, ending),
                )
            )
        yield children, asked
    finally:
        _end(children, ending)
        for number, handler in before.items():
            signal.signal(number, handler)


def _end(children: Sequence[subprocess.Popen[bytes]], ending: signal.Signals) -> None:
    """End the processes that still run, by SIGKILL if the signal for it does not."""
    for child in children:
        child.send_signal(ending)
    deadline = time.monotonic() + STOP_SECONDS
    for child in children:
        try:
            child.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
