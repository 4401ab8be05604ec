"""A program in Z3, to be read: the textbook encoding of deadlock-freedom and of coverage.

`primepar verify TARGET --solver z3` asks these questions in place of the linear search. What Z3
answers is a witness like any other, and the judge decides (`primepar.certify.judge`).

Deadlock-freedom. Each instruction that may wait for another rank has a number, the time at which it
returns. It returns after everything that it waits for. In the wait graph of two ranks that both
send first and receive then

    rank 0: send a -> 1    t0        rank 1: send b -> 0    t2
            recv b <- 1    t1                recv a <- 0    t3

    t0 < t1    rank 0 runs its list in order          t2 < t3    and so does rank 1
    t2 < t0    a is received after t2, the send of b  t0 < t2    b is received after t0

no numbers satisfy all four. Each edge has a name, and the names that Z3 needs for its *no*
(the unsatisfiable core) are a cycle: t2 < t0 and t0 < t2. Without a cycle there are such
numbers, and they are levels along which the judge follows the program.

Coverage. A sub-operator is a point of the grid, one number for each dim. It is wrong if no product
computes it, or if two do. Z3 looks for such a point.
"""

from __future__ import annotations

from collections.abc import Iterator
from time import perf_counter
from typing import Any

import z3

from primepar.schedule.deadline import UnansweredError, in_time, seconds_left
from primepar.schedule.program import Compute, Program
from primepar.schedule.waits import NEVER, WaitGraph
from primepar.verify.z3_answer import check_by

Edge = tuple[int, int]
"""(a node, the node that follows it)."""


def levels_in_z3(graph: WaitGraph) -> list[int]:
    """Levels of all nodes of a wait graph, `NEVER` for those that are never reached.

    Raises `UnansweredError` if Z3 gives no answer in time.
    """
    # What nothing matches follows itself: no time is after itself.
    hanging = {node for node, before in enumerate(graph.before) if node in before}
    while True:
        # One cycle is found at a time. What follows it is out of the next question, and the loop
        # ends when the rest has an order.
        hanging = _with_followers(graph, hanging)
        answer = _ordered(graph, hanging)
        if isinstance(answer, list):
            return answer
        hanging |= answer


def _ordered(graph: WaitGraph, hanging: set[int]) -> list[int] | set[int]:
    """Levels of all nodes but those that hang; or a cycle of nodes that hang as well."""
    solver = z3.Solver()
    times = [z3.Int(f"t{node}") for node in range(len(graph.before))]
    edges: dict[str, Edge] = {}
    for node, before in enumerate(in_time(graph.before)):
        solver.add(times[node] >= 0)
        for earlier in dict.fromkeys(before):
            if node not in hanging:
                name = f"t{earlier} before t{node}"
                edges[name] = (earlier, node)
                solver.assert_and_track(times[earlier] < times[node], name)
    if _check(solver) == z3.unsat:
        # Added up, with the factors that Z3 has, the edges of a core cancel every time: so each of
        # them is on a cycle, and all these nodes hang. The judge checks that.
        core = [edges[str(name)] for name in solver.unsat_core()]
        return {node for edge in core for node in edge}
    model = solver.model()
    return [
        NEVER if node in hanging else model.eval(time, model_completion=True).as_long()
        for node, time in enumerate(times)
    ]


def _with_followers(graph: WaitGraph, hanging: set[int]) -> set[int]:
    """What hangs, with all that follows it: none of this is ever reached either."""
    after: dict[int, list[int]] = {}
    for node, before in enumerate(graph.before):
        for earlier in before:
            after.setdefault(earlier, []).append(node)
    waiting, reached = list(hanging), set(hanging)
    for node in waiting:
        for later in after.get(node, ()):
            if later not in reached:
                reached.add(later)
                waiting.append(later)
    return reached


def check_coverage_in_z3(program: Program, is_covered: bool) -> None:
    """Ask Z3 for a sub-operator that is not computed exactly once, and compare the answers.

    `is_covered` is the judge's answer. Raises `UnansweredError` if Z3 has another one, or none.
    """
    wrong = next(_wrong_sub_operators(program), None)
    if (wrong is None) != is_covered:
        wrong_text = f"{wrong[0]} {wrong[1]}" if wrong else "none"
        raise UnansweredError(
            f"Z3 and the judge differ on coverage: Z3 finds {wrong_text} to be wrong"
        )


def _wrong_sub_operators(program: Program) -> Iterator[tuple[str, dict[str, int]]]:
    """Yield, for each phase of the grid, a sub-operator that is computed never or several times."""
    for phase, grid in (program.grid or {}).items():
        point = {dim: z3.Int(dim) for dim in grid}
        solver = z3.Solver()
        solver.add([z3.And(point[dim] >= 0, point[dim] < slices) for dim, slices in grid.items()])
        computed = []
        for node in (node for nodes in program.programs for node in in_time(nodes)):
            if isinstance(node, Compute) and node.phase == phase and not node.again:
                cell = node.sub_operator or {}
                if cell.keys() != grid.keys() or any(cell[dim] >= grid[dim] for dim in grid):
                    yield phase, cell  # outside of the grid
                    return
                computed.append(z3.And([point[dim] == index for dim, index in cell.items()]))
        # At least one product computes the point, and at most one.
        once: Any = z3.And(z3.Or(computed), z3.AtMost(*computed, 1)) if computed else False
        solver.add(z3.Not(once))
        if _check(solver) == z3.sat:
            model = solver.model()
            values = {dim: model.eval(index, model_completion=True) for dim, index in point.items()}
            yield phase, {dim: value.as_long() for dim, value in values.items()}


def _check(solver: Any) -> Any:
    """Whether the assertions can be true. Raises `UnansweredError` without an answer in time."""
    answer = check_by(solver, perf_counter() + seconds_left())
    if answer == z3.unknown:
        raise UnansweredError(f"Z3 gave no answer in its time ({solver.reason_unknown()})")
    return answer
