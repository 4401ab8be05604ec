"""Runs of two ranks that meet a fault: how they start, what the fault is, and what they leave."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch

HERE = Path(__file__).resolve().parent
PYTHON = sys.executable
TIMEOUT = 10.0
EVERY = 10
"""Steps between checkpoints."""
SIZES = (
    "--plan", "K2", "--set", "training.batch=2", "--set", "model.layers=1", "--set",
    "model.hidden=16", "--set", "model.heads=2", "--set", "model.context=8",
    "--set", "checks.verify=false", "--set", "evaluation.every=0", "--set", "training.device=cpu",
)  # fmt: skip
LONG = 1_000_000
BY_ITSELF = ("loop", "lock", "wait", "raise")
"""Faults of a rank by itself, in `faulty_rank.py`."""
FULL_DISK = ("full disk, log", "full disk, checkpoint")
REQUESTS = ("SIGTERM", "SIGINT")
"""After these the run has a checkpoint of its last step."""
SENT = {
    "kill rank 0": signal.SIGKILL, "kill rank 1": signal.SIGKILL, "stop rank 0": signal.SIGSTOP,
    "stop rank 1": signal.SIGSTOP, "kill the launcher": signal.SIGKILL,
    "SIGTERM": signal.SIGTERM, "SIGINT": signal.SIGINT,
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A launcher, a fault, and the row of the log after which it comes."""

    number: int
    launcher: str
    fault: str
    row: int


# Launchers


def launchers(mpich: Path | None) -> dict[str, list[str]]:
    """Name -> the words before the program of a rank; none where `--ranks` starts them."""
    folder = Path(PYTHON).parent
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    known = {
        "--ranks": [],
        "--ranks, no mpirun": [],
        "mpirun": [str(folder / "mpirun"), "-n", "2", "--oversubscribe", *root, PYTHON],
        "torchrun": [str(folder / "torchrun"), "--nproc-per-node", "2", "--master-port", "PORT",
                     "--no-python", "--", PYTHON],
    }  # fmt: skip
    if mpich is not None:
        known["MPICH"] = [str(mpich / "mpirun"), "-n", "2", str(mpich / "python")]
    if shutil.which("srun"):
        known["srun"] = ["srun", "--quiet", "--oversubscribe", "--kill-on-bad-exit=1", "-n", "2",
                         PYTHON]  # fmt: skip
    return known


def bare_python(folder: Path) -> str:
    """A Python without an mpirun next to it: `--ranks` then starts the processes itself."""
    link = folder / "python"
    if not link.exists():
        link.symlink_to(Path(PYTHON).resolve())
    return str(link)


def environment() -> dict[str, str]:
    """Ours, with the packages of this Python also for another one."""
    packages = [str(HERE.parent), str(Path(torch.__file__).parent.parent)]
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(packages)}


# One run


class FaultyRun:
    """A run in a folder of its own, and all processes that it has started."""

    def __init__(self, case: Case, words: list[str], folder: Path) -> None:
        self.case, self.folder = case, folder
        folder.mkdir()
        self.disk = folder / "disk"
        self.disk.mkdir()
        if case.fault in FULL_DISK:
            subprocess.run(
                ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", self.disk], check=True
            )
        places = {name: self.disk if case.fault.endswith(name) else folder
                  for name in ("log", "checkpoint")}  # fmt: skip
        self.log, self.saved = places["log"] / "log.jsonl", places["checkpoint"] / "saved"
        if words:
            fault = case.fault if case.fault in BY_ITSELF else "none"
            program = [
                str(HERE / "faulty_rank.py"),
                fault,
                "1",
                str(case.row),
                str(folder),
                "train",
            ]
            port = str(29700 + case.number)
            words = [port if word == "PORT" else word for word in words] + program
        else:
            python = PYTHON if case.launcher == "--ranks" else bare_python(folder)
            words = [python, "-m", "primepar", "train", "--ranks", "2"]
        self.errors = folder / "stderr-launcher"
        with self.errors.open("wb") as errors, (folder / "stdout").open("wb") as out:
            self.process = subprocess.Popen(
                [*words, *self.arguments(LONG), "--set", f"checkpoint.every={EVERY}"],
                env=environment(), cwd=folder, stdin=subprocess.DEVNULL, stdout=out, stderr=errors,
            )  # fmt: skip

    def arguments(self, steps: int) -> list[str]:
        """The settings of the run."""
        return [*SIZES, "--steps", str(steps), "--timeout", str(TIMEOUT), "--checkpoint",
                str(self.saved), "--set", f"output.log={self.log}"]  # fmt: skip

    @property
    def rows(self) -> int:
        """Rows in its log."""
        return self.log.read_bytes().count(b"\n") if self.log.exists() else 0

    def processes(self) -> list[int]:
        """All processes whose command line names the folder, but zombies."""
        commands = Path("/proc").glob("[0-9]*/cmdline")
        named = [path.parent for path in commands if str(self.folder) in text_of(path)]
        return sorted(
            int(path.name)
            for path in named
            if text_of(path / "stat").rpartition(")")[2].split()[:1] != ["Z"]
        )

    def ranks(self) -> list[int]:
        """The processes of the ranks, which have torch loaded; they start in order."""
        return [
            process
            for process in self.processes()
            if "libtorch" in text_of(Path(f"/proc/{process}/maps"))
            and "torchrun\0" not in text_of(Path(f"/proc/{process}/cmdline"))
        ]

    def meet_fault(self) -> None:
        """Wait for the row, and do what the case is about, unless the rank does it by itself."""
        wanted = self.case.row if self.case.fault not in BY_ITSELF else self.case.row - 1
        wait_until(lambda: self.rows > wanted, "the row of the fault")
        fault = self.case.fault
        if fault.startswith(("kill rank", "stop rank")):
            os.kill(self.ranks()[int(fault[-1])], SENT[fault])
        elif fault in SENT:
            self.process.send_signal(SENT[fault])
        elif fault in FULL_DISK:
            fill(self.disk / "filled")

    @property
    def printed(self) -> list[str]:
        """What our processes printed on stderr; a launcher's own words are not counted."""
        alone = self.case.launcher.startswith("--ranks")
        paths = [self.errors] if alone else sorted(self.folder.glob("stderr-[0-9]*"))
        return [line for path in paths for line in path.read_text().splitlines()]

    def close(self) -> None:
        """End what still runs, and give the disk back."""
        for process in self.processes():
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        self.process.kill()
        self.process.wait()
        if self.case.fault in FULL_DISK:
            subprocess.run(["umount", "-l", self.disk], check=True)


def text_of(path: Path) -> str:
    """The content of a file in /proc; empty if its process has gone."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def fill(path: Path) -> None:
    """Fill a disk."""
    with path.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))


def wait_until(done: Callable[[], bool], what: str, seconds: float = 240) -> None:
    """Poll. Raises `TimeoutError`."""
    deadline = time.monotonic() + seconds
    while not done():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} did not come")
        time.sleep(0.02)
