"""Asks Z3 with a time limit.

For a limit in seconds Z3 starts a timer thread and joins it. On a busy machine this takes several
times as long as most answers. So Z3 is asked with a limit on its work first, which needs no thread,
and with a time limit only if that was not enough.
"""

from __future__ import annotations

from math import ceil
from time import perf_counter
from typing import Any, Final

import z3

LONGEST: Final = 1_000_000
"""Seconds; Z3 counts milliseconds in 32 bits."""
NO_CLOCK: Final = 2**32 - 1
"""Milliseconds; with this time limit Z3 starts no thread."""
WORK: Final = 300_000
"""In Z3's units; about a second, and three times as much as any question about our methods."""
SHORT: Final = 5.0
"""Seconds; if no more are left, the first question already has a time limit."""


def check_by(solver: Any, deadline: float, *assumptions: Any) -> Any:
    """Whether all assertions of a solver can be true: `sat`, `unsat`, or `unknown` if it is late.

    `deadline` is a time of `perf_counter`.
    """
    if deadline - perf_counter() > SHORT:
        solver.set(timeout=NO_CLOCK, rlimit=WORK)
        answer = solver.check(*assumptions)
        if answer != z3.unknown:
            return answer
    left = deadline - perf_counter()
    if left <= 0:
        return z3.unknown
    solver.set(timeout=ceil(1000 * min(left, LONGEST)), rlimit=0)
    return solver.check(*assumptions)
