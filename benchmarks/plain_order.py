"""Deadlock-freedom of a program by the textbook encoding in Z3.

Every instruction has one integer, its start time. It starts after the previous instruction, and
after everything that the previous one waits for. The solver is Z3's default. `python -m benchmarks
verify` measures this next to our encoding, and tests compare the verdicts of both.
"""

from __future__ import annotations

from itertools import pairwise
from time import perf_counter
from typing import Any

import z3

from primepar.schedule.program import Program
from primepar.verify.program.matching import Matching, MessageEnd, Operation, needs


def ends(program: Program, timeout: float, buffered: bool = False) -> bool | None:
    """Whether all instructions can be ordered; None without an answer in `timeout` seconds.

    The time includes building the formula.
    """
    deadline = perf_counter() + timeout
    flow = Matching.of(program)
    solver, starts = z3.Solver(), _starts(flow)
    if flow.faults:
        return False
    for rank, operations in enumerate(flow.operations):
        if perf_counter() > deadline:
            return None
        times = [starts[operation] for operation in operations] + [z3.Int(f"end{rank}")]
        solver.add([earlier < later for earlier, later in pairwise(times)])
        for operation, later in zip(operations, times[1:], strict=True):
            if operation.blocks:
                wanted = [item for item in needs(flow, operation, buffered) if item is not None]
                solver.add([starts[item] < later for item in wanted])
    solver.set("timeout", max(1, int(1000 * (deadline - perf_counter()))))
    answer = solver.check()
    return None if answer == z3.unknown else bool(answer == z3.sat)


def _starts(flow: Matching) -> dict[Operation | MessageEnd, Any]:
    """Start times of the operations, and of the messages that they start."""
    starts: dict[Operation | MessageEnd, Any] = {}
    for rank, operations in enumerate(flow.operations):
        for place, operation in enumerate(operations):
            starts[operation] = z3.Int(f"at{rank}_{place}")
            starts.update(dict.fromkeys(operation.starts, starts[operation]))
    return starts
