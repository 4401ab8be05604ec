"""Stop requests: a signal is noted at once, and all ranks stop after the same step."""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

_ASKING = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)


class Stopping:
    """Notes the first SIGINT, SIGTERM or SIGUSR1 in `signal`; a second one has its usual effect.

    Job schedulers send SIGUSR1 before a time limit, and `--ranks` sends it too. `killed` states
    that the launcher sends SIGKILL soon after SIGTERM, too soon for another step. Then SIGTERM
    ends the process at once.
    """

    def __init__(self, *, killed: bool) -> None:
        self.signal = 0
        self._killed = killed
        self._before: dict[int, Callable[[int, FrameType | None], Any] | int | None] = {}

    def __enter__(self) -> Stopping:
        self._before = {number: signal.signal(number, self._note) for number in _ASKING}
        return self

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.signal = number
        self._restore()
        if self._killed and number == signal.SIGTERM:
            raise SystemExit(exit_code(number))

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self._restore()


def exit_code(number: int) -> int:
    """Return the exit code of a stopped run: 0 for SIGUSR1, else 128 + the signal."""
    return 0 if number in (0, signal.SIGUSR1) else 128 + number
