"""Asks Z3 with a limit on its work, so that a question has the same answer on every machine.

Z3 counts its work in units of its own; the count of a question is the same at every run. Time is
the last resort, and a thread for it costs several times as much as most answers do. So a question
has `SHORT_WORK` first, without a clock, and `MOST_WORK` within the time that is left only if that
was not enough.

Ctrl-C: while Z3 works it takes the signal for itself and answers `unknown`, with the same reason as
for its limits. So a question was interrupted if it ended before both of its limits. Z3's own clock
is not used: Z3 takes the signal from when it starts its timer thread on, forgets what came until
the thread runs, and then ignores every further Ctrl-C of that question.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import inf
from threading import TIMEOUT_MAX, Event, Thread
from time import perf_counter
from typing import Any, Final

import z3

from primepar.schedule.deadline import raise_ctrl_c

SHORT_WORK: Final = 300_000
"""In Z3's units: at most about a second, and more than most questions need."""
MOST_WORK: Final = 30_000_000
"""In Z3's units: 20 times as much as the hardest answered question of `make attack`."""
SHORT: Final = 5.0
"""Seconds; if no more are left, the first question already has a time limit."""


def check_by(solver: Any, deadline: float, *assumptions: Any) -> Any:
    """Whether all assertions of a solver can be true: `sat`, `unsat`, or `unknown`.

    It is unknown if it takes more than `MOST_WORK`, or if it is not decided by `deadline`, a time
    of `perf_counter`.
    """
    left = deadline - perf_counter()
    # Most questions end here, without a thread that stops the clock.
    if left > SHORT:
        answer = _asked(solver, inf, SHORT_WORK, assumptions)
        if answer != z3.unknown:
            return answer
        left = deadline - perf_counter()
    if left <= 0:
        return z3.unknown
    return _asked(solver, left, MOST_WORK, assumptions)


def _asked(solver: Any, seconds: float, work: int, assumptions: Sequence[Any]) -> Any:
    """The answer within both limits. Raises `KeyboardInterrupt` if the user ended it."""
    solver.set(rlimit=work)
    start, before = perf_counter(), _work(solver)
    with _interrupted_after(solver, seconds):
        raise_ctrl_c()  # last of all: the calls before it end terms, and so may have ignored it
        answer = solver.check(*assumptions)
    if answer == z3.unknown and solver.reason_unknown() == "canceled":
        # Z3 gives one reason for its limit on work, for our clock and for Ctrl-C. What ended before
        # both limits was the user.
        in_time = perf_counter() - start < seconds
        if in_time and _work(solver) - before < work:
            raise KeyboardInterrupt
    return answer


@contextmanager
def _interrupted_after(solver: Any, seconds: float) -> Iterator[None]:
    """End the question in the `with` block after some seconds, unless in a browser: no threads."""
    if seconds == inf or sys.platform == "emscripten":
        yield
        return
    answered = Event()

    def interrupt() -> None:
        pause = min(seconds, TIMEOUT_MAX)
        while not answered.wait(pause):  # again: one that comes before the question has no effect
            solver.interrupt()
            pause = 0.01

    clock = Thread(target=interrupt, daemon=True)
    clock.start()
    try:
        yield
    finally:
        answered.set()
        clock.join()  # no term may end in another thread


def _work(solver: Any) -> int:
    """The work of all questions since the process started, in Z3's units."""
    return next((int(count) for name, count in solver.statistics() if name == "rlimit count"), 0)
