"""Shape, number of elements and dtype of the blocks of a program, by name."""

from __future__ import annotations

from math import prod

from primepar.errors import ProgramError
from primepar.schedule.meaning import Box, Meaning
from primepar.schedule.operators import parse_block, tensor_dims
from primepar.schedule.program import Program
from primepar.schedule.signature import multiplies

Shape = tuple[int, ...]
Slices = tuple[slice, ...]


class Shapes:
    """The blocks of one program: of its `tensors`, or of one linear operator."""

    def __init__(self, program: Program) -> None:
        self.meaning, self.tensors = Meaning(program), program.tensors or {}
        self._sizes = program.shape or {}
        grids = (program.grid or {}).values()
        self._grid = {dim: count for slices in grids for dim, count in slices.items()}
        self._known: dict[str, Shape] = {}

    def box(self, name: str) -> Box:
        """Return the place of a block in its tensor; a scratch block has that of its block."""
        place = self.meaning.place(name.rstrip("'"))
        return () if place is None else place.box

    def shape(self, name: str) -> Shape:
        """Return the shape of a block. Raises `ProgramError` if the program does not define it."""
        if name not in self._known:
            self._known[name] = self._find(name)
        return self._known[name]

    def _find(self, name: str) -> Shape:
        base = name.rstrip("'")
        if base.rpartition("[")[0] in self.tensors:
            return tuple(end - first for first, end in self.box(base))
        block = parse_block(base)
        dims = [dim for dim in tensor_dims(block.tensor) if dim in self._sizes] if block else []
        if not dims:
            raise ProgramError(
                f"program: expected the size of block {name} to execute it, got none: cut its "
                "tensor in tensors, or lower a linear operator with its shape"
            )
        return tuple(self._sizes[dim] // self._grid.get(dim, 1) for dim in dims)

    def elements(self, name: str) -> int:
        """Return the number of elements of a block."""
        return prod(self.shape(name))

    def wide(self, name: str) -> bool:
        """Return whether a block belongs to a tensor of sums or statistics (float32 at least)."""
        tensor = self.tensors.get(name.rstrip("'").rpartition("[")[0])
        return tensor is not None and tensor.wide

    def is_product(self, phase: str) -> bool:
        """Return whether a phase is a product of a linear operator."""
        return multiplies(self.meaning.phases[phase].kernel)

    def inside(self, part: str, whole: str) -> Slices:
        """Return the slices of a part in its block. Raises `ProgramError` if it is outside."""
        inner, outer = self.box(part), self.box(whole)
        place = tuple(
            slice(first - start, end - start)
            for (first, end), (start, _) in zip(inner, outer, strict=True)
        )
        shape = self.shape(whole)
        if any(line.start < 0 or line.stop > size for line, size in zip(place, shape, strict=True)):
            raise ProgramError(
                f"program: expected a part of block {whole}, got {part}, which is outside of it"
            )
        return place
