"""A limit on the time of a proof, which every search in it keeps to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from math import inf
from time import perf_counter
from typing import TypeVar

T = TypeVar("T")


class UnansweredError(Exception):
    """A question is left without an answer; the message is the reason."""


@dataclass(frozen=True)
class Deadline:
    """`seconds` from when it was set, which is until `end` on `perf_counter`'s clock."""

    seconds: float = inf
    end: float = inf


_FOREVER = Deadline()
_CURRENT: ContextVar[Deadline] = ContextVar("deadline", default=_FOREVER)


@contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """Let what runs inside raise `UnansweredError` once it has taken so many seconds."""
    token = _CURRENT.set(Deadline(seconds, perf_counter() + seconds))
    try:
        yield
    finally:
        _CURRENT.reset(token)


def seconds_left() -> float:
    """Seconds until the deadline, more than 0. Raises `UnansweredError` behind it."""
    current = _CURRENT.get()
    left = current.end - perf_counter()
    if left <= 0:
        raise UnansweredError(f"no answer within {current.seconds:g} s: give it a longer --timeout")
    return left


def in_time(items: Iterable[T]) -> Iterator[T]:
    """The items, one by one; raises `UnansweredError` once the deadline is over."""
    end = _CURRENT.get().end
    for item in items:
        if perf_counter() > end:
            seconds_left()
        yield item
