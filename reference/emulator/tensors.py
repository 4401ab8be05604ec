"""Full tensors and their blocks: where a block is, cutting them out and putting them together.

The place of a block is a box, of elements where its tensor has declared cuts, else of slices. The
*units* of a tensor are what a box counts along each axis: None for an axis that boxes do not have,
as no index names it. Example: I has 6 x 4 elements and the grid M=3 alone. Its units are (3, None),
and the block I[1], a box ((1, 2),), is in rows 2 to 4 and in all columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from primepar.errors import IncompleteError, MissingBlockError, WrongDataError
from primepar.reference.emulator.contents import Array
from primepar.schedule.effects import host_blocks, initial_blocks
from primepar.schedule.meaning import Box, Meaning
from primepar.schedule.operators import Dim, Index, block_name, parse_block, tensor_dims

Names = Sequence[Sequence[str]]
"""Block names of every rank."""
Memory = dict[str, Array]
Grid = Mapping[Dim, int]
Shape = tuple[int, ...]
Window = tuple[slice, ...]
Units = Sequence[int | None]


def window(size: Sequence[int], units: Units, box: Box) -> Window | None:
    """Return the slices of a box in a tensor of some size; None if the box does not fit it."""
    sides, slices = list(box), []
    for length, count in zip(size, units, strict=True):
        if count is None:
            slices.append(slice(0, length))
            continue
        if not sides or sides[0][1] > count:
            return None
        first, end = sides.pop(0)
        slices.append(slice(first * length // count, end * length // count))
    return None if sides else tuple(slices)


def part_window(whole: Box, part: Box) -> Window:
    """Return the slices of a part in its block, if both are boxes of elements."""
    pairs = zip(part, whole, strict=True)
    return tuple(slice(first - start, end - start) for (first, end), (start, _) in pairs)


def extents(box: Box) -> Shape:
    """Return the length of each side of a box."""
    return tuple(end - first for first, end in box)


def linear_dims(tensor: str, grid: Grid) -> list[Dim]:
    """Return the dims of a tensor of a linear operator: B only if the grid has it."""
    return [dim for dim in tensor_dims(tensor) if dim in grid or dim != "B"]


def cut(array: Array, tensor: str, index: Index, grid: Grid) -> Array:
    """Return one block of a dense tensor with the dims of `tensor`; B only if the grid has it.

    A dim that the grid does not name is not cut, and is not in the index. Raises
    `MissingBlockError` for a block that is not in the grid.
    """
    return array[_linear_window(array.shape, tensor, index, grid)]


def _linear_window(shape: Sequence[int], tensor: str, index: Index, grid: Grid) -> Window:
    units = [grid.get(dim) for dim in linear_dims(tensor, grid)]
    place = window(shape, units, tuple((slice_, slice_ + 1) for slice_ in index))
    if place is None:
        slices = " ".join(f"{dim}={count}" for dim, count in grid.items())
        raise MissingBlockError(
            f"expected a block of {tensor} in the grid {slices}, got {block_name(tensor, index)}"
        )
    return place


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
    held: list[tuple[str, int, Index]] = []
    for rank, rank_names in enumerate(names):
        for name, block in zip(rank_names, map(parse_block, rank_names), strict=True):
            if block is not None and block.tensor == tensor and not block.scratch:
                held.append((name, rank, block.index))
    there = {index for _, _, index in held}
    for index in np.ndindex(*(grid[dim] for dim in tensor_dims(tensor) if dim in grid)):
        if index not in there:
            raise IncompleteError(
                f"expected {block_name(tensor, index)} on some device, got it on none"
            )
    first = memories[held[0][1]][held[0][0]]
    pairs = zip(first.shape, linear_dims(tensor, grid), strict=True)
    whole = _Whole([size * grid.get(dim, 1) for size, dim in pairs], first.dtype)
    for name, rank, index in held:
        whole.write(
            name, rank, _linear_window(whole.array.shape, tensor, index, grid), memories[rank][name]
        )
    return whole.array


def spread_tensors(meaning: Meaning, tensors: Mapping[str, Array]) -> list[Memory]:
    """Return the initial blocks of every rank, on device and host, cut from full tensors.

    A tensor that is smaller than in the program is padded with zeros. Raises `MissingBlockError`
    for a block of a tensor that is not given.
    """
    program, blocks = meaning.program, Memory()
    given = zip(initial_blocks(program), host_blocks(program), strict=True)
    initial = [(*names, *hosts) for names, hosts in given]
    for name in dict.fromkeys(name for names in initial for name in names):
        place = meaning.place(name)
        if place is None or place.tensor not in tensors:
            raise MissingBlockError(f"expected the whole tensor of {name}, got none of that name")
        # 50 tokens cut in 4 blocks of 13: the last box ends at 52, its part of the tensor at 50.
        part = tensors[place.tensor][_elements(place.box)]
        missing = np.subtract(extents(place.box), part.shape)
        blocks[name] = np.pad(part, [(0, int(count)) for count in missing])
    return [{name: blocks[name] for name in names} for names in initial]


def gather_tensors(
    meaning: Meaning, memories: Sequence[Mapping[str, Array]], shapes: Mapping[str, Shape]
) -> dict[str, Array]:
    """Return full tensors of these shapes, without padding, from their blocks in the memories.

    Raises `WrongDataError` if two replicas differ, and `IncompleteError` if a part is on no rank.
    """
    wholes: dict[str, _Whole] = {}
    for rank, memory in enumerate(memories):
        for name, block in memory.items():
            place = meaning.place(name)
            if place is None or place.tensor not in shapes:
                continue
            tensor, here = place.tensor, _elements(place.box)
            whole = wholes.setdefault(tensor, _Whole(shapes[tensor], block.dtype))
            part = block[tuple(map(slice, whole.array[here].shape))]  # without padding
            whole.write(name, rank, here, part)
    for tensor in shapes:
        if tensor not in wholes or not wholes[tensor].seen.all():
            raise IncompleteError(f"expected all of {tensor} at the end, got a part on no rank")
    return {tensor: wholes[tensor].array for tensor in shapes}


class _Whole:
    """A tensor that is put together from blocks, some of which may be there several times."""

    def __init__(self, shape: Iterable[int], dtype: np.dtype[np.generic]) -> None:
        self.array = np.zeros(tuple(shape), dtype)
        self.seen = np.zeros(self.array.shape, bool)

    def write(self, name: str, rank: int, here: Window, part: Array) -> None:
        """Write a block. Raises `WrongDataError` if another one differs where both are."""
        old = self.array[here]
        if part.shape != old.shape or not np.array_equal(
            np.where(self.seen[here], old, part), part
        ):
            raise WrongDataError(f"expected equal replicas of {name}, got another on device {rank}")
        self.array[here], self.seen[here] = part, True


def _elements(box: Box) -> Window:
    return tuple(slice(first, end) for first, end in box)
