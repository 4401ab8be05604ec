"""The tensors of a program, whole, on one device: what emulated devices are compared with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from primepar.reference.emulator.expected_contents import Contents
from primepar.reference.emulator.extents import cut_sizes, linear_sizes
from primepar.reference.emulator.postconditions import output_blocks
from primepar.reference.emulator.provenance import Array
from primepar.reference.emulator.scatter_gather import grid_of, outputs_of
from primepar.reference.oracle.linear import linear_step
from primepar.schedule.meaning import Place
from primepar.schedule.operators import Dim, tensor_dims


@dataclass(frozen=True)
class OneDevice:
    """Whole tensors, and how blocks lie in them."""

    tensors: dict[str, Array]
    slices: dict[str, tuple[int | None, ...]]
    """Tensor -> units of each axis that a place counts in; None for an axis that it leaves out."""
    made: dict[str, list[Place]] = field(default_factory=dict)
    """Tensors that the program makes -> where their blocks lie."""
    shape: dict[Dim, int] = field(default_factory=dict)
    """Elements along each dim of the linear operator."""

    def block(self, place: Place) -> Array | None:
        """A block of a tensor; None for one that is not there."""
        if place.tensor not in self.tensors:
            return None
        window = self.window(place)
        return None if window is None else self.tensors[place.tensor][window]

    def window(self, place: Place) -> tuple[slice, ...] | None:
        """Where a block lies in its tensor; None if it lies in none."""
        sizes, box = self.tensors[place.tensor].shape, list(place.box)
        found = []
        for size, units in zip(sizes, self.slices[place.tensor], strict=True):
            if units is None:
                found.append(slice(0, size))
                continue
            if not box or box[0][1] > units:
                return None
            first, end = box.pop(0)
            found.append(slice(first * size // units, end * size // units))
        return None if box else tuple(found)


def linear_tensors(contents: Contents, rng: np.random.Generator) -> OneDevice:
    """Integers in float64 for what goes into a linear operator, and what comes out of it.

    Raises `ProgramError` or `ShapeError` if grid, shape and cuts do not fit.
    """
    grid = grid_of(contents.program)
    if not grid:
        return OneDevice({}, {})
    cut, sizes = cut_sizes(contents.program), linear_sizes(contents.program, grid)
    given = {
        tensor: _integers(rng, [sizes.get(dim, 2) for dim in _dims(tensor, grid)])
        for tensor in ("I", "W", "dO")
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


def _integers(rng: np.random.Generator, shape: list[int]) -> Array:
    return rng.integers(-4, 5, shape).astype(np.float64)


def _dims(tensor: str, grid: Mapping[Dim, int]) -> list[Dim]:
    return [dim for dim in tensor_dims(tensor) if dim in grid or dim != "B"]


def output_places(contents: Contents, made: Iterable[str]) -> dict[str, list[Place]]:
    """Where the blocks lie that phases make of some tensors."""
    found = {}
    for phase in contents.meaning.phases.values():
        tensor = contents.meaning.real(phase.writes.tensor)
        if tensor not in made or contents.meaning.makers[tensor] is not phase:
            continue
        names = output_blocks(phase)
        if phase.grid is None:
            names = [phase.writes.block(slices) for slices in contents.computed(phase)]
        homes = (contents.home(name) for name in dict.fromkeys(names))
        found[tensor] = [home for home in homes if home is not None]
    return found
