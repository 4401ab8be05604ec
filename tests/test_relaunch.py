"""Processes that `--ranks` starts without MPI; here they are shells."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path
from unittest.mock import patch

import pytest

from primepar.distributed.training import relaunch
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
    begin = time.monotonic()
    assert run_all(shells("exec sleep 100", "exit 3", "trap '' TERM; sleep 100 & wait")) == 3
    assert time.monotonic() - begin < 50


def test_a_killed_process_is_named() -> None:
    with pytest.raises(LaunchError) as caught:
        run_all(shells("exec sleep 100", "kill -9 $$"))
    assert str(caught.value) == (
        "rank 1: expected a process that ends by itself, got SIGKILL: look for what ended it, as a "
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
