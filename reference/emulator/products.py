"""Computes the product of one sub-operator after a check of its operands; blocks of zeros."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from primepar.errors import IncompleteError, WrongDataError
from primepar.reference.emulator.arithmetic import Arithmetic
from primepar.reference.emulator.expected_contents import Contents, sub_operator_text
from primepar.reference.emulator.provenance import Block
from primepar.schedule.meaning import Phase
from primepar.schedule.operators import parse_block, tensor_dims
from primepar.schedule.program import Compute, Program


def product(arithmetic: Arithmetic, node: Compute, blocks: Sequence[Block]) -> Block:
    """Return the result of a sub-operator on the blocks that it reads.

    Raises `WrongDataError` if the sub-operator is not in the grid, if the blocks are not its
    operands in the order of the phase, or if their shapes do not fit. Raises `IncompleteError` if
    an operand is an unfinished sum.
    """
    contents = arithmetic.contents
    phase = contents.meaning.phases[str(node.phase)]
    slices = node.sub_operator or {}
    text = sub_operator_text(phase.name, _ordered(phase, slices))
    operands = [template.block(slices) for template in phase.reads]
    _check_operands(contents, operands, node.reads, blocks, text)
    made = contents.product(phase, slices)
    arrays = [block.array for block in blocks]
    try:
        array = arithmetic.made(node, arrays)
    except ValueError:
        shapes = " and ".join(str(array.shape) for array in arrays)
        raise WrongDataError(f"expected operands of {text} that fit, got shapes {shapes}") from None
    return arithmetic.scaled(Block(array, {made: 1}), node.scale_value)


def _ordered(phase: Phase, slices: Mapping[str, int]) -> dict[str, int]:
    """Return a sub-operator in the order of its grid. Raises `WrongDataError` if not in it."""
    grid = phase.grid
    if grid is None:
        return dict(slices)
    if slices.keys() != grid.keys() or any(slices[dim] >= grid[dim] for dim in grid):
        cut = " ".join(f"{dim}={count}" for dim, count in grid.items())
        text = sub_operator_text(phase.name, slices)
        raise WrongDataError(f"expected a sub-operator of the grid {cut}, got {text}")
    return {dim: slices[dim] for dim in grid}


def _check_operands(
    contents: Contents, operands: Sequence[str], reads: Sequence[str], blocks: Sequence[Block],
    text: str,
) -> None:  # fmt: skip
    dues = [contents.due(home) for home in map(contents.home, operands) if home is not None]
    if [block.terms for block in blocks] == dues:
        return
    if len(blocks) == len(dues) and all(
        block.terms and block.terms.keys() <= due.keys()
        for block, due in zip(blocks, dues, strict=True)
    ):
        for operand, block in zip(operands, blocks, strict=True):
            if difference := contents.difference(operand, block):
                raise IncompleteError(f"{difference}: finish the sum before this instruction")
    got = [_held(contents, name, block) for name, block in zip(reads, blocks, strict=True)]
    raise WrongDataError(f"expected {text} to read {_listed(operands)}, got {_listed(got)}")


def _held(contents: Contents, name: str, block: Block) -> str:
    home = contents.home(name)
    right = home is not None and block.terms == contents.due(home)
    return name if right else f"{name} holding {contents.text(block.terms)}"


def _listed(names: Sequence[str]) -> str:
    """Return names as a list in words: `x`, `x and y`, `x, y and z`."""
    *first, last = names or ("nothing",)
    return f"{', '.join(first)} and {last}" if first else last


def zeros(contents: Contents, name: str, dtype: np.dtype[np.generic]) -> Block:
    """Return a block of zeros; if its shape is unknown, the first term added to it defines it."""
    shape = contents.shape(name) or _linear_shape(contents.program, name)
    return Block(np.zeros(shape, dtype), {})


def _linear_shape(program: Program, name: str) -> tuple[int, ...]:
    """Return the shape of a block of a linear operator, if the program declares one, else ()."""
    parsed, declared = parse_block(name), program.shape or {}
    grids = [slices for phase, slices in (program.grid or {}).items()
             if phase not in (program.phases or {})]  # fmt: skip
    if parsed is None or not grids:
        return ()
    grid = grids[0]
    dims = [dim for dim in tensor_dims(parsed.tensor) if dim in grid or dim != "B"]
    if not all(dim in declared for dim in dims):
        return ()
    return tuple(declared[dim] // grid.get(dim, 1) for dim in dims)
