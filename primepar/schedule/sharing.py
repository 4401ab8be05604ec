"""What is known of one program, kept for those that are made of it.

A pass leaves most instructions and tables of a program as they are. While `sharing`, what is known
of them is therefore not found again: the blocks that an instruction uses, and the sizes of blocks.
Outside of it nothing is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from operator import is_
from typing import Any, TypeVar

from primepar.schedule.program import Program

Result = TypeVar("Result")
_kept: list[dict[object, Any]] = []
"""The same dictionary for every `sharing` that is open; empty while none is."""


@contextmanager
def sharing() -> Iterator[None]:
    """Keep what is known until the outermost one ends."""
    _kept.append(_kept[-1] if _kept else {})
    try:
        yield
    finally:
        _kept.pop()


def kept(key: object, make: Callable[[], Result]) -> Result:
    """Return what is kept under a key; outside of `sharing` a new one."""
    result: Result = _kept[-1].setdefault(key, make()) if _kept else make()
    return result


def shared(
    *fields: str,
) -> Callable[[Callable[[Program], Result]], Callable[[Program], Result]]:
    """Keep the last result of a function for programs with the same fields, by identity."""

    def keeping(make: Callable[[Program], Result]) -> Callable[[Program], Result]:
        @wraps(make)
        def known(program: Program) -> Result:
            values = [getattr(program, field) for field in fields]
            last = kept(make, list[Any])
            # By identity: equal tables of another program are rare, and comparing them would cost
            # as much.
            if not last or not all(map(is_, last[0], values)):
                last[:] = values, make(program)
            result: Result = last[1]
            return result

        return known

    return keeping
