"""The data that the names of a program require in the explorer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from itertools import chain, pairwise, product
from typing import Any

from oracle.contents import (
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
from primepar.schedule.meaning import Box, Meaning, Phase, Place
from primepar.schedule.program import Compute, Program

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
    """The names of one program: the places of blocks, and the contents that they must have."""

    def __init__(self, program: Program) -> None:
        self.program, self.meaning = program, Meaning(program)
        self._cuts: dict[tuple[str, int], list[list[int]]] = {}
        """Tensor and number of dims -> where it is cut along each; a name may have other dims than
        the tensor that it is `of`, and then has no cell in common with it."""
        for name, tensor in (program.tensors or {}).items():
            key = tensor.of or name, len(tensor.cuts)
            tensor_cuts = self._cuts.setdefault(key, [[] for _ in tensor.cuts])
            for positions, added in zip(tensor_cuts, tensor.cuts, strict=True):
                positions[:] = sorted({*positions, *added})
        self._blocks: dict[str, tuple[Lengths, tuple[Corner, ...]]] = {}

    def maker(self, block: str) -> Phase | None:
        """The phase that makes a block; None for data from outside and for scratch."""
        place = self.meaning.place(block)
        return None if place is None else self.meaning.makers.get(place.tensor)

    def summed_by(self, block: str) -> str:
        """The reduction that joins what is added to a block, or to the block of a scratch."""
        phase = self.maker(block.rstrip("'"))
        return phase.reduction if phase else "sum"

    def cells(self, block: str) -> tuple[Lengths, tuple[Corner, ...]]:
        """Lengths of a block's intervals, and the first elements of its cells in the tensor."""
        if block not in self._blocks:
            place = self.meaning.place(block)
            self._blocks[block] = ((), ((),)) if place is None else self._cells(place)
        return self._blocks[block]

    def _cells(self, place: Place) -> tuple[Lengths, tuple[Corner, ...]]:
        cuts = self._cuts.get((place.tensor, len(place.box)))
        cuts = cuts or [list(range(a, b + 1)) for a, b in place.box]
        bounds = [
            [first, *(cut for cut in positions if first < cut < end), end]
            for (first, end), positions in zip(place.box, cuts, strict=True)
        ]
        lengths = tuple(tuple(b - a for a, b in pairwise(ends)) for ends in bounds)
        corner = tuple(first for first, _ in place.box)
        return lengths, tuple(
            tuple(a + b for a, b in zip(corner, offset, strict=True)) for offset in starts(lengths)
        )

    def overlap(self, blocks: tuple[str, ...]) -> bool:
        """Whether two of some blocks have a cell of a tensor in common."""
        cells = [
            (place.tensor, corner)
            for block in blocks
            if (place := self.meaning.place(block)) is not None
            for corner in self.cells(block)[1]
        ]
        return len(set(cells)) < len(cells)

    def datum(self, block: str) -> CellSums:
        """The content of a block that the program did not write."""
        place, (lengths, corners) = self.meaning.place(block), self.cells(block)
        tensor = block if place is None else place.tensor
        source = "own" if self.maker(block) is None else "before"
        source = source if place else "loose"
        return CellSums(lengths, tuple(single([(source, tensor, corner)]) for corner in corners))

    def blank(self, block: str) -> CellSums:
        """Zeros of a block's size."""
        lengths, corners = self.cells(block)
        return CellSums(lengths, (EMPTY,) * len(corners))

    def product(self, phase: Phase, cell: Cell) -> CellSums:
        """The content that one sub-operator computes."""
        written, source = phase.writes.block(dict(cell)), (phase.name, _without_copies(phase, cell))
        lengths, corners = self.cells(written)
        place = self.meaning.place(written)
        assert place is not None
        return CellSums(
            lengths, tuple(single([(source, place.tensor, corner)]) for corner in corners)
        )

    @cached_property
    def _terms(self) -> dict[tuple[str, Corner], dict[Atom, None]]:
        """(tensor, first element of a cell) -> the terms that it requires."""
        terms: dict[tuple[str, Corner], dict[Atom, None]] = {}
        for phase in self.meaning.makers.values():
            for cell in self._all_cells(phase):
                for ((atom, _),) in self.product(phase, cell).cells:
                    terms.setdefault((atom[1], atom[2]), {})[atom] = None
        return terms

    def _all_cells(self, phase: Phase) -> Iterator[Cell]:
        """The sub-operators of the grid; without a grid those that the program computes."""
        if phase.grid is not None:
            yield from cells_of(phase.grid)
            return
        for node in chain.from_iterable(self.program.programs):
            if isinstance(node, Compute) and node.phase == phase.name and node.sub_operator:
                yield cell_of(node.sub_operator)

    def required(self, block: str, before: frozenset[tuple[str, Corner]]) -> CellSums:
        """What a block must hold: its own data, or every product, scaled, plus earlier data."""
        phase = self.maker(block)
        if phase is None:
            return self.datum(block)
        place, (lengths, corners) = self.meaning.place(block), self.cells(block)
        assert place is not None
        cells = []
        for corner in corners:
            terms = self._terms.get((place.tensor, corner), ())
            sums = [single([term], phase.scale) for term in terms]
            if (place.tensor, corner) in before:
                sums.append(single([("before", place.tensor, corner)]))
            cells.append(reduced(phase.reduction, sums) if sums else EMPTY)
        return CellSums(lengths, tuple(cells))

    def is_part(self, got: CellSums, required: CellSums) -> bool:
        """Whether all terms are required in their cells, with some missing or too often."""
        if got.lengths != required.lengths:
            return not any(got.cells)
        pairs = zip(got.cells, required.cells, strict=True)
        return all(set(atoms(actual)) <= set(atoms(expected)) for actual, expected in pairs)

    def is_uniform(self, content: CellSums, box: Box) -> bool:
        """Whether all cells of a block are sums of the same terms of the same tensors."""
        corner = tuple(first for first, _ in box)
        kinds = {
            self._kind(cell, tuple(a + b for a, b in zip(corner, offset, strict=True)))
            for cell, offset in zip(content.cells, starts(content.lengths), strict=True)
        }
        return len(kinds) == 1

    def _kind(self, cell: Sum, position: Corner) -> frozenset[Any]:
        return frozenset((self._kind_of(atom, position), times) for atom, times in cell)

    def _kind_of(self, atom: Atom, position: Corner) -> Any:
        if atom[0] in ("max", "min"):
            return (atom[0], frozenset(self._kind(cell, position) for cell in atom[1]))
        source, tensor, corner = atom
        away = tuple(a - b for a, b in zip(corner, position, strict=False))
        if isinstance(source, str):
            return (source, tensor, away)
        name, slices = source
        widths = dict(self.meaning.phases[name].writes.entries)
        open_ = tuple(
            (dim, index % widths[dim] if dim in widths else index) for dim, index in slices
        )
        return (name, open_, tensor, away)


def _without_copies(phase: Phase, cell: Cell) -> Cell:
    """A sub-operator without the dims that only count copies."""
    return tuple((dim, index) for dim, index in cell if dim in phase.dims)
