"""`train --ranks N`, `plan --profile`: start ourselves again, and pass a request to stop on.

Open MPI's mpirun, told to stop, kills its processes a quarter of a second later, whatever they
are doing. So the request ends here, and the processes get SIGUSR1, which they obey after the step
that they are in. A second request is passed to mpirun as it came.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from primepar.distributed.training.progress import TERMINAL
from primepar.errors import ConfigError, LaunchError


@dataclass(frozen=True)
class CommandLine:
    """A command line and the variables that it adds to the environment."""

    words: tuple[str, ...]
    variables: dict[str, str]

    def __str__(self) -> str:
        added = [f"{name}={value}" for name, value in self.variables.items()]
        return " ".join([*added, shlex.join(self.words)])


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def mpirun_line(
    ranks: int, arguments: list[str], program: tuple[str, ...] = ("-m", "primepar", "train")
) -> CommandLine:
    """The line that runs a program of Python's in `ranks` processes on this machine.

    As root, and on fewer cores than ranks, mpirun refuses unless told not to, and it would bind
    each process to one core; the threads of all together fill the cores once. Raises `LaunchError`
    if there is no mpirun here.
    """
    if ranks < 1:
        raise ConfigError(f"--ranks: expected 1 or more, got {ranks}")
    mpirun = Path(sys.executable).with_name("mpirun")
    if not mpirun.exists():
        raise LaunchError(
            f"--ranks: expected mpirun beside python in {mpirun.parent}, found none: "
            "run pip install 'primepar[torch]'"
        )
    words = [str(mpirun), "-n", str(ranks), "--bind-to", "none"]
    words += ["--allow-run-as-root"] if os.geteuid() == 0 else []
    words += ["--oversubscribe"] if ranks > cores() else []
    words += [sys.executable, *program, *arguments]
    return CommandLine(tuple(words), {"OMP_NUM_THREADS": str(max(1, cores() // ranks))})


def run(line: CommandLine) -> int:
    """Run the line and return its exit code, 128 + the signal where one asked it to stop."""
    terminal = {TERMINAL: "1"} if sys.stdout.isatty() else {}
    child = subprocess.Popen(
        line.words,
        env={**os.environ, **line.variables, **terminal},
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )
    asked: list[int] = []

    def pass_on(number: int, frame: FrameType | None) -> None:
        child.send_signal(signal.SIGTERM if asked else signal.SIGUSR1)
        asked.append(number)

    before = {number: signal.signal(number, pass_on) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        code = child.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return 128 + asked[0] if asked else code
