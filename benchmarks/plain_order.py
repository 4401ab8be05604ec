"""Does a program come to its end? Asked of Z3 as a textbook writes it.

One integer for every instruction, which is when it starts; each starts after the one before it, and
after all that the one before it waits for; Z3's default solver. `python -m benchmarks verify`
measures it next to our encoding, and tests compare the verdicts of both.
"""

from __future__ import annotations

from itertools import pairwise
from time import perf_counter
from typing import Any

import z3

from primepar.schedule.program import Program
from primepar.verify.program.matching import Matching, MessageEnd, Operation, needs


def ends(program: Program, timeout: float, buffered: bool = False) -> bool | None:
    """Whether there is an order of all instructions; None where Z3 has none in `timeout` seconds.

    The time includes that of writing the question down.
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
    """When each operation starts, and with it the messages that it starts."""
    starts: dict[Operation | MessageEnd, Any] = {}
    for rank, operations in enumerate(flow.operations):
        for place, operation in enumerate(operations):
            starts[operation] = z3.Int(f"at{rank}_{place}")
            starts.update(dict.fromkeys(operation.starts, starts[operation]))
    return starts
