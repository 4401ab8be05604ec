"""Processes that `--ranks` starts; here they are short programs of Python."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from primepar.distributed.training.launchers import RANK, RANKS, STORE
from primepar.distributed.training.ranks import run_ranks
from primepar.errors import LaunchError

BODY = f"import os, sys, time; rank = os.environ['{RANK}']; "


def started(body: str, monkeypatch: pytest.MonkeyPatch) -> list[subprocess.Popen[bytes]]:
    """The processes of three ranks that run a body, once they have ended."""
    children: list[subprocess.Popen[bytes]] = []

    class Noted(subprocess.Popen[bytes]):
        def __init__(self, *given: Any, **named: Any) -> None:
            super().__init__(*given, **named)
            children.append(self)

    monkeypatch.setattr(subprocess, "Popen", Noted)
    assert run_ranks(3, [], ["-c", BODY + body]) == 3
    return children


def test_each_process_has_its_rank_and_the_file_to_meet_in(tmp_path: Path) -> None:
    write = (
        "world = [os.environ[name] for name in sys.argv[2:]]; "
        "open(sys.argv[1] + rank, 'w').write(' '.join(world))"
    )
    assert run_ranks(3, [f"{tmp_path}/", RANKS, STORE], ["-c", BODY + write]) == 0
    worlds = {(tmp_path / rank).read_text() for rank in "012"}
    assert len(worlds) == 1
    size, store = worlds.pop().split()
    assert (size, Path(store).parent.exists()) == ("3", False)


def test_the_first_failure_ends_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    children = started("rank == '1' and sys.exit(3); time.sleep(1000)", monkeypatch)
    assert [child.returncode for child in children] == [-signal.SIGKILL, 3, -signal.SIGKILL]


def test_a_killed_process_is_named() -> None:
    with pytest.raises(LaunchError) as caught:
        run_ranks(2, [], ["-c", BODY + "rank == '1' and os.kill(os.getpid(), 9); time.sleep(1000)"])
    assert str(caught.value) == (
        "rank 1: expected a process that ends by itself, got SIGKILL: look for what ended it, as a "
        "lack of memory does"
    )


@pytest.mark.parametrize(
    ("numbers", "code"),
    [([signal.SIGINT, signal.SIGTERM], 130), ([signal.SIGUSR1, signal.SIGUSR1, signal.SIGTERM], 0)],
)
def test_after_sigint_the_next_request_ends_the_processes_and_after_sigusr1_they_end_themselves(
    numbers: list[signal.Signals], code: int, tmp_path: Path
) -> None:
    """The process notes each request; it ends by itself after three."""
    body = (
        "import signal; from primepar.distributed.training.stopping import stop_reason\n"
        "asked = []\n"
        "signal.signal(signal.SIGUSR1, lambda number, _: asked.append(stop_reason(number)));\n"
        "for n in range(10**6):\n"
        f"    open({str(tmp_path)!r} + f'/{{len(asked)}}', 'w').write(' '.join(asked))\n"
        "    time.sleep(0.05)\n"
        "    len(asked) == 3 and sys.exit()"
    )

    def stop() -> None:
        for count, number in enumerate(numbers):
            while not (tmp_path / str(count)).exists():
                time.sleep(0.02)
            os.kill(os.getpid(), number)

    asking = threading.Thread(target=stop)
    asking.start()
    assert run_ranks(1, [], ["-c", BODY + body]) == code
    asking.join()
    assert (tmp_path / "1").read_text() == numbers[0].name


@pytest.mark.skipif(sys.platform != "linux", reason="a call of Linux")
def test_a_process_ends_with_the_one_that_started_it(tmp_path: Path) -> None:
    """The parent starts a child and is killed: so is the child, even if it was stopped."""
    note = tmp_path / "pid"
    text = (
        "import subprocess, sys, time\n"
        "from primepar.distributed.training.ranks import end_with_parent\n"
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
    child = Path(f"/proc/{int(note.read_text())}/stat")
    deadline = time.monotonic() + 600  # it never ends otherwise
    while child.exists() and child.read_text().split(") ")[1][0] != "Z":
        assert time.monotonic() < deadline
        time.sleep(0.02)
