"""Scatters dense tensors to blocks on devices by grid and block name, and gathers them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from primepar.errors import IncompleteError, MissingBlockError, WrongDataError
from primepar.reference.emulator.provenance import Array
from primepar.schedule.operators import (
    PRODUCTS,
    Dim,
    Index,
    block_name,
    parse_block,
    tensor_dims,
)
from primepar.schedule.program import (
    Program,
)

Names = Sequence[Sequence[str]]
"""Block names of every rank."""
Memory = dict[str, Array]
Grid = Mapping[Dim, int]


def cut(array: Array, tensor: str, index: Index, grid: Grid) -> Array:
    """Return one block of a dense tensor with the dims of `tensor`; B only if the grid has it.

    A dim that the grid does not name is not cut, and is not in the index.
    """
    return array[_window(array.shape, tensor, index, grid)]


def _window(shape: tuple[int, ...], tensor: str, index: Index, grid: Grid) -> tuple[slice, ...]:
    dims = [dim for dim in tensor_dims(tensor) if dim in grid or dim != "B"]
    named = iter(index)
    window = []
    for dim, size in zip(dims, shape, strict=True):
        length = size // grid.get(dim, 1)
        start = next(named) * length if dim in grid else 0
        window.append(slice(start, start + length))
    return tuple(window)


def chosen(rank: int, memory: Mapping[str, Array], names: Sequence[str]) -> Memory:
    """Return the named blocks of one rank's memory. Raises `MissingBlockError`."""
    for name in names:
        if name not in memory:
            raise MissingBlockError(f"memories[{rank}]: expected an array for {name}, got none")
    return {name: np.asarray(memory[name]) for name in names}


def scatter(names: Names, grid: Grid, tensors: Mapping[str, Array]) -> list[Memory]:
    """Return memories in which every rank holds its named blocks of the given dense tensors."""
    memories = []
    for rank_names in names:
        parsed = {name: parse_block(name) for name in rank_names}
        memories.append(
            {
                name: cut(tensors[block.tensor], block.tensor, block.index, grid)
                for name, block in parsed.items()
                if block is not None and block.tensor in tensors
            }
        )
    return memories


def gather(tensor: str, names: Names, memories: Sequence[Mapping[str, Array]], grid: Grid) -> Array:
    """Return the dense tensor from its named blocks on all ranks.

    Raises `WrongDataError` if two replicas differ, `IncompleteError` if a block is on no rank.
    """
    blocks: dict[Index, Array] = {}
    for rank, rank_names in enumerate(names):
        for name in rank_names:
            parsed = parse_block(name)
            if parsed is None or parsed.tensor != tensor or parsed.scratch:
                continue
            array = memories[rank][name]
            replica = blocks.setdefault(parsed.index, array)
            if not np.array_equal(replica, array):
                raise WrongDataError(
                    f"expected equal replicas of {name}, got another on device {rank}"
                )
    return _assemble(tensor, blocks, grid)


def _assemble(tensor: str, blocks: Mapping[Index, Array], grid: Grid) -> Array:
    slices = [grid[dim] for dim in tensor_dims(tensor) if dim in grid]
    for index in np.ndindex(*slices):
        if index not in blocks:
            raise IncompleteError(
                f"expected {block_name(tensor, index)} on some device, got it on none"
            )
    first = next(iter(blocks.values()))
    dims = [dim for dim in tensor_dims(tensor) if dim in grid or dim != "B"]
    pairs = zip(first.shape, dims, strict=True)
    dense = np.empty([size * grid.get(dim, 1) for size, dim in pairs], first.dtype)
    for index, array in blocks.items():
        dense[_window(dense.shape, tensor, index, grid)] = array
    return dense


def outputs_of(program: Program) -> tuple[str, ...]:
    """Return the tensors that the phases of the program's grid write."""
    return tuple(product.writes for phase, product in PRODUCTS.items() if phase in
                 (program.grid or {}))  # fmt: skip
