"""Asks Z3 with a limit on its work, so that a question has the same answer on every machine.

Z3 counts its work in units of its own; the count of a question is the same at every run. Time is
the last resort. For a limit in seconds Z3 starts a timer thread and joins it, which on a busy
machine takes several times as long as most answers. So a question has `SHORT_WORK` first, without a
clock, and `MOST_WORK` within the time that is left only if that was not enough.

Ctrl-C: while Z3 works it takes the signal for itself and answers `unknown`, with the same reason as
for its limits. So a question was interrupted if it ended before both of its limits.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from time import perf_counter
from typing import Any, Final

import z3

from primepar.schedule.deadline import raise_ctrl_c

LONGEST: Final = 1_000_000
"""Seconds; Z3 counts milliseconds in 32 bits."""
NO_CLOCK: Final = 2**32 - 1
"""Milliseconds; with this time limit Z3 starts no thread."""
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
    if left > SHORT:
        answer = _asked(solver, NO_CLOCK, SHORT_WORK, assumptions)
        if answer != z3.unknown:
            return answer
        left = deadline - perf_counter()
    if left <= 0:
        return z3.unknown
    return _asked(solver, ceil(1000 * min(left, LONGEST)), MOST_WORK, assumptions)


def _asked(solver: Any, milliseconds: int, work: int, assumptions: Sequence[Any]) -> Any:
    """The answer within both limits. Raises `KeyboardInterrupt` if the user ended it."""
    solver.set(timeout=milliseconds, rlimit=work)
    start, before = perf_counter(), _work(solver)
    raise_ctrl_c()  # last of all: the calls before it end terms, and so may have ignored it
    answer = solver.check(*assumptions)
    if answer == z3.unknown and solver.reason_unknown() == "canceled":
        in_time = perf_counter() - start < milliseconds / 1000
        if in_time and _work(solver) - before < work:
            raise KeyboardInterrupt
    return answer


def _work(solver: Any) -> int:
    """The work of all questions since the process started, in Z3's units."""
    return next((int(count) for name, count in solver.statistics() if name == "rlimit count"), 0)
