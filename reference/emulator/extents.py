"""How many elements the tensors of a program have, and where the slices of its templates lie."""

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
    """Tensor -> its size, where its cuts are told. Raises `ProgramError` if two of them differ."""
    found: dict[str, Shape] = {}
    for name, known in (program.tensors or {}).items():
        size = tuple(cuts[-1] for cuts in known.cuts)
        real = known.of or name
        if found.setdefault(real, size) != size:
            raise ProgramError(
                f"$.tensors.{name}: expected the cuts of a tensor of size "
                f"{list(found[real])}, as {real} is elsewhere, got {list(size)}"
            )
    return found


def linear_sizes(program: Program, grid: Mapping[Dim, int]) -> dict[Dim, int]:
    """Elements along the dims of the linear operator: as told by its shape, its cuts, or two each.

    Raises `ProgramError` if shape and cuts differ, `ShapeError` if the grid does not divide them.
    """
    told, cut = dict(program.shape or {}), cut_sizes(program)
    for tensor in LINEAR:
        named = [dim for dim in tensor_dims(tensor) if dim in grid]
        for dim, size in zip(named, cut.get(tensor, ()), strict=False):
            if told.setdefault(dim, size) != size:
                raise ProgramError(
                    f"$.tensors.{tensor}: expected {told[dim]} elements along {dim}, as elsewhere, "
                    f"got {size}"
                )
    sizes = {dim: told.get(dim, 2 * count) for dim, count in grid.items()}
    if grid and not cut:
        Linear(**{"M": 2, "N": 2, "K": 2, **told, **sizes}).check_divides(grid)
    return {**told, **sizes}


def slice_counts(contents: Contents) -> dict[str, Shape]:
    """Tensor -> blocks along each axis, where no cuts are told: as many as phases use.

    Raises `ProgramError` if a name has other indices elsewhere, or is cut under another name.
    """
    found: dict[str, Shape] = {}
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
            known = found.setdefault(tensor, counts)
            if len(known) != len(counts):
                raise ProgramError(
                    f"$.phases.{phase.name}: expected {len(known)} indices of {tensor}, as "
                    f"elsewhere, got {len(counts)}"
                )
            found[tensor] = tuple(map(max, known, counts))
    return found


def _counts(template: Template, grid: Mapping[str, int]) -> Shape:
    return tuple(-(-grid[dim] // number) if dim else number + 1 for dim, number in template.entries)


def slices_of(contents: Contents, phase: Phase) -> Mapping[str, int]:
    """Slices of each dim of a phase: its grid, or as many as the program computes."""
    if phase.grid is not None:
        return phase.grid
    found: dict[str, int] = {}
    for slices in contents.computed(phase):
        for dim, at in slices.items():
            found[dim] = max(found.get(dim, 0), at + 1)
    return found


class Extents:
    """Sizes of tensors in elements, and the windows of blocks in them."""

    def __init__(self, contents: Contents) -> None:
        self.sizes = cut_sizes(contents.program)
        self.counts = slice_counts(contents)
        tensors = contents.program.tensors or {}
        self._cuts = {name: known.cuts for name, known in tensors.items()}

    def lengths(self, template: Template, axis: int) -> list[int]:
        """Elements of each slice along an axis; ones where no cuts are told, as all are alike."""
        if template.tensor in self._cuts:
            return [end - first for first, end in pairwise(self._cuts[template.tensor][axis])]
        return [1] * self.counts[template.tensor][axis]

    def window(self, template: Template, size: Shape, slices: Mapping[str, int]) -> Window:
        """Where a template lies in a tensor of that size; dims that `slices` leaves out are whole.

        Raises `ProgramError` for a slice that the tensor does not have.
        """
        found = []
        for axis, (dim, number) in enumerate(template.entries):
            if dim and dim not in slices:
                found.append(slice(0, size[axis]))
                continue
            at, lengths = slices[dim] // number if dim else number, self.lengths(template, axis)
            if at >= len(lengths):
                raise ProgramError(
                    f"$.tensors: expected slice {at} along dim {axis} of {template.tensor}, "
                    f"got {len(lengths)} slices"
                )
            unit = size[axis] // sum(lengths)
            first = sum(lengths[:at]) * unit
            found.append(slice(first, first + lengths[at] * unit))
        return tuple(found)
