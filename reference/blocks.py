"""Between dense tensors and blocks on devices: cut by grid and block name, and put together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from primepar.errors import IncompleteError, MissingBlockError, ProgramError, WrongDataError
from primepar.reference.block import Array
from primepar.reference.collectives import gets, gives
from primepar.schedule.operators import (
    PRODUCTS,
    Dim,
    Index,
    block_name,
    parse_block,
    tensor_dims,
)
from primepar.schedule.program import (
    Alloc,
    Collective,
    Compute,
    Cut,
    Evict,
    Fetch,
    Free,
    Group,
    Instruction,
    IRecv,
    ISend,
    Join,
    Program,
    Recv,
    Send,
)

Names = Sequence[Sequence[str]]
"""Block names of every rank."""
Memory = dict[str, Array]
Grid = Mapping[Dim, int]


def cut(array: Array, tensor: str, index: Index, grid: Grid) -> Array:
    """One block of a dense tensor whose dims are those of `tensor`, B only where the grid has it.

    A dim that the grid does not name is whole and has no part in the index.
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
    """The named blocks of one rank's memory. Raises `MissingBlockError` if one is not there."""
    for name in names:
        if name not in memory:
            raise MissingBlockError(f"memories[{rank}]: expected an array for {name}, got none")
    return {name: np.asarray(memory[name]) for name in names}


def scatter(names: Names, grid: Grid, tensors: Mapping[str, Array]) -> list[Memory]:
    """Memories in which every rank holds the named blocks of those dense tensors that are given."""
    memories = []
    for own in names:
        parsed = {name: parse_block(name) for name in own}
        memories.append(
            {
                name: cut(tensors[block.tensor], block.tensor, block.index, grid)
                for name, block in parsed.items()
                if block is not None and block.tensor in tensors
            }
        )
    return memories


def gather(tensor: str, names: Names, memories: Sequence[Mapping[str, Array]], grid: Grid) -> Array:
    """Dense tensor from the named blocks of it on all ranks.

    Raises `WrongDataError` if two replicas differ, `IncompleteError` if a block is on no rank.
    """
    found: dict[Index, Array] = {}
    for rank, own in enumerate(names):
        for name in own:
            parsed = parse_block(name)
            if parsed is None or parsed.tensor != tensor or parsed.scratch:
                continue
            array = memories[rank][name]
            replica = found.setdefault(parsed.index, array)
            if not np.array_equal(replica, array):
                raise WrongDataError(
                    f"expected equal replicas of {name}, got another on device {rank}"
                )
    return _assemble(tensor, found, grid)


def _assemble(tensor: str, found: Mapping[Index, Array], grid: Grid) -> Array:
    slices = [grid[dim] for dim in tensor_dims(tensor) if dim in grid]
    for index in np.ndindex(*slices):
        if index not in found:
            raise IncompleteError(
                f"expected {block_name(tensor, index)} on some device, got it on none"
            )
    first = next(iter(found.values()))
    dims = [dim for dim in tensor_dims(tensor) if dim in grid or dim != "B"]
    pairs = zip(first.shape, dims, strict=True)
    dense = np.empty([size * grid.get(dim, 1) for size, dim in pairs], first.dtype)
    for index, array in found.items():
        dense[_window(dense.shape, tensor, index, grid)] = array
    return dense


def grid_of(program: Program) -> dict[Dim, int]:
    """The one grid of the phases of the linear operator.

    Raises `ProgramError` if two of them cut a dim differently.
    """
    grid: dict[Dim, int] = {}
    for phase, slices in (program.grid or {}).items():
        if phase in (program.phases or {}):
            continue
        for dim, count in slices.items():
            if grid.setdefault(dim, count) != count:
                raise ProgramError(
                    f"$.grid.{phase}.{dim}: expected {grid[dim]} slices as in the phase before, "
                    f"got {count}: a block must mean the same data in every phase"
                )
    return grid


def outputs_of(program: Program) -> tuple[str, ...]:
    """Tensors that the phases of the program's grid sum into."""
    return tuple(product.writes for phase, product in PRODUCTS.items() if phase in
                 (program.grid or {}))  # fmt: skip


def uses(instruction: Instruction, rank: int) -> tuple[str, ...]:
    """Blocks that must be there for an instruction; a sum that starts at zero need not."""
    match instruction:
        case Compute(reads=reads) | Join(blocks=reads):
            return reads
        case Send() | ISend() | Evict() | Free() | Cut():
            return (instruction.block,)
        case Group(body=body):
            return tuple(name for message in body for name in uses(message, rank))
        case _ if isinstance(instruction, Collective):
            return gives(instruction, rank)
        case _:
            return ()


def writes(instruction: Instruction, rank: int) -> tuple[str, ...]:
    """Blocks that an instruction makes or replaces."""
    match instruction:
        case Compute(accumulates=block):
            return (block,)
        case Cut(blocks=blocks):
            return blocks
        case Recv() | IRecv() | Alloc() | Fetch() | Join():
            return (instruction.block,)
        case Group(body=body):
            return tuple(name for message in body for name in writes(message, rank))
        case _ if isinstance(instruction, Collective):
            return gets(instruction, rank)
        case _:
            return ()


def initial_blocks(program: Program) -> tuple[tuple[str, ...], ...]:
    """What lies on every device before the program: told, or what is used before it is written."""
    if program.initial is not None:
        return program.initial
    return tuple(_used_first(program, rank) for rank in range(program.ranks))


def _used_first(program: Program, rank: int) -> tuple[str, ...]:
    written: set[str] = set()
    first: dict[str, None] = {}
    for instruction in program.programs[rank]:
        first.update(dict.fromkeys(name for name in uses(instruction, rank) if name not in written))
        written.update(writes(instruction, rank))
    return tuple(first)


def host_blocks(program: Program) -> tuple[tuple[str, ...], ...]:
    """What lies in every host memory before the program: nothing where `initial` is told.

    Else a block whose first instruction on this rank fetches it.
    """
    if program.initial is not None:
        return ((),) * program.ranks
    return tuple(_fetched_first(program, rank) for rank in range(program.ranks))


def _fetched_first(program: Program, rank: int) -> tuple[str, ...]:
    known: set[str] = set()
    first: dict[str, None] = {}
    for instruction in program.programs[rank]:
        if isinstance(instruction, Fetch) and instruction.block not in known:
            first[instruction.block] = None
        known.update(uses(instruction, rank), writes(instruction, rank))
    return tuple(first)
