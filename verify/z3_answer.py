"""An answer of Z3 in the time that is left.

For a limit in seconds Z3 starts a thread that keeps a clock, and waits for it to end: on a machine
that does other work too that takes several times as long as most answers. So it is asked under a
limit on its work first, which needs no thread, and by the clock where that was too little.
"""

from __future__ import annotations

from math import ceil
from time import perf_counter
from typing import Any, Final

import z3

LONGEST: Final = 1_000_000
"""Seconds; Z3 counts milliseconds in 32 bits."""
NO_CLOCK: Final = 2**32 - 1
"""Milliseconds for which Z3 starts no thread."""
WORK: Final = 300_000
"""In Z3's own units; about a second, and three times as much as any question about our methods."""
SHORT: Final = 5.0
"""Seconds; where no more are left, the clock is kept from the beginning."""


def check_by(solver: Any, deadline: float, *assumptions: Any) -> Any:
    """Whether all that a solver was told can be true: `sat`, `unsat`, or `unknown` if it is late.

    `deadline` is a time of `perf_counter`.
    """
    if deadline - perf_counter() > SHORT:
        solver.set(timeout=NO_CLOCK, rlimit=WORK)
        found = solver.check(*assumptions)
        if found != z3.unknown:
            return found
    left = deadline - perf_counter()
    if left <= 0:
        return z3.unknown
    solver.set(timeout=ceil(1000 * min(left, LONGEST)), rlimit=0)
    return solver.check(*assumptions)
