"""What stops a run: signals, which one counts, and the time limit of a job."""

from __future__ import annotations

import os
import signal
import time

import pytest
from command import run

from primepar.distributed.training.settings import Settings
from primepar.distributed.training.stopping import (
    JOB_END,
    TIME_LIMIT,
    Stopping,
    exit_code,
    stop_reason,
    stop_time,
)


def send(*numbers: signal.Signals) -> None:
    for number in numbers:
        os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_is_noted_and_handlers_come_back(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with Stopping() as stopping:
        assert stopping.signal == 0
        send(number)
        assert stopping.signal == number
    assert signal.getsignal(number) == before


def test_the_second_ctrl_c_has_its_usual_effect() -> None:
    """Python's own, which is not there where a shell started the tests in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt), Stopping():
            send(signal.SIGINT, signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_request_by_sigusr1_never_ends_the_process() -> None:
    """A scheduler may send SIGTERM to all processes, and `--ranks` then SIGUSR1 to some again."""
    with Stopping() as stopping:
        send(signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR1)
        assert stopping.signal == signal.SIGUSR1


@pytest.mark.parametrize(
    ("number", "code", "text"),
    [(0, 0, None), (signal.SIGUSR1, 0, "SIGUSR1"), (TIME_LIMIT, 0, "the time limit"),
     (signal.SIGTERM, 143, "SIGTERM"), (signal.SIGINT, 130, "SIGINT")],
)  # fmt: skip
def test_the_exit_code_and_the_reason(number: int, code: int, text: str | None) -> None:
    assert (exit_code(number), stop_reason(number)) == (code, text)


def test_the_time_comes_before_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: 1000.0)
    settings = Settings(save_before=60, time_limit=3600)
    assert stop_time(settings, {}) == 4540
    assert Stopping(4540).signal == 0
    assert Stopping(1000).signal == TIME_LIMIT
    assert stop_time(Settings(), {JOB_END: "5000"}) is None
    assert stop_time(Settings(save_before=60), {JOB_END: "5000"}) == 4940
    assert stop_time(settings, {JOB_END: "5000"}) == 4540


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("--save-before", "60"),
            "--save-before: expected the end of a SLURM job, or a limit in the settings, got "
            "neither: add --set faults.time_limit=SECONDS",
        ),
        (
            ("--set", "faults.time_limit=60"),
            "faults.time_limit: expected the seconds to save in too, got none: add --save-before "
            "SECONDS",
        ),
        (("--save-before", "inf"), "--save-before: expected a positive number, got inf"),
    ],
)
def test_a_limit_needs_both(words: tuple[str, ...], message: str) -> None:
    assert run("train", *words) == (2, "", f"primepar: error: {message}\n")
