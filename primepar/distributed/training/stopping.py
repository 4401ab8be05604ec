"""A request to stop: noted when it comes, obeyed by every rank after the same step."""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

_ASKING = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)


class Stopping:
    """Notes the first SIGINT, SIGTERM or SIGUSR1 in `signal`; the second one acts as ever.

    SIGUSR1 is what job schedulers send ahead of a time limit, and what `--ranks` sends. Where
    `killed` says so, a SIGTERM is followed by a SIGKILL too soon for another step: it ends the
    process at once, and nothing new is begun.
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
    """Exit code of a run that was asked to stop: 0 for SIGUSR1, else 128 + the signal."""
    return 0 if number in (0, signal.SIGUSR1) else 128 + number
