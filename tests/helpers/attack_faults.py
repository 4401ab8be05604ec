"""`python tests/helpers/attack_faults.py`: runs of two ranks, with a seeded fault in each.

A run is started by one of the launchers that are here, and meets a fault in a random step. It must
end within the timeout and some seconds, leave no process behind, and print at most two lines. Its
last checkpoint must load, and the resumed run must have the losses of an unbroken one, bit for bit.
Ends with 1 unless all do.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import NamedTuple

from fault_launchers import PYTHON, environment, launchers, useful
from faulty_runs import (
    BY_ITSELF,
    CHANGES,
    EVERY,
    FULL_DISK,
    REQUESTS,
    SENT,
    SIZES,
    TIMEOUT,
    Case,
    FaultyRun,
    change,
    contents,
)
from rich.console import Console
from rich.table import Table

from primepar.distributed.training.log import StepRow, read_log

ENDING = 45.0
"""Seconds that a run may take beyond the timeout to end: torchrun waits 30 for a stopped one."""
START = 120.0
"""Seconds that a run may take to start on a busy machine."""
REFUSED = {"torchrun": (1,), "srun": (2, 128 + 15)}
"""Exit codes of a launcher whose rank ends with 2; srun's is the largest, and it ends others."""
AFTER = 5
"""Steps of a resumed run."""
UNBROKEN = 400
"""Steps of the run without faults."""


class Verdict(NamedTuple):
    """How a run ended: what is wrong, seconds from the fault to the end, and lines on stderr."""

    case: Case
    wrong: str
    seconds: float = 0.0
    lines: int = 0


def judged(case: Case, words: list[str], folder: Path, unbroken: dict[int, StepRow]) -> Verdict:
    """Run a case, and resume it."""
    run = FaultyRun(case, words, folder / f"case-{case.number}")
    try:
        run.meet_fault()
        begin = time.monotonic()
        run.wait_for_end(TIMEOUT + ENDING)
        seconds, lines = time.monotonic() - begin, run.printed
        wrong = _wrong_lines(case, lines) or _lost(run) or _wrong_after(run, unbroken)
    except TimeoutError as error:
        return Verdict(case, str(error), TIMEOUT + ENDING, len(run.printed))
    finally:
        run.close()
    return Verdict(case, wrong, seconds, len(lines))


def _wrong_lines(case: Case, lines: list[str]) -> str:
    if len(lines) > 2:
        return f"{len(lines)} lines: {lines[:3]}"
    waited = case.fault.startswith("stop") or case.fault in ("loop", "lock", "wait")
    if waited and sum(f"within {TIMEOUT:g} s" in line for line in lines) == 0:
        return f"expected a line about the wait, got {lines}"
    return ""


def _lost(run: FaultyRun) -> str:
    """Return which step has no checkpoint that it should have."""
    last, done = _last(run), _step_rows(run)[-1].step
    if last < (done if run.case.fault in REQUESTS else done - done % EVERY - EVERY):
        return f"expected a checkpoint of step {done}, got {last}"
    return ""


def _wrong_after(run: FaultyRun, unbroken: dict[int, StepRow]) -> str:
    """Resume the run, and return what it does otherwise than one without a fault."""
    if run.case.fault in FULL_DISK:
        (run.disk / "filled").unlink()
    if run.case.fault in CHANGES:
        wrong = _not_refused(run)
        if wrong:
            return wrong
    last = _last(run)
    words = [PYTHON, "-m", "primepar", "train", "--ranks", "2", *run.arguments(last + AFTER)]
    resumed = subprocess.run(
        [*words, *["--resume"] * (last > 0)], env=environment(), cwd=run.folder,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if resumed.returncode != 0:
        return f"not resumed: {resumed.stderr}"
    rows = _step_rows(run)
    different = [row.step for row in rows if _numbers(row) != _numbers(unbroken[row.step])]
    if [row.step for row in rows] != list(range(1, last + AFTER + 1)):
        return (
            f"expected steps 1 to {last + AFTER} in the log, got {rows[0].step} to {rows[-1].step}"
        )
    return f"other losses in steps {different[:5]}" if different else ""


def _not_refused(run: FaultyRun) -> str:
    """Change the last checkpoint; resuming it must end in one line that names the file.

    Nothing is overwritten. Then the checkpoint is deleted, as the line advises.
    """
    checkpoint, before = run.checkpoints[-1], Counter(run.printed)
    file, log = change(checkpoint, run.case), run.log.read_bytes()
    saved = contents(run.saved)
    run.start("--resume")
    run.wait_for_end(START + ENDING)
    lines = list((Counter(run.printed) - before).elements())
    codes = REFUSED.get(run.case.launcher, (2,))
    if run.process.returncode not in codes:
        return f"expected exit code {codes} of --resume, got {run.process.returncode}"
    if len(lines) != 1 or not lines[0].startswith(f"primepar: error: {file}: expected "):
        return f"expected one line about {file}, got {lines}"
    if contents(run.saved) != saved or run.log.read_bytes() != log:
        return "expected all files as they were, got others"
    shutil.rmtree(checkpoint)
    return ""


def _last(run: FaultyRun) -> int:
    """Return the step of the last checkpoint; 0 without one."""
    return max((int(path.name[5:]) for path in run.checkpoints), default=0)


def _step_rows(run: FaultyRun) -> list[StepRow]:
    return [row for row in read_log(run.log) if isinstance(row, StepRow)]


def _numbers(row: StepRow) -> tuple[float, float | None]:
    return row.loss, row.gradient_norm


def unbroken_run(folder: Path) -> dict[int, StepRow]:
    """Step -> its row in a run without faults."""
    log = folder / "unbroken.jsonl"
    words = ["-m", "primepar", "train", "--ranks", "2", *SIZES, "--steps", str(UNBROKEN)]
    subprocess.run(
        [PYTHON, *words, "--set", f"output.log={log}"], env=environment(), check=True,
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
        if not (fault in BY_ITSELF and name == "--ranks")
    ]
    random.shuffle(pairs)
    chosen = [pairs[number % len(pairs)] for number in range(count)]
    return [Case(number, *pair, random.randrange(3, 40)) for number, pair in enumerate(chosen)]


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
    words = useful(launchers(asked.mpich))
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
