"""Coverage: every sub-operator of each phase's grid is computed exactly once.

The grid is a tree: the slices of its first dim, and below each of them those of the second. Z3 is
asked row by row, from the last dim up, whether a slice is missing or wrong. Equal rows are one
question, so an evenly split mesh of any size asks one for each dim.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache

from primepar.schedule.operators import Dim, Phase
from primepar.schedule.program import Compute, Program
from primepar.verify.deadline import in_time
from primepar.verify.program.solver import Solver

Cell = tuple[int, ...]
"""One slice for each dim of a grid; the first of them name a row of the rest."""
Places = list[tuple[int, int]]
"""(rank, instruction index) of every product of one sub-operator."""
Row = frozenset[tuple[int, bool]]
"""The slices of a row that are computed, each with whether everything below it is right."""


def sub_operator_text(sub_operator: Mapping[Dim, int]) -> str:
    """How messages write a sub-operator, `(M=0, N=1, K=0)`."""
    return f"({', '.join(f'{dim}={index}' for dim, index in sub_operator.items())})"


def cover(program: Program, solver: Solver) -> str | None:
    """The smallest sub-operator that is computed never or twice, None if there is none.

    Raises `UnansweredError` if Z3 does not decide it in time.
    """

    @cache
    def smallest_wrong(row: Row, slices: int) -> int | None:
        return solver.smallest("slice", slices, _question(row))

    products = _products(program)
    for phase, grid in (program.grid or {}).items():
        counts: dict[Cell, int] = {}
        for rank, index, sub_operator in in_time(products.get(phase, ())):
            outside = sub_operator.keys() != grid.keys()
            if outside or any(sub_operator[dim] >= grid[dim] for dim in grid):
                return _outside_grid(phase, grid, rank, index, sub_operator)
            cell = tuple([sub_operator[dim] for dim in grid])
            counts[cell] = counts.get(cell, 0) + 1
        wrong = _smallest(counts, tuple(grid.values()), smallest_wrong)
        if wrong is not None:
            missed = dict(zip(grid, wrong, strict=True))
            places = [
                (rank, index) for rank, index, cell in products.get(phase, ()) if cell == missed
            ]
            return _sentence(phase, missed, places)
    return None


def _products(program: Program) -> dict[Phase, list[tuple[int, int, dict[Dim, int]]]]:
    """Rank, instruction index and sub-operator of every product of each phase."""
    products: dict[Phase, list[tuple[int, int, dict[Dim, int]]]] = {}
    for rank, instructions in enumerate(program.programs):
        for index, node in enumerate(in_time(instructions)):
            if isinstance(node, Compute) and node.phase and not node.again:
                of_phase = products.setdefault(node.phase, [])
                of_phase.append((rank, index, node.sub_operator or {}))
    return products


def _question(row: Row) -> str:
    """SMT-LIB text that is satisfied by a slice that is missing or wrong in a row."""
    present = " ".join(f"(= slice {slice_})" for slice_, _ in sorted(row))
    wrong = " ".join(f"(= slice {slice_})" for slice_, right in sorted(row) if not right)
    return (
        "(declare-const slice Int)"
        f"(assert (or (not (or false {present})) (or false {wrong})))"
    )  # fmt: skip


def _smallest(
    counts: dict[Cell, int], grid: Cell, smallest_wrong: Callable[[Row, int], int | None]
) -> Cell | None:
    """The first cell of a grid that has no place or several."""
    right = {cell: count == 1 for cell, count in counts.items()}
    wrong: dict[Cell, int] = {}
    for depth in reversed(range(len(grid))):
        rows: dict[Cell, set[tuple[int, bool]]] = {} if depth else {(): set()}
        for cell, is_right in right.items():
            rows.setdefault(cell[:-1], set()).add((cell[-1], is_right))
        right = {}
        for place, slices in in_time(rows.items()):
            first = smallest_wrong(frozenset(slices), grid[depth])
            right[place] = first is None
            if first is not None:
                wrong[place] = first
    if right.get((), False):
        return None
    missed: Cell = ()
    while missed in wrong:
        missed = (*missed, wrong[missed])
    return missed + (0,) * (len(grid) - len(missed))


def _outside_grid(
    phase: Phase, grid: Mapping[Dim, int], rank: int, index: int, sub_operator: Mapping[Dim, int]
) -> str:
    limits = ", ".join(f"{dim} below {slices}" for dim, slices in grid.items())
    return (
        f"rank {rank}, instruction {index}: expected a {phase} sub-operator with "
        f"{limits}, got {sub_operator_text(sub_operator)}: "
        "give it one slice index for each dim of the grid"
    )


def _sentence(phase: Phase, sub_operator: Mapping[Dim, int], places: Places) -> str:
    what = f"{phase} sub-operator {sub_operator_text(sub_operator)}"
    if not places:
        return f"{what}: expected one rank to compute it, got none: add it"
    where = " and ".join(f"rank {rank}, instruction {place}" for rank, place in places)
    return f"{what}: expected one rank to compute it once, got {where}: keep one of them"
