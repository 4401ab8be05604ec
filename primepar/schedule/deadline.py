"""A time limit for a proof, which every search in it observes."""

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
    """A limit of `seconds`, which ends at time `end` of `perf_counter`."""

    seconds: float = inf
    end: float = inf


_NO_LIMIT = Deadline()
_CURRENT: ContextVar[Deadline] = ContextVar("deadline", default=_NO_LIMIT)


@contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """Limit the time of the `with` block: searches in it then raise `UnansweredError`."""
    token = _CURRENT.set(Deadline(seconds, perf_counter() + seconds))
    try:
        yield
    finally:
        _CURRENT.reset(token)


def seconds_left() -> float:
    """Seconds until the deadline, more than 0. Raises `UnansweredError` after it."""
    current = _CURRENT.get()
    left = current.end - perf_counter()
    if left <= 0:
        raise UnansweredError(f"no answer within {current.seconds:g} s: give it a longer --timeout")
    return left


def in_time(items: Iterable[T]) -> Iterator[T]:
    """Yield the items; raises `UnansweredError` after the deadline."""
    end = _CURRENT.get().end
    for item in items:
        if perf_counter() > end:
            seconds_left()
        yield item
