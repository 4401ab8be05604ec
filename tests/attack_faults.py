"""`python tests/attack_faults.py`: runs of two ranks, with a seeded fault in each.

A run is started by one of the launchers that are here, and meets a fault in a random step. It must
end within the timeout and some seconds, leave no process behind, and print at most two lines. Its
last checkpoint must load, and the resumed run must have the losses of an unbroken one, bit for bit.
Ends with 1 unless all do.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import NamedTuple

import torch
from rich.console import Console
from rich.table import Table

from primepar.distributed.training.log import StepRow, read_log

HERE = Path(__file__).resolve().parent
PYTHON = sys.executable
TIMEOUT, ENDING = 5.0, 25.0
"""The timeout of the runs; and what a run may take more, on a machine with other work."""
EVERY, AFTER = 10, 5
"""Steps between checkpoints; steps of a resumed run."""
SIZES = (
    "--plan", "K2", "--set", "training.batch=2", "--set", "model.layers=1", "--set",
    "model.hidden=16", "--set", "model.heads=2", "--set", "model.context=8",
    "--set", "checks.verify=false", "--set", "evaluation.every=0", "--set", "training.device=cpu",
)  # fmt: skip
LONG = 1_000_000
UNBROKEN = 2000
"""Steps of the run without faults."""
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


class Verdict(NamedTuple):
    """How a run ended: what is wrong, seconds from the fault to the end, and lines on stderr."""

    case: Case
    wrong: str
    seconds: float = 0.0
    lines: int = 0


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


# What must hold


def judged(case: Case, words: list[str], folder: Path, unbroken: dict[int, StepRow]) -> Verdict:
    """Run a case, and resume it."""
    run = FaultyRun(case, words, folder / f"case-{case.number}")
    try:
        run.meet_fault()
        begin = time.monotonic()
        wait_until(lambda: run.process.poll() is not None, "the end of the run", TIMEOUT + ENDING)
        wait_until(lambda: not run.processes(), "the end of all processes", ENDING)
        seconds, lines = time.monotonic() - begin, run.printed
        wrong = _wrong_lines(case, lines) or _wrong_after(run, unbroken)
    except TimeoutError as error:
        return Verdict(case, str(error), TIMEOUT + ENDING, len(run.printed))
    finally:
        run.close()
    return Verdict(case, wrong, seconds, len(lines))


def _wrong_lines(case: Case, lines: list[str]) -> str:
    if len(lines) > 2:
        return f"{len(lines)} lines: {lines[:3]}"
    waited = case.fault.startswith("stop") or case.fault in ("loop", "lock", "wait")
    if waited and sum("within 5 s" in line for line in lines) != 1:
        return f"expected a line about the wait, got {lines}"
    return ""


def _wrong_after(run: FaultyRun, unbroken: dict[int, StepRow]) -> str:
    """Resume the run, and return what it lost or does otherwise."""
    if run.case.fault in FULL_DISK:
        (run.disk / "filled").unlink()
    rows = [row for row in read_log(run.log) if isinstance(row, StepRow)]
    saved = [int(path.stem[5:]) for path in run.saved.glob("step-*") if ".part" not in path.name]
    last, done = max(saved, default=0), rows[-1].step
    if last < (done if run.case.fault in REQUESTS else done - done % EVERY - EVERY):
        return f"expected a checkpoint of step {done}, got {last}"
    python = bare_python(run.folder)
    words = [python, "-m", "primepar", "train", "--ranks", "2", *run.arguments(last + AFTER)]
    resumed = subprocess.run(
        [*words, *["--resume"] * (last > 0)], env=environment(), cwd=run.folder,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if resumed.returncode != 0:
        return f"not resumed: {resumed.stderr}"
    rows = [row for row in read_log(run.log) if isinstance(row, StepRow)]
    different = [row.step for row in rows if _numbers(row) != _numbers(unbroken[row.step])]
    if rows[-1].step != last + AFTER or [row.step for row in rows] != list(
        range(1, last + AFTER + 1)
    ):
        return (
            f"expected steps 1 to {last + AFTER} in the log, got {rows[0].step} to {rows[-1].step}"
        )
    return f"other losses in steps {different[:5]}" if different else ""


def _numbers(row: StepRow) -> tuple[float, float]:
    return row.loss, row.gradient_norm


def unbroken_run(folder: Path) -> dict[int, StepRow]:
    """Step -> its row in a run without faults."""
    log = folder / "unbroken.jsonl"
    words = ["-m", "primepar", "train", "--ranks", "2", *SIZES, "--steps", str(UNBROKEN)]
    subprocess.run(
        [bare_python(folder), *words, "--set", f"output.log={log}"], env=environment(), check=True,
        cwd=folder, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    return {row.step: row for row in read_log(log) if isinstance(row, StepRow)}


def cases(count: int, seed: int, names: Sequence[str]) -> list[Case]:
    """Each launcher with each fault in turn, at random rows."""
    random = Random(seed)
    disks = FULL_DISK if os.geteuid() == 0 else ()
    pairs = [
        (name, fault)
        for fault in (*SENT, *BY_ITSELF, *disks)
        for name in names
        if not (fault in BY_ITSELF and name.startswith("--ranks"))
    ]
    random.shuffle(pairs)
    chosen = [pairs[number % len(pairs)] for number in range(count)]
    return [Case(number, *pair, random.randrange(3, 60)) for number, pair in enumerate(chosen)]


def report(verdicts: Sequence[Verdict]) -> int:
    """Print a table by fault and launcher, and what is wrong; 1 if something is."""
    table = Table("fault", "launcher", "runs", "right", "longest", "most lines")
    by_kind: dict[tuple[str, str], list[Verdict]] = {}
    for verdict in verdicts:
        by_kind.setdefault((verdict.case.fault, verdict.case.launcher), []).append(verdict)
    for (fault, launcher), some in sorted(by_kind.items()):
        right = sum(not verdict.wrong for verdict in some)
        longest = max(verdict.seconds for verdict in some)
        lines = max(verdict.lines for verdict in some)
        table.add_row(fault, launcher, str(len(some)), str(right), f"{longest:.1f} s", str(lines))
    console = Console(width=100)
    console.print(table)
    wrong = [verdict for verdict in verdicts if verdict.wrong]
    for verdict in wrong:
        console.print(f"{verdict.case}: {verdict.wrong}", markup=False)
    console.print(f"{len(verdicts) - len(wrong)} of {len(verdicts)} right")
    return int(bool(wrong))


def main() -> int:
    """Run the attack."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--faults", type=int, default=100, metavar="N", help="runs with a fault")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="runs at a time")
    parser.add_argument("--mpich", type=Path, metavar="FOLDER", help="bin of an environment")
    parser.add_argument("--only", default="", metavar="TEXT", help="faults or launchers with it")
    asked = parser.parse_args()
    words = launchers(asked.mpich)
    chosen = [
        case
        for case in cases(asked.faults, asked.seed, list(words))
        if asked.only in f"{case.fault} under {case.launcher}"
    ]
    folder = Path(tempfile.mkdtemp(prefix="faults-"))
    unbroken = unbroken_run(folder)
    with ThreadPoolExecutor(asked.jobs) as pool:
        verdicts = []
        for verdict in pool.map(
            lambda case: judged(case, words[case.launcher], folder, unbroken), chosen
        ):
            verdicts.append(verdict)
            print(verdict, file=sys.stderr, flush=True)
    return report(verdicts)


if __name__ == "__main__":
    sys.exit(main())
