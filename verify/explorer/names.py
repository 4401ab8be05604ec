"""What the names of a program ask for in the explorer: the data that a block should hold."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from itertools import chain, pairwise, product
from typing import Any

from primepar.schedule.meaning import Box, Meaning, Phase, Place
from primepar.schedule.program import Compute, Program
from primepar.verify.explorer.contents import (
    EMPTY,
    Atom,
    CellSums,
    Lengths,
    Sum,
    atoms,
    reduced,
    single,
    starts,
)

Corner = tuple[int, ...]
Cell = tuple[tuple[str, int], ...]
"""A sub-operator: (dim, slice) in order of the names of the dims."""


def cell_of(sub_operator: Mapping[str, int]) -> Cell:
    """A sub-operator as a key."""
    return tuple(sorted(sub_operator.items()))


def cells_of(grid: Mapping[str, int]) -> Iterator[Cell]:
    """Every sub-operator of a grid."""
    for index in product(*(range(count) for count in grid.values())):
        yield tuple(sorted(zip(grid, index, strict=True)))


class BlockNames:
    """The names of one program: where blocks lie, and what should be in them."""

    def __init__(self, program: Program) -> None:
        self.program, self.meaning = program, Meaning(program)
        self._lines: dict[str, list[list[int]]] = {}
        for name, tensor in (program.tensors or {}).items():
            cuts = self._lines.setdefault(tensor.of or name, [])
            cuts += [[] for _ in range(len(tensor.cuts) - len(cuts))]
            for line, more in zip(cuts, tensor.cuts, strict=False):
                line[:] = sorted({*line, *more})
        self._blocks: dict[str, tuple[Lengths, tuple[Corner, ...]]] = {}

    def maker(self, block: str) -> Phase | None:
        """The phase that makes a block; None for data from outside and for scratch."""
        found = self.meaning.place(block)
        return None if found is None else self.meaning.makers.get(found.tensor)

    def summed_by(self, block: str) -> str:
        """The reduction that joins what is added to a block, or to the block of a scratch."""
        phase = self.maker(block.rstrip("'"))
        return phase.reduction if phase else "sum"

    def cells(self, block: str) -> tuple[Lengths, tuple[Corner, ...]]:
        """How long the intervals of a block are, and where its cells begin in its tensor."""
        if block not in self._blocks:
            found = self.meaning.place(block)
            self._blocks[block] = ((), ((),)) if found is None else self._cells(found)
        return self._blocks[block]

    def _cells(self, found: Place) -> tuple[Lengths, tuple[Corner, ...]]:
        lines = self._lines.get(found.tensor) or [list(range(a, b + 1)) for a, b in found.box]
        own = [
            [first, *(at for at in line if first < at < end), end]
            for (first, end), line in zip(found.box, lines, strict=True)
        ]
        lengths = tuple(tuple(b - a for a, b in pairwise(line)) for line in own)
        corner = tuple(first for first, _ in found.box)
        return lengths, tuple(
            tuple(a + b for a, b in zip(corner, at, strict=True)) for at in starts(lengths)
        )

    def overlap(self, blocks: tuple[str, ...]) -> bool:
        """Whether two of some blocks have a cell of a tensor in common."""
        found = [
            (at.tensor, corner)
            for block in blocks
            if (at := self.meaning.place(block)) is not None
            for corner in self.cells(block)[1]
        ]
        return len(set(found)) < len(found)

    def datum(self, block: str) -> CellSums:
        """What a block holds that the program did not make."""
        found, (lengths, corners) = self.meaning.place(block), self.cells(block)
        tensor = block if found is None else found.tensor
        source = "own" if self.maker(block) is None else "before"
        source = source if found else "loose"
        return CellSums(lengths, tuple(single([(source, tensor, corner)]) for corner in corners))

    def blank(self, block: str) -> CellSums:
        """Zeros of a block's size."""
        lengths, corners = self.cells(block)
        return CellSums(lengths, (EMPTY,) * len(corners))

    def product(self, phase: Phase, cell: Cell) -> CellSums:
        """What one sub-operator makes."""
        written, source = phase.writes.block(dict(cell)), (phase.name, _told(phase, cell))
        lengths, corners = self.cells(written)
        found = self.meaning.place(written)
        assert found is not None
        return CellSums(
            lengths, tuple(single([(source, found.tensor, corner)]) for corner in corners)
        )

    @cached_property
    def _due(self) -> dict[tuple[str, Corner], dict[Atom, None]]:
        """(tensor, where a cell begins) -> the terms that are due there."""
        due: dict[tuple[str, Corner], dict[Atom, None]] = {}
        for phase in self.meaning.makers.values():
            for cell in self._all_cells(phase):
                for ((atom, _),) in self.product(phase, cell).cells:
                    due.setdefault((atom[1], atom[2]), {})[atom] = None
        return due

    def _all_cells(self, phase: Phase) -> Iterator[Cell]:
        """Of a phase without a grid the sub-operators that the program has."""
        if phase.grid is not None:
            yield from cells_of(phase.grid)
            return
        for node in chain.from_iterable(self.program.programs):
            if isinstance(node, Compute) and node.phase == phase.name and node.sub_operator:
                yield cell_of(node.sub_operator)

    def due(self, block: str, before: frozenset[tuple[str, Corner]]) -> CellSums:
        """What a block must hold: its own data, or every product once and what was there before."""
        phase = self.maker(block)
        if phase is None:
            return self.datum(block)
        found, (lengths, corners) = self.meaning.place(block), self.cells(block)
        assert found is not None
        cells = []
        for corner in corners:
            terms = list(self._due.get((found.tensor, corner), ()))
            if (found.tensor, corner) in before:
                terms.append(("before", found.tensor, corner))
            sums = [single([term]) for term in terms]
            cells.append(reduced(phase.reduction, sums) if sums else EMPTY)
        return CellSums(lengths, tuple(cells))

    def is_part(self, got: CellSums, due: CellSums) -> bool:
        """Whether these are terms that are due, each in its cell, some missing or too often."""
        if got.lengths != due.lengths:
            return not any(got.cells)
        pairs = zip(got.cells, due.cells, strict=True)
        return all(set(atoms(have)) <= set(atoms(want)) for have, want in pairs)

    def is_one_kind(self, content: CellSums, box: Box) -> bool:
        """Whether all cells of a block are sums of the same parts of the same tensors."""
        corner = tuple(first for first, _ in box)
        kinds = {
            self._kind(cell, tuple(a + b for a, b in zip(corner, at, strict=True)))
            for cell, at in zip(content.cells, starts(content.lengths), strict=True)
        }
        return len(kinds) == 1

    def _kind(self, cell: Sum, at: Corner) -> frozenset[Any]:
        return frozenset((self._kind_of(atom, at), times) for atom, times in cell)

    def _kind_of(self, atom: Atom, at: Corner) -> Any:
        if atom[0] in ("max", "min"):
            return (atom[0], frozenset(self._kind(cell, at) for cell in atom[1]))
        source, tensor, corner = atom
        away = tuple(a - b for a, b in zip(corner, at, strict=False))
        if isinstance(source, str):
            return (source, tensor, away)
        name, told = source
        widths = dict(self.meaning.phases[name].writes.entries)
        open_ = tuple((dim, at % widths[dim] if dim in widths else at) for dim, at in told)
        return (name, open_, tensor, away)


def _told(phase: Phase, cell: Cell) -> Cell:
    """A sub-operator without the dims that only count copies of it."""
    return tuple((dim, at) for dim, at in cell if dim in phase.dims)
