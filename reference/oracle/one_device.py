"""The full tensors of a program on one device, with which emulated devices are compared."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np
from numpy.typing import NDArray

from primepar.reference.emulator.expected_contents import Contents
from primepar.reference.emulator.extents import cut_sizes, linear_sizes
from primepar.reference.emulator.postconditions import output_blocks
from primepar.reference.emulator.provenance import Array
from primepar.reference.emulator.scatter_gather import outputs_of
from primepar.reference.oracle.linear import linear_step
from primepar.schedule.meaning import Place
from primepar.schedule.operators import Dim, tensor_dims


@dataclass(frozen=True)
class OneDevice:
    """Full tensors, and the places of blocks in them."""

    tensors: dict[str, Array]
    slices: dict[str, tuple[int | None, ...]]
    """Tensor -> units of each axis in places; None for an axis that places do not have."""
    made: dict[str, list[Place]] = field(default_factory=dict)
    """Tensors that the program makes -> places of their blocks."""
    shape: dict[Dim, int] = field(default_factory=dict)
    """Elements along each dim of the linear operator."""

    def block(self, place: Place) -> Array | None:
        """Return a block of a tensor; None if there is no such block."""
        if place.tensor not in self.tensors:
            return None
        window = self.window(place)
        return None if window is None else self.tensors[place.tensor][window]

    def window(self, place: Place) -> tuple[slice, ...] | None:
        """Return the slices of a block in its tensor; None if the place does not fit it."""
        sizes, box = self.tensors[place.tensor].shape, list(place.box)
        window = []
        for size, units in zip(sizes, self.slices[place.tensor], strict=True):
            if units is None:
                window.append(slice(0, size))
                continue
            if not box or box[0][1] > units:
                return None
            first, end = box.pop(0)
            window.append(slice(first * size // units, end * size // units))
        return None if box else tuple(window)


def linear_tensors(contents: Contents, rng: np.random.Generator) -> OneDevice:
    """Return inputs of a linear operator, integers in float64, and its outputs.

    Raises `ProgramError` or `ShapeError` if grid, shape and cuts do not fit.
    """
    grid = contents.program.linear_grid
    if not grid:
        return OneDevice({}, {})
    cut, sizes = cut_sizes(contents.program), linear_sizes(contents.program, grid)
    shapes = {
        tensor: [sizes.get(dim, 2) for dim in _dims(tensor, grid)] for tensor in ("I", "W", "dO")
    }
    given = {
        tensor: random_integers(rng, -4, 5, shape).astype(np.float64)
        for tensor, shape in shapes.items()
    }
    step = linear_step(given["I"], given["W"], given["dO"])._asdict()
    made = {tensor: step[tensor] for tensor in outputs_of(contents.program)}
    units = {
        tensor: tuple(
            None if dim not in grid else sizes[dim] if tensor in cut else grid[dim]
            for dim in _dims(tensor, grid)
        )
        for tensor in (*given, *made)
    }
    shape = {dim: sizes[dim] for dim in grid}
    return OneDevice({**given, **made}, units, output_places(contents, made), shape)


def random_integers(
    rng: np.random.Generator, low: int, end: int, shape: Sequence[int]
) -> NDArray[np.int64]:
    """Integers from `low` to below `end`. Raises `MemoryError` for an array that is too large.

    NumPy raises `ValueError` for one that no machine can address.
    """
    if prod(shape) * np.dtype(np.int64).itemsize > sys.maxsize:
        raise MemoryError
    return rng.integers(low, end, shape)


def _dims(tensor: str, grid: Mapping[Dim, int]) -> list[Dim]:
    return [dim for dim in tensor_dims(tensor) if dim in grid or dim != "B"]


def output_places(contents: Contents, made: Iterable[str]) -> dict[str, list[Place]]:
    """Return the places of the blocks that phases make of some tensors."""
    places = {}
    for phase in contents.meaning.phases.values():
        tensor = contents.meaning.real(phase.writes.tensor)
        if tensor not in made or contents.meaning.makers[tensor] is not phase:
            continue
        names = output_blocks(phase)
        if phase.grid is None:
            names = [phase.writes.block(slices) for slices in contents.computed(phase)]
        homes = (contents.home(name) for name in dict.fromkeys(names))
        places[tensor] = [home for home in homes if home is not None]
    return places
