"""The full tensors of a program on one device, with which emulated devices are compared.

A program of one linear operator is three products (`linear_step`). Of any other, each phase is
evaluated once on full tensors by its stand-in, and a dim with the same cuts in all tensors of a
phase at once. Example: with grid M=2 K=4, `y[M,K] = x[M] w[K]` is one product. If `y` is cut 1 : 3
along K and `w` is cut 2 : 2, or a template divides K, what a slice of `y` is made of is not what
its slices in full tensors would be, so the phase is evaluated slice by slice along K.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise, product
from math import prod

import numpy as np
from numpy.typing import NDArray

from primepar.errors import ProgramError
from primepar.reference.emulator.arithmetic import UFUNCS
from primepar.reference.emulator.contents import Array, Contents
from primepar.reference.emulator.postconditions import output_blocks
from primepar.reference.emulator.surrogate import LENGTH, PRIME, modular, stand_in
from primepar.reference.emulator.tensors import Shape, Units, Window, linear_dims, window
from primepar.reference.oracle.linear import linear_step
from primepar.schedule.meaning import Phase, Place
from primepar.schedule.operators import PRODUCTS, Dim, Linear
from primepar.schedule.program import Program
from primepar.schedule.signature import Template

LINEAR = ("I", "W", "O", "dI", "dW", "dO")
STARTS = {"sum": 0, "max": -1, "min": PRIME}


@dataclass(frozen=True)
class OneDevice:
    """Full tensors, and the places of blocks in them."""

    tensors: dict[str, Array]
    units: Mapping[str, Units]
    made: dict[str, list[Place]] = field(default_factory=dict)
    """Tensors that the program makes -> places of their blocks."""
    shape: dict[Dim, int] = field(default_factory=dict)
    """Elements along each dim of the linear operator."""

    def block(self, place: Place) -> Array | None:
        """Return a block of a tensor; None if there is no such block."""
        if place.tensor not in self.tensors:
            return None
        here = self.window(place)
        return None if here is None else self.tensors[place.tensor][here]

    def window(self, place: Place) -> Window | None:
        """Return the slices of a block in its tensor; None if the place does not fit it."""
        return window(self.tensors[place.tensor].shape, self.units[place.tensor], place.box)


def one_device(contents: Contents, rng: np.random.Generator) -> OneDevice:
    """Return inputs of a program, and what its phases make of them.

    Of a linear operator inputs are integers in float64, else numbers modulo `PRIME`. A phase
    without a grid has the sub-operators that the program computes. Raises `ProgramError` or
    `ShapeError` if grids, shape and cuts do not fit, or if phases depend on each other in a cycle.
    """
    return _Phases(contents, rng).evaluated() if contents.exact else _linear(contents, rng)


def random_integers(
    rng: np.random.Generator, low: int, end: int, shape: Sequence[int]
) -> NDArray[np.int64]:
    """Integers from `low` to below `end`. Raises `MemoryError` for an array that is too large.

    NumPy raises `ValueError` for one that no machine can address.
    """
    if prod(shape) * np.dtype(np.int64).itemsize > sys.maxsize:
        raise MemoryError
    return rng.integers(low, end, shape)


def _linear(contents: Contents, rng: np.random.Generator) -> OneDevice:
    program, grid = contents.program, contents.program.linear_grid
    if not grid:
        return OneDevice({}, {})
    cut, sizes = cut_sizes(program), linear_sizes(program, grid)
    I_MN, W_NK, dO_MK = (
        random_integers(rng, -4, 5, [sizes.get(dim, 2) for dim in linear_dims(tensor, grid)])
        .astype(np.float64)
        for tensor in ("I", "W", "dO")
    )  # fmt: skip
    step = linear_step(I_MN, W_NK, dO_MK)._asdict()
    outputs = [PRODUCTS[phase].writes for phase in PRODUCTS if phase in (program.grid or {})]
    made = {tensor: step[tensor] for tensor in outputs}
    tensors = {"I": I_MN, "W": W_NK, "dO": dO_MK, **made}
    units = {
        tensor: [
            None if dim not in grid else sizes[dim] if tensor in cut else grid[dim]
            for dim in linear_dims(tensor, grid)
        ]
        for tensor in tensors
    }
    shape = {dim: sizes[dim] for dim in grid}
    return OneDevice(tensors, units, output_places(contents, made), shape)


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


def cut_sizes(program: Program) -> dict[str, Shape]:
    """Return the sizes of tensors with declared cuts."""
    return {name: known.size for name, known in (program.tensors or {}).items() if not known.of}


def linear_sizes(program: Program, grid: Mapping[Dim, int]) -> dict[Dim, int]:
    """Return the elements along the dims of the linear operator: by its shape or its cuts.

    Without both a slice has two elements. Raises `ProgramError` if shape and cuts differ,
    `ShapeError` if the grid does not divide them.
    """
    declared, cut = dict(program.shape or {}), cut_sizes(program)
    for tensor in LINEAR:
        named = [dim for dim in linear_dims(tensor, grid) if dim in grid]
        for dim, size in zip(named, cut.get(tensor, ()), strict=False):
            if declared.setdefault(dim, size) != size:
                raise ProgramError(
                    f"$.tensors.{tensor}: expected {declared[dim]} elements along {dim}, as "
                    f"elsewhere, got {size}"
                )
    sizes = {dim: declared.get(dim, 2 * count) for dim, count in grid.items()}
    if grid and not cut:
        Linear(**{"M": 2, "N": 2, "K": 2, **declared, **sizes}).check_divides(grid)
    return {**declared, **sizes}


class _Phases:
    """The phases of one program, evaluated on full tensors in an order in which they can be."""

    def __init__(self, contents: Contents, rng: np.random.Generator) -> None:
        self.contents, self.rng = contents, rng
        self.meaning, self.program = contents.meaning, contents.program
        self.sizes = cut_sizes(self.program)
        self.counts = self._slice_counts()
        grid = self.program.linear_grid
        self.linear = linear_sizes(self.program, grid)
        self.shape = {dim: self.linear[dim] for dim in grid}
        self.tensors: dict[str, Array] = {}

    def evaluated(self) -> OneDevice:
        made = []
        for phase in self._ordered():
            tensor = self.meaning.real(phase.writes.tensor)
            asked = phase.grid is not None or self.contents.computed(phase)
            reads = [self.meaning.real(template.tensor) for template in phase.reads]
            if self.meaning.makers[tensor] is phase and asked and all(map(self._provide, reads)):
                self.tensors[tensor] = self._evaluate(phase)
                made.append(tensor)
        units = {tensor: self._units(tensor) for tensor in self.tensors}
        return OneDevice(self.tensors, units, output_places(self.contents, made), self.shape)

    def _slice_counts(self) -> dict[str, Shape]:
        """Return the blocks along each axis of tensors without cuts: the number that phases use.

        Raises `ProgramError` if a name has another number of indices elsewhere.
        """
        counts_by_tensor: dict[str, Shape] = {}
        cut = self.program.tensors or {}
        for phase in self.meaning.phases.values():
            grid: Mapping[str, int] = phase.grid or {}
            if phase.grid is None:
                computed = self.contents.computed(phase)
                grid = {dim: max(s[dim] for s in computed) + 1 for dim in phase.dims if computed}
            for template in (*phase.reads, phase.writes):
                tensor = template.tensor
                if not phase.dims <= grid.keys() or tensor in cut:
                    continue
                # With M=5 slices, `x[M/2]` has blocks 0, 1 and 2; `x[3]` alone needs four.
                counts = tuple(
                    -(-grid[dim] // number) if dim else number + 1
                    for dim, number in template.entries
                )
                known = counts_by_tensor.setdefault(tensor, counts)
                if len(known) != len(counts):
                    raise ProgramError(
                        f"$.phases.{phase.name}: expected {len(known)} indices of {tensor}, as "
                        f"elsewhere, got {len(counts)}"
                    )
                counts_by_tensor[tensor] = tuple(map(max, known, counts))
        return counts_by_tensor

    def _ordered(self) -> Iterator[Phase]:
        """Yield the phases in an order in which operands are made before they are read."""
        phases, makers = self.meaning.phases, self.meaning.makers
        needs = {}
        for name, phase in phases.items():
            read = {self.meaning.real(template.tensor) for template in phase.reads}
            needs[name] = [makers[tensor].name for tensor in sorted(read) if tensor in makers]
        try:
            order = list(TopologicalSorter(needs).static_order())
        except CycleError as error:
            cycle = ", which needs ".join(reversed(error.args[1]))
            raise ProgramError(
                f"$.phases: expected phases that can follow one another, got {cycle}"
            ) from None
        return (phases[name] for name in order)

    def _provide(self, tensor: str) -> bool:
        """Make a random tensor for an input of the program; return whether the tensor is known.

        Its size is that of its cuts or of the operator's shape, else two elements per slice.
        """
        if tensor not in self.tensors and tensor not in self.meaning.makers:
            if tensor in self.sizes:
                size = self.sizes[tensor]
            elif tensor in LINEAR and self.shape:
                dims = linear_dims(tensor, self.program.linear_grid)
                size = tuple(self.linear[dim] for dim in dims if dim in self.shape)
            else:
                size = tuple(LENGTH * count for count in self.counts[tensor])
            self.tensors[tensor] = random_integers(self.rng, 0, PRIME, size)
        return tensor in self.tensors

    def _evaluate(self, phase: Phase) -> Array:
        """Return the tensor that a phase makes."""
        writes, looped = phase.writes, self._looped(phase)
        size = self.sizes.get(self.meaning.real(writes.tensor))
        pieces = []
        for slices in self._turns(phase, looped):
            arrays = []
            for template in phase.reads:
                whole = self.tensors[self.meaning.real(template.tensor)]
                arrays.append(whole[self._window(template, whole.shape, slices)])
            here = None if size is None else self._window(writes, size, slices)
            shape = None if here is None else [line.stop - line.start for line in here]
            pieces.append((slices, stand_in(phase, arrays, shape)))
        if size is None:
            size = self._made_size(writes, looped, [piece for _, piece in pieces])
        made = np.full(size, STARTS[phase.reduction], np.int64)
        for slices, piece in pieces:
            here = self._window(writes, size, slices)
            made[here] = UFUNCS[phase.reduction](made[here], piece)
        if phase.reduction != "sum":
            return made
        return made % PRIME * modular(phase.scale) % PRIME

    def _made_size(self, writes: Template, looped: Sequence[str], pieces: Sequence[Array]) -> Shape:
        """Return the size of a tensor whose blocks have the size of their results."""
        shapes = {piece.shape for piece in pieces}
        if len(shapes) > 1:
            raise ProgramError(
                f"$.tensors: expected cuts of {writes.tensor}, whose blocks differ in size, "
                "got none"
            )
        counts = self.counts[writes.tensor]
        return tuple(
            length * count if not dim or dim in looped else length
            for (dim, _), length, count in zip(writes.entries, shapes.pop(), counts, strict=True)
        )

    def _units(self, tensor: str) -> Shape:
        return self.sizes[tensor] if tensor in self.sizes else self.counts[tensor]

    def _window(self, template: Template, size: Shape, slices: Mapping[str, int]) -> Window:
        """Return the slices of a template in a tensor of a given size.

        A dim that `slices` does not name is not sliced. Raises `ProgramError` for a slice that the
        tensor does not have.
        """
        block = template.block({**dict.fromkeys(template.dims, 0), **slices})
        home = self.contents.home(block)
        assert home is not None
        here = window(size, self._units(home.tensor), home.box)
        assert here is not None
        pairs = zip(template.entries, here, size, strict=True)
        return tuple(
            slice(0, length) if dim and dim not in slices else side
            for (dim, _), side, length in pairs
        )

    def _looped(self, phase: Phase) -> list[str]:
        """Return the dims that are evaluated slice by slice."""
        if phase.grid is None:
            return sorted(phase.dims)
        return [dim for dim in phase.grid if dim in phase.dims and self._varies(phase, dim)]

    def _turns(self, phase: Phase, looped: Sequence[str]) -> Iterator[dict[str, int]]:
        if phase.grid is None:
            yield from self.contents.computed(phase)
            return
        for index in product(*(range(phase.grid[dim]) for dim in looped)):
            yield dict(zip(looped, index, strict=True))

    def _varies(self, phase: Phase, dim: str) -> bool:
        """Return whether a dim must be evaluated slice by slice."""
        uses = [
            (template, axis, number)
            for template in (*phase.reads, phase.writes)
            for axis, (named, number) in enumerate(template.entries)
            if named == dim
        ]
        read = any(template is not phase.writes for template, _, _ in uses)
        twice = len({id(template) for template, _, _ in uses}) < len(uses)
        if not read or twice or any(number > 1 for _, _, number in uses):
            return True
        # Cuts 0, 2, 6 and 0, 3, 9 are in one proportion, 1 : 2; cuts 0, 2, 6 and 0, 4, 6 are not.
        lengths = [self._lengths(template, axis) for template, axis, _ in uses]
        first = lengths[0]
        return any(
            len(line) != (phase.grid or {})[dim]
            or any(a * first[0] != b * line[0] for a, b in zip(line, first, strict=True))
            for line in lengths
        )

    def _lengths(self, template: Template, axis: int) -> list[int]:
        """Return the elements of each slice along an axis; without cuts all slices count as one."""
        known = (self.program.tensors or {}).get(template.tensor)
        if known is None:
            return [1] * self.counts[template.tensor][axis]
        return [end - first for first, end in pairwise(known.cuts[axis])]
