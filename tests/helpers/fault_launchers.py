"""The launchers that runs with faults are started by, and whether they start anything here."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import torch

HERE = Path(__file__).resolve().parent
PYTHON = sys.executable
ANSWER = 30.0
"""Seconds in which a launcher must have started two processes that end at once."""


def launchers(mpich: Path | None) -> dict[str, list[str]]:
    """Name -> the words before the program of a rank; none where `--ranks` starts them."""
    folder = Path(PYTHON).parent
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    known = {
        "--ranks": [],
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


def with_port(words: list[str], number: int) -> list[str]:
    """Return the words with a port that belongs to the run of this number."""
    return [str(29700 + number) if word == "PORT" else word for word in words]


def starts_nothing(words: list[str]) -> str:
    """Return why a launcher is of no use here, as `srun` without its controller; else nothing."""
    if not words:
        return ""
    program = [*with_port(words, -1), "-c", "print('started')"]
    try:
        done = subprocess.run(
            program, env=environment(), capture_output=True, text=True, check=False, timeout=ANSWER
        )
    except subprocess.TimeoutExpired:
        return f"expected two processes, got none in {ANSWER:g} s"
    except OSError as error:
        return f"expected two processes, got {error}"
    if done.stdout.count("started") == 2:
        return ""
    return f"expected two processes, got exit code {done.returncode}: {done.stderr.strip()}"


def useful(known: Mapping[str, list[str]]) -> dict[str, list[str]]:
    """Return the launchers that start processes here; print why the others do not."""
    wrong = {name: starts_nothing(words) for name, words in known.items()}
    for name, why in wrong.items():
        if why:
            print(f"left out: {name}: {why}", file=sys.stderr, flush=True)
    return {name: words for name, words in known.items() if not wrong[name]}


def environment() -> dict[str, str]:
    """Ours, with the packages of this Python also for another one."""
    packages = [str(HERE.parents[1]), str(Path(torch.__file__).parent.parent)]
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(packages)}
