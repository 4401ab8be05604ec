"""Cuts full tensors into the blocks of a program and joins them, by the block names alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from primepar.errors import IncompleteError, MissingBlockError, WrongDataError
from primepar.reference.emulator.provenance import Array
from primepar.reference.emulator.scatter_gather import Memory
from primepar.schedule.effects import host_blocks, initial_blocks
from primepar.schedule.meaning import Box, Meaning


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
        blocks[name] = _padded(tensors[place.tensor][_window(place.box)], place.box)
    return [{name: blocks[name] for name in names} for names in initial]


def gather_tensors(
    meaning: Meaning,
    memories: Sequence[Mapping[str, Array]],
    shapes: Mapping[str, tuple[int, ...]],
) -> dict[str, Array]:
    """Return full tensors of these shapes, without padding, from their blocks in the memories.

    Raises `WrongDataError` if two replicas differ, and `IncompleteError` if a part is on no rank.
    """
    wholes: dict[str, Array] = {}
    seen = {tensor: np.zeros(shape, bool) for tensor, shape in shapes.items()}
    for rank, memory in enumerate(memories):
        for name, block in memory.items():
            place = meaning.place(name)
            if place is None or place.tensor not in shapes:
                continue
            tensor, window = place.tensor, _window(place.box)
            whole = wholes.setdefault(tensor, np.zeros(shapes[tensor], block.dtype))
            part = block[tuple(map(slice, whole[window].shape))]
            if not np.array_equal(np.where(seen[tensor][window], whole[window], part), part):
                raise WrongDataError(
                    f"{tensor}: expected equal replicas of {name}, got another on rank {rank}"
                )
            whole[window], seen[tensor][window] = part, True
    for tensor in shapes:
        if not seen[tensor].all():
            raise IncompleteError(f"expected all of {tensor} at the end, got a part on no rank")
    return {tensor: wholes[tensor] for tensor in shapes}


def _padded(part: Array, box: Box) -> Array:
    """Return a block with the extents of `box`: `part`, then zeros beyond the tensor's end."""
    pairs = zip(box, part.shape, strict=True)
    return np.pad(part, [(0, end - first - size) for (first, end), size in pairs])


def _window(box: Box) -> tuple[slice, ...]:
    return tuple(slice(first, end) for first, end in box)
