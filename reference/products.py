"""The product of one sub-operator, its operands checked, and blocks of zeros."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from primepar.errors import WrongDataError
from primepar.reference.block import Array, Block, SubOperator, home_of
from primepar.schedule.operators import parse_block, tensor_dims
from primepar.schedule.program import Program


def multiply(
    program: Program, term: SubOperator, reads: tuple[str, ...], blocks: Sequence[Block]
) -> Block:
    """Product of a sub-operator.

    Raises `WrongDataError` if the sub-operator is not one of the grid, if what is read is not
    its operands, in the order of `PRODUCTS`, or if their shapes do not fit.
    """
    _check_grid(program, term)
    expected = term.operands
    named = [home_of(name) or name for name in reads]
    if len(reads) != len(expected) or any(
        not block.is_datum(operand) or (home_of(name) and name != operand)
        for name, operand, block in zip(reads, expected, blocks, strict=True)
    ):
        contents = [
            name if block.is_datum(home) else f"{name} holding {block}"
            for name, home, block in zip(reads, named, blocks, strict=True)
        ]
        raise WrongDataError(
            f"expected {term} to multiply {' and '.join(expected)}, got {' and '.join(contents)}"
        )
    return Block(_product(term, [block.array for block in blocks]), frozenset({term}))


def _product(term: SubOperator, arrays: list[Array]) -> Array:
    try:
        return term.multiply(arrays)
    except ValueError:
        shapes = " and ".join(str(array.shape) for array in arrays)
        raise WrongDataError(f"expected operands of {term} that fit, got shapes {shapes}") from None


def _check_grid(program: Program, term: SubOperator) -> None:
    grid = (program.grid or {}).get(term.phase)
    if grid is None:
        return
    slices = dict(term.slices)
    if slices.keys() != grid.keys() or any(slices[dim] >= grid[dim] for dim in grid):
        cut = " ".join(f"{dim}={count}" for dim, count in grid.items())
        raise WrongDataError(f"expected a sub-operator of the grid {cut}, got {term}")


def zeros(program: Program, name: str) -> Block:
    """Block of zeros; one without a known shape takes that of what is first added to it."""
    shape: tuple[int, ...] = ()
    parsed = parse_block(name)
    if parsed is not None and program.grid:
        told, grid = program.shape or {}, next(iter(program.grid.values()))
        dims = [dim for dim in tensor_dims(parsed.tensor) if dim in grid or dim != "B"]
        if all(dim in told for dim in dims):
            shape = tuple(told[dim] // grid.get(dim, 1) for dim in dims)
    return Block(np.zeros(shape), frozenset())
