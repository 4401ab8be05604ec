"""Between whole tensors and the blocks of a program, by the names of these alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from primepar.errors import IncompleteError, MissingBlockError, WrongDataError
from primepar.reference.emulator.provenance import Array
from primepar.reference.emulator.scatter_gather import Memory
from primepar.schedule.meaning import Box, Meaning


def spread_tensors(meaning: Meaning, tensors: Mapping[str, Array]) -> list[Memory]:
    """The initial blocks of every rank, cut out of whole tensors by their cuts in the program.

    What a tensor lacks of its size in the program is padded with zeros. Raises `MissingBlockError`
    for a block of a tensor that is not given.
    """
    initial, found = meaning.program.initial or (), Memory()
    for name in dict.fromkeys(name for own in initial for name in own):
        place = meaning.place(name)
        if place is None or place.tensor not in tensors:
            raise MissingBlockError(f"expected the whole tensor of {name}, got none of that name")
        found[name] = _padded(tensors[place.tensor][_window(place.box)], place.box)
    return [{name: found[name] for name in own} for own in initial]


def gather_tensors(
    meaning: Meaning,
    memories: Sequence[Mapping[str, Array]],
    shapes: Mapping[str, tuple[int, ...]],
) -> dict[str, Array]:
    """Whole tensors of these shapes, without padding, of their blocks in the memories.

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
            own = block[tuple(map(slice, whole[window].shape))]
            if not np.array_equal(np.where(seen[tensor][window], whole[window], own), own):
                raise WrongDataError(
                    f"{tensor}: expected equal replicas of {name}, got another on rank {rank}"
                )
            whole[window], seen[tensor][window] = own, True
    for tensor in shapes:
        if not seen[tensor].all():
            raise IncompleteError(f"expected all of {tensor} at the end, got a part on no rank")
    return {tensor: wholes[tensor] for tensor in shapes}


def _padded(own: Array, box: Box) -> Array:
    """A block of which the tensor has so much, zeros beyond its end."""
    pairs = zip(box, own.shape, strict=True)
    return np.pad(own, [(0, end - first - size) for (first, end), size in pairs])


def _window(box: Box) -> tuple[slice, ...]:
    return tuple(slice(first, end) for first, end in box)
