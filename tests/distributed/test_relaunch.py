"""Processes that `--ranks` starts without MPI; here they are shells."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from primepar.distributed.training import relaunch
from primepar.distributed.training.launcher_output import LauncherOutput
from primepar.distributed.training.launchers import RANK, RANKS, STORE
from primepar.distributed.training.relaunch import CommandLine, rank_lines, run, run_all, start_line
from primepar.errors import LaunchError


def shells(*texts: str) -> list[CommandLine]:
    return [CommandLine(("sh", "-c", text), {}) for text in texts]


def test_each_process_has_its_rank_and_the_file_to_meet_in(tmp_path: Path) -> None:
    text = (
        f"echo ${RANK} ${RANKS} > {tmp_path}/$PRIMEPAR_RANK; dirname ${STORE} >> {tmp_path}/store"
    )
    assert run(CommandLine(("sh", "-c", text), {"SET": "1"}, 3)) == 0
    assert [(tmp_path / str(rank)).read_text() for rank in range(3)] == ["0 3\n", "1 3\n", "2 3\n"]
    folders = set((tmp_path / "store").read_text().splitlines())
    assert len(folders) == 1
    assert not Path(folders.pop()).exists()


def test_the_line_of_a_rank_keeps_the_variables(tmp_path: Path) -> None:
    lines = rank_lines(CommandLine(("python",), {"OMP_NUM_THREADS": "2"}, 2), tmp_path / "store")
    assert lines[1].variables == {
        "OMP_NUM_THREADS": "2", RANKS: "2", STORE: str(tmp_path / "store"), RANK: "1",
    }  # fmt: skip


def test_without_mpirun_the_processes_are_started_one_by_one(tmp_path: Path) -> None:
    with patch.object(sys, "executable", str(tmp_path / "python")):
        line = start_line(4, ["--steps", "3"])
    assert line.words == (str(tmp_path / "python"), "-m", "primepar", "train", "--steps", "3")
    assert line.processes == 4
    with_mpirun = start_line(4, ["--steps", "3"])
    assert Path(with_mpirun.words[0]).name == "mpirun"
    assert with_mpirun.processes == 0


def test_the_printed_line_states_how_many_processes_it_starts() -> None:
    line = CommandLine(("python", "-m", "primepar"), {"OMP_NUM_THREADS": "1"}, 4)
    assert str(line) == "OMP_NUM_THREADS=1 python -m primepar  # 4 processes"


def test_the_first_failure_ends_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relaunch, "STOP_SECONDS", 0.2)
    started: list[subprocess.Popen[bytes]] = []

    class Noted(subprocess.Popen[bytes]):
        def __init__(self, *given: Any, **named: Any) -> None:
            super().__init__(*given, **named)
            started.append(self)

    monkeypatch.setattr(subprocess, "Popen", Noted)
    assert run_all(shells("exec sleep 1000", "exit 3", "trap '' TERM; sleep 1000 & wait")) == 3
    assert [child.returncode for child in started] == [-signal.SIGKILL, 3, -signal.SIGKILL]


def test_a_killed_process_is_named() -> None:
    with pytest.raises(LaunchError) as caught:
        run_all(shells("exec sleep 100", "kill -9 $$"))
    assert str(caught.value) == (
        "rank 1: expected a process that ends by itself, got SIGKILL: look for what ended it, as a "
        "lack of memory does"
    )


def test_a_killed_launcher_is_named(capfd: pytest.CaptureFixture[str]) -> None:
    """It has printed nothing itself."""
    with pytest.raises(LaunchError) as caught:
        run(CommandLine(("sh", "-c", "kill -9 $$"), {}))
    assert capfd.readouterr() == ("", "")
    assert str(caught.value) == (
        "sh: expected a process that ends by itself, got SIGKILL: look for what ended it, as a "
        "lack of memory does"
    )


def test_the_first_stop_request_asks_and_the_second_ends(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    text = f"trap 'touch {ready}.asked' USR1; touch {ready}; while :; do sleep 0.05; done"

    def stop() -> None:
        for mark in (ready, Path(f"{ready}.asked")):
            while not mark.exists():
                time.sleep(0.02)
            os.kill(os.getpid(), signal.SIGINT)

    asking = threading.Thread(target=stop)
    asking.start()
    assert run_all(shells(text)) == 130
    asking.join()


# What mpirun prints

RULER = "-" * 74 + "\n"
FAILED = [
    RULER, "prterun detected that one or more processes exited with non-zero status,\n",
    "thus causing the job to be terminated. The first process to do so was:\n", "\n",
    "   Process name: [prterun-vm-20081@1,1]\n", "   Exit code:    2\n", RULER,
]  # fmt: skip
KILLED = [
    RULER, "prterun noticed that process rank 1 with PID 20090 on node vm exited on\n",
    "signal 9 (Killed).\n", RULER,
]  # fmt: skip
SLOTS = [RULER, "There are not enough slots available in the system\n", RULER]


def test_a_paragraph_about_a_failed_process_is_left_out() -> None:
    output = LauncherOutput()
    lines = ["primepar: error: x\n", *FAILED, "y\n", *SLOTS, *FAILED[:3]]
    assert list(output.lines(lines)) == ["primepar: error: x\n", "y\n", *SLOTS, *FAILED[:3]]
    assert output.killed == ""


def test_a_killed_process_is_reported_in_one_line() -> None:
    output = LauncherOutput()
    assert list(output.lines(KILLED)) == []
    assert output.killed == (
        "rank 1: expected a process that ends by itself, got SIGKILL: look for what ended it, as a "
        "lack of memory does"
    )


# Who ends with whom


@pytest.mark.skipif(sys.platform != "linux", reason="a call of Linux")
def test_a_process_ends_with_the_one_that_started_it(tmp_path: Path) -> None:
    """The parent starts a child and is killed: so is the child, even if it was stopped."""
    note = tmp_path / "pid"
    text = (
        "import subprocess, sys, time\n"
        "from primepar.distributed.training.process_tree import end_with_parent\n"
        "child = subprocess.Popen(['sleep', '60'], preexec_fn=end_with_parent)\n"
        "child.send_signal(19)\n"
        f"open({str(note)!r}, 'w').write(str(child.pid) + ' ')\n"
        "time.sleep(60)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", text])
    while not (note.exists() and note.read_text().endswith(" ")):
        time.sleep(0.02)
    parent.kill()
    parent.wait()
    child = int(note.read_text())
    deadline = time.monotonic() + 600  # it never ends otherwise
    while _runs(child):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _runs(process: int) -> bool:
    """Whether there is such a process, and it is no zombie."""
    try:
        return Path(f"/proc/{process}/stat").read_text().split(") ")[1][0] != "Z"
    except OSError:
        return False
