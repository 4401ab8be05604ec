"""Sizes of a program's tensors in elements, and the slices of its templates in them."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

from primepar.errors import ProgramError
from primepar.reference.emulator.expected_contents import Contents
from primepar.schedule.meaning import Phase
from primepar.schedule.operators import Dim, Linear, tensor_dims
from primepar.schedule.program import Program
from primepar.schedule.signature import Template

LINEAR = ("I", "W", "O", "dI", "dW", "dO")
Shape = tuple[int, ...]
Window = tuple[slice, ...]


def cut_sizes(program: Program) -> dict[str, Shape]:
    """Return the sizes of tensors with declared cuts. Raises `ProgramError` if two differ."""
    sizes: dict[str, Shape] = {}
    for name, known in (program.tensors or {}).items():
        size = tuple(cuts[-1] for cuts in known.cuts)
        real = known.of or name
        if sizes.setdefault(real, size) != size:
            raise ProgramError(
                f"$.tensors.{name}: expected the cuts of a tensor of size "
                f"{list(sizes[real])}, as {real} is elsewhere, got {list(size)}"
            )
    return sizes


def linear_sizes(program: Program, grid: Mapping[Dim, int]) -> dict[Dim, int]:
    """Return the elements along the dims of the linear operator: by its shape or its cuts.

    Without both a slice has two elements. Raises `ProgramError` if shape and cuts differ,
    `ShapeError` if the grid does not divide them.
    """
    declared, cut = dict(program.shape or {}), cut_sizes(program)
    for tensor in LINEAR:
        named = [dim for dim in tensor_dims(tensor) if dim in grid]
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


def slice_counts(contents: Contents) -> dict[str, Shape]:
    """Return the blocks along each axis of tensors without cuts: the number that phases use.

    Raises `ProgramError` if a name has another number of indices elsewhere, or is cut under another
    name.
    """
    counts_by_tensor: dict[str, Shape] = {}
    program = contents.program
    aliases = {known.of: name for name, known in (program.tensors or {}).items() if known.of}
    for phase in contents.meaning.phases.values():
        grid = slices_of(contents, phase)
        for template in (*phase.reads, phase.writes):
            tensor = template.tensor
            if not phase.dims <= grid.keys() or tensor in (program.tensors or {}):
                continue
            if tensor in aliases:
                raise ProgramError(
                    f"$.tensors: expected cuts of {tensor}, of which {aliases[tensor]} is, got none"
                )
            counts = _counts(template, grid)
            known = counts_by_tensor.setdefault(tensor, counts)
            if len(known) != len(counts):
                raise ProgramError(
                    f"$.phases.{phase.name}: expected {len(known)} indices of {tensor}, as "
                    f"elsewhere, got {len(counts)}"
                )
            counts_by_tensor[tensor] = tuple(map(max, known, counts))
    return counts_by_tensor


def _counts(template: Template, grid: Mapping[str, int]) -> Shape:
    return tuple(-(-grid[dim] // number) if dim else number + 1 for dim, number in template.entries)


def slices_of(contents: Contents, phase: Phase) -> Mapping[str, int]:
    """Return the number of slices of each dim of a phase: its grid, or those it computes."""
    if phase.grid is not None:
        return phase.grid
    counts: dict[str, int] = {}
    for slices in contents.computed(phase):
        for dim, number in slices.items():
            counts[dim] = max(counts.get(dim, 0), number + 1)
    return counts


class Extents:
    """Sizes of tensors in elements, and the windows of blocks in them."""

    def __init__(self, contents: Contents) -> None:
        self.sizes = cut_sizes(contents.program)
        self.counts = slice_counts(contents)
        tensors = contents.program.tensors or {}
        self._cuts = {name: known.cuts for name, known in tensors.items()}

    def lengths(self, template: Template, axis: int) -> list[int]:
        """Return the elements of each slice along an axis; without cuts all slices count as one."""
        if template.tensor in self._cuts:
            return [end - first for first, end in pairwise(self._cuts[template.tensor][axis])]
        return [1] * self.counts[template.tensor][axis]

    def window(self, template: Template, size: Shape, slices: Mapping[str, int]) -> Window:
        """Return the slices of a template in a tensor of a given size.

        A dim that `slices` does not name is not sliced. Raises `ProgramError` for a slice that the
        tensor does not have.
        """
        window = []
        for axis, (dim, number) in enumerate(template.entries):
            if dim and dim not in slices:
                window.append(slice(0, size[axis]))
                continue
            index, lengths = slices[dim] // number if dim else number, self.lengths(template, axis)
            if index >= len(lengths):
                raise ProgramError(
                    f"$.tensors: expected slice {index} along dim {axis} of {template.tensor}, "
                    f"got {len(lengths)} slices"
                )
            unit = size[axis] // sum(lengths)
            first = sum(lengths[:index]) * unit
            window.append(slice(first, first + lengths[index] * unit))
        return tuple(window)
