"""Real launches: one line about what is wrong, and nothing left behind when a run is stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from profiles import long

from primepar.distributed.checkpoints.loading import read_whole
from primepar.distributed.training.log import EndRow, StepRow, read_log

HERE = Path(sys.executable).parent
SMALL = [
    "--plan", "K2", "--set", "training.batch=4", "--set", "model.layers=1",
    "--set", "model.hidden=32",
    "--set", "model.context=16", "--set", "checks.verify=false",
]  # fmt: skip
NO_CUDA = (
    f"torch {torch.__version__}, which is built without it: install a build with CUDA"
    if torch.version.cuda is None
    else "no GPU that torch can use: look at nvidia-smi and CUDA_VISIBLE_DEVICES"
)
PRIMEPAR = [sys.executable, "-m", "primepar", "train"]


def environment() -> dict[str, str]:
    """Ours, with one thread for each process, and without GPUs."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}


def mpirun(ranks: int, *arguments: str) -> list[str]:
    """The words of a launch by hand."""
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    return [str(HERE / "mpirun"), "-n", str(ranks), "--oversubscribe", *root, *PRIMEPAR, *arguments]


def processes(mark: Path) -> list[str]:
    """Command lines of the living processes that name `mark`."""
    commands = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        if str(mark) in line:
            commands.append(line)
    return commands


def wait_until(done: object, seconds: float = 120) -> None:
    """Poll until `done()` holds."""
    deadline = time.monotonic() + seconds
    while not done():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.05)


def stopped(words: list[str], folder: Path, number: signal.Signals) -> int:
    """Start a long run, send its first process a signal after two steps, return the exit code."""
    log = folder / "log.jsonl"
    words = [*words, *SMALL, "--steps", "1000000", "--checkpoint", str(folder / "saved")]
    child = subprocess.Popen(
        [*words, "--set", f"output.log={log}"], env=environment(), stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        wait_until(lambda: log.exists() and log.read_bytes().count(b"\n") > 2)
        assert processes(folder)
        child.send_signal(number)
        return child.wait(timeout=120)
    finally:
        child.kill()
        child.wait()


def saved_at_the_end(folder: Path, reason: str) -> None:
    """The log ends with a stopped step, which has a whole checkpoint, and no process is left."""
    wait_until(lambda: processes(folder) == [])
    *_, step, end = read_log(folder / "log.jsonl")
    assert isinstance(step, StepRow)
    assert end == EndRow(step.step, reason)
    (path,) = (folder / "saved").glob("step-*")
    assert path.name == f"step-{step.step:08d}"
    assert read_whole(path).step == step.step


@long  # test_ranks.py passes the signal on, test_trainer.py ends and saves after it
def test_ctrl_c_ends_a_run_after_its_step_with_everything_written(tmp_path: Path) -> None:
    assert stopped([*PRIMEPAR, "--ranks", "2"], tmp_path, signal.SIGINT) == 130
    saved_at_the_end(tmp_path, "SIGINT")


@long
def test_mpirun_forwards_a_request_to_stop(tmp_path: Path) -> None:
    assert stopped(mpirun(2), tmp_path, signal.SIGUSR1) == 0
    saved_at_the_end(tmp_path, "SIGINT")


@long
@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (
            ["--steps", "1"],
            "primepar: error: processes: expected a square number for the default sequence, got 2: "
            "choose one of 2 devices, --plan K2, N2 or M2",
        ),
        (
            [*SMALL, "--checkpoint", "none", "--resume"],
            "primepar: error: none: expected a checkpoint to resume from, found none: leave "
            "--resume out to begin a new run",
        ),
        (
            [*SMALL, "--set", "training.device=cuda"],
            f"primepar: error: training.device: expected CUDA, got {NO_CUDA}, or write --set "
            "training.device=cpu",
        ),
    ],
    ids=["before they meet", "after they met", "without CUDA"],
)
def test_an_error_is_reported_once(arguments: list[str], line: str, tmp_path: Path) -> None:
    done = subprocess.run(
        mpirun(2, *arguments), cwd=tmp_path, env=environment(), capture_output=True, text=True
    )
    assert done.returncode == 2
    printed = [text.strip() for text in (done.stdout + done.stderr).splitlines()]
    assert [text for text in printed if "error" in text.lower()] == [line]
    assert list(tmp_path.iterdir()) == []


@long  # test_alike.py has the same sentence, of threads with one store
def test_ranks_with_other_settings_do_not_wait_for_one_another(tmp_path: Path) -> None:
    other = ["--set", "optimizer.clip=1.0", "--set", "training.dtype=bfloat16"]
    done = subprocess.run(
        [*mpirun(1, *SMALL), ":", "-n", "1", *PRIMEPAR, *SMALL, *other],
        cwd=tmp_path, env=environment(), capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 2
    printed = [text.strip() for text in (done.stdout + done.stderr).splitlines()]
    assert [text for text in printed if "error" in text.lower()] == [
        "primepar: error: ranks: expected what rank 0 has on every rank, got optimizer.clip 1.0 on "
        "rank 1, not none; training.dtype bfloat16 on rank 1, not float32: start all ranks with "
        "one command line, on machines with the same files and the same version"
    ]
    assert list(tmp_path.iterdir()) == []


@long
def test_torchrun_trains_too(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    subprocess.run(
        [HERE / "torchrun", "--nproc-per-node", "2", "--no-python", "--", *PRIMEPAR, *SMALL,
         "--steps", "2", "--set", f"output.log={log}"],
        env=environment(), check=True, capture_output=True,
    )  # fmt: skip
    rows = read_log(log)
    assert [row.step for row in rows if isinstance(row, StepRow)] == [1, 2]
