"""The program that sums a vector over groups of ranks, for gradients of replicated parameters."""

from __future__ import annotations

from functools import lru_cache

from primepar.operators.builder import Groups, ProgramBuilder, even
from primepar.schedule.program import Program

VECTOR = "gradient[0]"
"""The block of every rank."""


@lru_cache(maxsize=1024)
def lower_sum(groups: Groups, size: int) -> Program:
    """Return the program that sums `size` elements over each group; every rank is in one."""
    ranks = sum(map(len, groups))
    builder = ProgramBuilder(ranks)
    view = builder.new("gradient", even((size,), (1,)), (((0,),),) * ranks, ("C",))
    builder.begin_with(view)
    builder.all_reduce(view, groups)
    builder.end_with(view)
    return builder.program()
