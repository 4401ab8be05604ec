"""Evaluates the phases of a program on one device, each once on full tensors.

A dim with the same cuts in all tensors of a phase is evaluated at once. If a template divides a
dim, or two tensors cut it in different proportions, the phase is evaluated slice by slice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from graphlib import CycleError, TopologicalSorter
from itertools import product

import numpy as np

from primepar.errors import ProgramError
from primepar.reference.emulator.expected_contents import Contents
from primepar.reference.emulator.extents import LINEAR, Extents, Shape, linear_sizes
from primepar.reference.emulator.provenance import Array
from primepar.reference.emulator.surrogate import LENGTH, PRIME, modular, stand_in
from primepar.reference.oracle.one_device import OneDevice, output_places, random_integers
from primepar.schedule.meaning import Phase
from primepar.schedule.operators import tensor_dims
from primepar.schedule.signature import Template

_STARTS = {"sum": 0, "max": -1, "min": PRIME}
_UFUNCS = {"sum": np.add, "max": np.maximum, "min": np.minimum}


def phase_tensors(contents: Contents, rng: np.random.Generator) -> OneDevice:
    """Return inputs of the phases, numbers modulo `PRIME`, and the results of their stand-ins.

    A phase without a grid has the sub-operators that the program computes. Raises `ProgramError` or
    `ShapeError` if grids, shape and cuts do not fit, or if phases depend on each other in a cycle.
    """
    return _Phases(contents, rng).one_device()


class _Phases:
    def __init__(self, contents: Contents, rng: np.random.Generator) -> None:
        self.contents, self.rng = contents, rng
        self.meaning = contents.meaning
        self.extents = Extents(contents)
        grid = contents.program.linear_grid
        self.linear = linear_sizes(contents.program, grid)
        self.shape = {dim: self.linear[dim] for dim in grid}
        self.tensors: dict[str, Array] = {}

    def one_device(self) -> OneDevice:
        made = []
        for phase in self._ordered():
            tensor = self.meaning.real(phase.writes.tensor)
            if self.meaning.makers[tensor] is phase and self._can_evaluate(phase):
                self.tensors[tensor] = self._evaluate(phase)
                made.append(tensor)
        sizes, counts = self.extents.sizes, self.extents.counts
        units: dict[str, tuple[int | None, ...]] = {
            tensor: sizes[tensor] if tensor in sizes else counts[tensor] for tensor in self.tensors
        }
        return OneDevice(self.tensors, units, output_places(self.contents, made), self.shape)

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
            circle = ", which needs ".join(reversed(error.args[1]))
            raise ProgramError(
                f"$.phases: expected phases that can follow one another, got {circle}"
            ) from None
        return (phases[name] for name in order)

    def _can_evaluate(self, phase: Phase) -> bool:
        asked = phase.grid is not None or self.contents.computed(phase)
        return bool(asked) and all(map(self._provide, phase.reads))

    def _provide(self, template: Template) -> bool:
        """Make a random tensor for an input of the program; return whether the tensor is known."""
        tensor = self.meaning.real(template.tensor)
        if tensor not in self.tensors and tensor not in self.meaning.makers:
            self.tensors[tensor] = random_integers(self.rng, 0, PRIME, self._size(tensor))
        return tensor in self.tensors

    def _size(self, tensor: str) -> Shape:
        """Return the size of an input: by its cuts or the operator's shape, else two per slice."""
        if tensor in self.extents.sizes:
            return self.extents.sizes[tensor]
        if tensor in LINEAR and self.shape:
            return tuple(self.linear[dim] for dim in tensor_dims(tensor) if dim in self.shape)
        return tuple(LENGTH * count for count in self.extents.counts[tensor])

    def _evaluate(self, phase: Phase) -> Array:
        """Return the tensor that a phase makes."""
        writes, looped = phase.writes, self._looped(phase)
        size = self.extents.sizes.get(self.meaning.real(writes.tensor))
        pieces = []
        for slices in self._turns(phase, looped):
            arrays = []
            for template in phase.reads:
                whole = self.tensors[self.meaning.real(template.tensor)]
                arrays.append(whole[self.extents.window(template, whole.shape, slices)])
            window = None if size is None else self.extents.window(writes, size, slices)
            shape = None if window is None else [line.stop - line.start for line in window]
            pieces.append((slices, stand_in(phase, arrays, shape)))
        if size is None:
            size = self._made_size(writes, looped, [piece for _, piece in pieces])
        made = np.full(size, _STARTS[phase.reduction], np.int64)
        for slices, piece in pieces:
            window = self.extents.window(writes, size, slices)
            made[window] = _UFUNCS[phase.reduction](made[window], piece)
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
        counts = self.extents.counts[writes.tensor]
        return tuple(
            length * count if not dim or dim in looped else length
            for (dim, _), length, count in zip(writes.entries, shapes.pop(), counts, strict=True)
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
        lengths = [self.extents.lengths(template, axis) for template, axis, _ in uses]
        first = lengths[0]
        return any(
            len(line) != (phase.grid or {})[dim]
            or any(a * first[0] != b * line[0] for a, b in zip(line, first, strict=True))
            for line in lengths
        )
