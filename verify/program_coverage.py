"""Coverage: every sub-operator of each phase's grid is computed exactly once."""

from __future__ import annotations

from math import prod
from typing import Any

import z3

from primepar.schedule.operators import Dim, Phase
from primepar.schedule.program import Compute, Program
from primepar.verify.program_solver import Solver

Places = list[tuple[int, int]]
"""(rank, instruction index) of every product of one sub-operator."""


def sub_operator_text(sub_operator: dict[Dim, int]) -> str:
    """How messages write a sub-operator, `(M=0, N=1, K=0)`."""
    return f"({', '.join(f'{dim}={index}' for dim, index in sub_operator.items())})"


def cover(program: Program, solver: Solver) -> str | None:
    """The smallest sub-operator that is computed never or twice, None if there is none.

    Raises `UndecidedError` if Z3 cannot tell.
    """
    for phase, grid in (program.grid or {}).items():
        places, stranger = _facts(program, phase, grid)
        wrong = stranger or _wrong(phase, grid, places, solver)
        if wrong is not None:
            return wrong
    return None


def _facts(
    program: Program, phase: Phase, grid: dict[Dim, int]
) -> tuple[dict[int, Places], str | None]:
    """Where each sub-operator, numbered through, is computed; or the first outside the grid."""
    places: dict[int, Places] = {}
    for rank, instructions in enumerate(program.programs):
        for index, node in enumerate(instructions):
            if not isinstance(node, Compute) or node.phase != phase or node.sub_operator is None:
                continue
            inside = node.sub_operator.keys() == grid.keys()
            if not inside or any(node.sub_operator[dim] >= grid[dim] for dim in grid):
                limits = ", ".join(f"{dim} below {slices}" for dim, slices in grid.items())
                return places, (
                    f"rank {rank}, instruction {index}: expected a {phase} sub-operator with "
                    f"{limits}, got {sub_operator_text(node.sub_operator)}: "
                    "give it one slice index for each dim of the grid"
                )
            places.setdefault(_number(node.sub_operator, grid), []).append((rank, index))
    return places, None


def _number(sub_operator: dict[Dim, int], grid: dict[Dim, int]) -> int:
    number = 0
    for dim, slices in grid.items():
        number = number * slices + sub_operator[dim]
    return number


def _wrong(
    phase: Phase, grid: dict[Dim, int], places: dict[int, Places], solver: Solver
) -> str | None:
    number = z3.Int("sub_operator")
    cells = prod(grid.values())
    inside = z3.And(number >= 0, number < cells)
    never = z3.And([number != computed for computed in places])
    twice = z3.Or([number == computed for computed, at in places.items() if len(at) > 1])
    smallest = _smallest([inside, z3.Or(never, twice)], number, cells, solver)
    if smallest is None:
        return None
    rest, index = smallest, {}
    for dim in reversed(grid):
        rest, index[dim] = divmod(rest, grid[dim])
    what = sub_operator_text({dim: index[dim] for dim in grid})
    at = places.get(smallest, [])
    if not at:
        return f"{phase} sub-operator {what}: expected one rank to compute it, got none: add it"
    where = " and ".join(f"rank {rank}, instruction {place}" for rank, place in at)
    return (
        f"{phase} sub-operator {what}: expected one rank to compute it once, got {where}: "
        "keep one of them"
    )


def _smallest(claims: list[Any], number: Any, limit: int, solver: Solver) -> int | None:
    """Smallest value below `limit` that makes all claims true, by halving."""
    low, high = 0, limit
    if solver.model(claims) is None:
        return None
    while high - low > 1:
        middle = (low + high) // 2
        if solver.model([*claims, number >= low, number < middle]) is None:
            low = middle
        else:
            high = middle
    return low
