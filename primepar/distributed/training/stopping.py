"""Stop requests: a signal or a time limit; all ranks stop after the same step."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

from primepar.distributed.training.launchers import STORE
from primepar.distributed.training.settings import Settings, shown
from primepar.errors import ConfigError

ASKING = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
TIME_LIMIT = signal.SIGALRM
"""Stands for the time limit among the signals; nobody sends it."""
JOB_END = "SLURM_JOB_END_TIME"
"""Variable in which SLURM gives the end of a job, in seconds since 1970."""


class Stopping:
    """Notes a SIGINT, SIGTERM or SIGUSR1 in `signal`, and when the time comes to save.

    After a SIGINT or SIGTERM the next one of either has its usual effect. SIGUSR1 is a request and
    no more, however often it comes: job schedulers send it before a time limit, and `--ranks` does.
    `until` is the time to stop at, in seconds since 1970.
    """

    def __init__(self, until: float | None = None) -> None:
        self._signal, self._until = 0, until
        self._before: dict[int, Callable[[int, FrameType | None], Any] | int | None] = {}

    @property
    def signal(self) -> int:
        """The request, 0 without one; `TIME_LIMIT` if the time has come."""
        late = self._until is not None and time.time() >= self._until
        return self._signal or (int(TIME_LIMIT) if late else 0)

    def __enter__(self) -> Stopping:
        self._before = {number: signal.signal(number, self._note) for number in ASKING}
        return self

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._signal = number
        if number != signal.SIGUSR1:
            self._restore(signal.SIGINT, signal.SIGTERM)

    def _restore(self, *numbers: int) -> None:
        for number in numbers:
            signal.signal(number, self._before[number])

    def __exit__(self, *error: object) -> None:
        self._restore(*ASKING)


def stop_time(settings: Settings, environment: Mapping[str, str]) -> float | None:
    """Return when a run is to save and end, in seconds since 1970; None for never.

    Raises `ConfigError` without an end to save before.
    """
    before, limit = settings.save_before, settings.time_limit
    if before is None:
        return None
    if limit is not None:
        return time.time() + limit - before
    if JOB_END not in environment:
        raise ConfigError(
            f"{shown('save_before')}: expected the end of a SLURM job, or a limit in the settings, "
            f"got neither: add --set {shown('time_limit')}=SECONDS"
        )
    return float(environment[JOB_END]) - before


def stop_reason(number: int) -> str | None:
    """Return what stopped a run, as text; None for 0.

    `--ranks` passes requests on as SIGUSR1, and names a file next to the store like the first.
    """
    if number == TIME_LIMIT:
        return "the time limit"
    store = os.environ.get(STORE)
    if number == signal.SIGUSR1 and store is not None:
        return next((path.name for path in Path(store).parent.glob("SIG*")), "SIGUSR1")
    return signal.Signals(number).name if number else None


def exit_code(number: int) -> int:
    """Return the exit code of a stopped run: 0 for SIGUSR1 and a time limit, else 128 + signal."""
    return 0 if number in (0, signal.SIGUSR1, TIME_LIMIT) else 128 + number
