"""Runs of two ranks that meet a fault: how they start, what the fault is, and what they leave."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random

from attack_checkpoints import PARTS, ranges
from fault_launchers import HERE, PYTHON, environment, with_port

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
CUT = "cut a file"
CHANGES = (*(f"flip a bit: {part}" for part in PARTS), CUT)
"""Changes of the last checkpoint, after the run was killed; resuming it must be refused."""
REQUESTS = ("SIGTERM", "SIGINT")
"""After these the run has a checkpoint of its last step."""
SENT = {
    "kill rank 0": signal.SIGKILL, "kill rank 1": signal.SIGKILL, "stop rank 0": signal.SIGSTOP,
    "stop rank 1": signal.SIGSTOP, "kill the launcher": signal.SIGKILL,
    "SIGTERM": signal.SIGTERM, "SIGINT": signal.SIGINT,
    **dict.fromkeys(CHANGES, signal.SIGKILL),
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A launcher, a fault, and the row of the log after which it comes."""

    number: int
    launcher: str
    fault: str
    row: int


class FaultyRun:
    """A run in a folder of its own, and all processes that it has started."""

    def __init__(self, case: Case, words: list[str], folder: Path) -> None:
        self.case, self.words, self.folder = case, words, folder
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
        self.errors = folder / "stderr-launcher"
        self.start()

    def start(self, *more: str) -> None:
        """Start the run by its launcher, with more options."""
        case, folder = self.case, self.folder
        if self.words:
            fault = case.fault if case.fault in BY_ITSELF else "none"
            program = str(HERE / "faulty_rank.py"), fault, "1", str(case.row), str(folder), "train"
            words = [*with_port(self.words, case.number), *program]
        else:
            words = [PYTHON, "-m", "primepar", "train", "--ranks", "2"]
        with self.errors.open("ab") as errors, (folder / "stdout").open("ab") as out:
            self.process = subprocess.Popen(
                [*words, *self.arguments(LONG), "--set", f"checkpoint.every={EVERY}", *more],
                env=environment(), cwd=folder, stdin=subprocess.DEVNULL, stdout=out, stderr=errors,
                start_new_session=True,  # Linux divides its cores among sessions
            )  # fmt: skip

    def arguments(self, steps: int) -> list[str]:
        """The settings of the run."""
        return [*SIZES, "--steps", str(steps), "--timeout", str(TIMEOUT), "--checkpoint",
                str(self.saved), "--set", f"output.log={self.log}"]  # fmt: skip

    # What it has written

    @property
    def rows(self) -> int:
        """Rows in its log."""
        return self.log.read_bytes().count(b"\n") if self.log.exists() else 0

    @property
    def printed(self) -> list[str]:
        """What our processes printed on stderr; a launcher's own words are not counted."""
        alone = self.case.launcher == "--ranks"
        paths = [self.errors] if alone else sorted(self.folder.glob("stderr-[0-9]*"))
        return [line for path in paths for line in path.read_text().splitlines()]

    @property
    def checkpoints(self) -> list[Path]:
        """Its whole checkpoints, the last one at the end."""
        return sorted(path for path in self.saved.glob("step-*") if ".part" not in path.name)

    # Its processes

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

    def wait_for_end(self, seconds: float) -> None:
        """Wait until the run and all its processes have ended. Raises `TimeoutError`."""
        wait_until(lambda: self.process.poll() is not None, "the end of the run", seconds)
        wait_until(lambda: not self.processes(), "the end of all processes", seconds)

    def meet_fault(self) -> None:
        """Wait for the row, and do what the case is about, unless the rank does it by itself."""
        wanted = self.case.row if self.case.fault not in BY_ITSELF else self.case.row - 1
        wait_until(lambda: self._has_come_to(wanted) or self.process.poll() is not None, "the row")
        if not self._has_come_to(wanted):
            raise TimeoutError(
                f"it ended before the fault, with exit code {self.process.poll()}: "
                f"{self.printed or self.errors.read_text().strip()}"
            )
        fault = self.case.fault
        if fault.startswith(("kill rank", "stop rank")):
            os.kill(self.ranks()[int(fault[-1])], SENT[fault])
        elif fault in REQUESTS and self.case.launcher == "srun":
            # A signal to srun itself kills its processes at once; SLURM's command waits.
            self._cancel(SENT[fault])
        elif fault in REQUESTS and self.case.launcher == "mpirun":
            # Open MPI kills its processes at once, but forwards SIGUSR1.
            self.process.send_signal(signal.SIGUSR1)
        elif fault in SENT:
            self.process.send_signal(SENT[fault])
        elif fault in FULL_DISK:
            fill(self.disk / "filled")

    def _has_come_to(self, row: int) -> bool:
        """Whether the row is written, and a checkpoint if the case changes it."""
        return self.rows > row and (self.case.fault not in CHANGES or bool(self.checkpoints))

    def _cancel(self, number: signal.Signals) -> None:
        """Send a signal to all ranks of a job of SLURM."""
        variables = text_of(Path(f"/proc/{self.ranks()[0]}/environ")).split("\0")
        job = next(text[13:] for text in variables if text.startswith("SLURM_JOB_ID="))
        subprocess.run(["scancel", f"--signal={number.name[3:]}", job], check=True)

    def close(self) -> None:
        """End what still runs, and give the disk back."""
        for process in self.processes():
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        self.process.kill()
        self.process.wait()
        if self.case.fault in FULL_DISK:
            subprocess.run(["umount", "-l", self.disk], check=True)


def change(checkpoint: Path, case: Case) -> Path:
    """Flip a bit in a part of a checkpoint, or cut one of its files; return the file."""
    drawn = Random(case.number)
    part = drawn.choice(PARTS) if case.fault == CUT else case.fault.partition(": ")[2]
    places = {file: place for (name, file), place in ranges(checkpoint).items() if name == part}
    name = drawn.choice(sorted(places))
    file, at_byte = checkpoint / name, drawn.choice(places[name])
    content = bytearray(file.read_bytes())
    if case.fault == CUT:
        del content[at_byte:]
    else:
        content[at_byte] ^= 1 << drawn.randrange(8)
    file.write_bytes(content)
    return file


def contents(folder: Path) -> dict[str, bytes]:
    """Return name -> content of all files below a folder of checkpoints, but its lock."""
    paths = (path for path in folder.rglob("*") if path.is_file() and path.name != ".lock")
    return {str(path): path.read_bytes() for path in paths}


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
