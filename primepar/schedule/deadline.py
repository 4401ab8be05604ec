"""A time limit for a proof, which every search in it observes, and Ctrl-C.

Searches are bounded by counts of their work, so that they end in the same way on every machine;
time is the last resort. Python raises `KeyboardInterrupt` wherever it is when the user presses
Ctrl-C, and ignores it in a `__del__`, of which Z3's terms have thousands. So the signal is noted as
well, and whoever looks at the clock raises it again.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from math import inf
from time import perf_counter
from types import FrameType
from typing import TypeVar

T = TypeVar("T")
TIMEOUT = 600.0
"""Seconds of a proof where no other limit is given: the last resort."""


class UnansweredError(Exception):
    """A question is left without an answer; the message is the reason."""


@dataclass(frozen=True)
class Deadline:
    """A limit of `seconds`, which ends at time `end` of `perf_counter`."""

    seconds: float = inf
    end: float = inf


_NO_LIMIT = Deadline()
_CURRENT: ContextVar[Deadline] = ContextVar("deadline", default=_NO_LIMIT)
_pressed = threading.Event()
"""Set by Ctrl-C, until it is raised or the `with` block that it ended is left."""


def _noted(number: int, frame: FrameType | None) -> None:
    _pressed.set()
    signal.default_int_handler(number, frame)


@contextmanager
def _ctrl_c_noted() -> Iterator[None]:
    """Note Ctrl-C, unless somebody else handles it already."""
    is_default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if not is_default or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, _noted)
    try:
        yield
        raise_ctrl_c()
    finally:
        _pressed.clear()
        signal.signal(signal.SIGINT, signal.default_int_handler)


def raise_ctrl_c() -> None:
    """Raise `KeyboardInterrupt` if the user has pressed Ctrl-C."""
    if _pressed.is_set():
        raise KeyboardInterrupt


@contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """Limit the time of the `with` block: searches in it then raise `UnansweredError`."""
    token = _CURRENT.set(Deadline(seconds, perf_counter() + seconds))
    try:
        with _ctrl_c_noted():
            yield
    finally:
        _CURRENT.reset(token)


@contextmanager
def share_of_time(share: float) -> Iterator[None]:
    """Limit the time of the `with` block to a share of what is left, as `deadline` does."""
    current, now = _CURRENT.get(), perf_counter()
    token = _CURRENT.set(Deadline(current.seconds, now + share * (current.end - now)))
    try:
        yield
    finally:
        _CURRENT.reset(token)


def seconds_left() -> float:
    """Seconds until the deadline, more than 0. Raises `UnansweredError` after it."""
    raise_ctrl_c()
    current = _CURRENT.get()
    left = current.end - perf_counter()
    if left <= 0:
        raise UnansweredError(f"no answer within {current.seconds:g} s: give it a longer --timeout")
    return left


def in_time(items: Iterable[T]) -> Iterator[T]:
    """Yield the items; raises `UnansweredError` after the deadline."""
    end = _CURRENT.get().end
    for item in items:
        # Two looks for each item, and a call only if one of them is true.
        if perf_counter() > end or _pressed.is_set():
            seconds_left()
        yield item
