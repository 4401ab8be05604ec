"""The contents of blocks in the explorer: for every cell of a block, a sum of terms.

Cells are the boxes into which all cuts of a tensor together divide it. A term is one sub-operator,
or data from before the program, at one cell. A maximum or minimum is a term with a set of sums.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import accumulate, chain, pairwise, product
from typing import Any, NamedTuple

from primepar.schedule.signature import Scale

Atom = tuple[Any, ...]
"""(source, tensor, first element along each dim), or ("max" or "min", a set of sums)."""
Sum = frozenset[tuple[Atom, Scale]]
Lengths = tuple[tuple[int, ...], ...]
"""For each dim the number of elements of each of its intervals."""
EMPTY: Sum = frozenset()


class CellSums(NamedTuple):
    """Sums of the cells of a block, row-major."""

    lengths: Lengths
    cells: tuple[Sum, ...]


ZERO = CellSums((), ())
"""Zeros, of whatever size."""


def single(atoms: Iterable[Atom], scale: Scale = 1) -> Sum:
    """Every atom once, or `scale` times."""
    return frozenset((atom, scale) for atom in atoms)


def where(atom: Atom) -> set[tuple[str, tuple[int, ...]]]:
    """The cells that a term is of; of an extremum those of all its sums."""
    if atom[0] in ("max", "min"):
        return {place for cell in atom[1] for inner, _ in cell for place in where(inner)}
    return {(atom[1], atom[2])}


def is_zero(content: CellSums) -> bool:
    """Whether there is nothing in any cell."""
    return not any(content.cells)


def sizes(content: CellSums) -> tuple[int, ...]:
    """Elements along each dim."""
    return tuple(map(sum, content.lengths))


def starts(lengths: Lengths) -> Iterator[tuple[int, ...]]:
    """First element of each cell, row-major."""
    return product(*(accumulate(line[:-1], initial=0) for line in lengths))


def finer(content: CellSums, cuts: Iterable[frozenset[int]]) -> CellSums:
    """The same content, cut at more elements of each dim."""
    dims = []
    for line, added in zip(content.lengths, cuts, strict=True):
        ends = {0, *accumulate(line)}
        dims.append(sorted(ends | {position for position in added if position < max(ends)}))
    old = dict(zip(starts(content.lengths), content.cells, strict=True))
    olds = [sorted(accumulate(line[:-1], initial=0)) for line in content.lengths]
    cells = []
    for corner in product(*(line[:-1] for line in dims)):
        around = tuple(
            max(start for start in line if start <= position)
            for line, position in zip(olds, corner, strict=True)
        )
        away = tuple(position - start for position, start in zip(corner, around, strict=True))
        cells.append(moved(old[around], away) if any(away) else old[around])
    return CellSums(tuple(tuple(b - a for a, b in pairwise(line)) for line in dims), tuple(cells))


def moved(cell: Sum, away: tuple[int, ...]) -> Sum:
    """The part of a cell that begins at an offset, as a cell of its own."""
    return frozenset((_moved(atom, away), times) for atom, times in cell)


def _moved(atom: Atom, away: tuple[int, ...]) -> Atom:
    if atom[0] in ("max", "min"):
        return (atom[0], frozenset(moved(cell, away) for cell in atom[1]))
    source, tensor, corner = atom
    if len(corner) != len(away):
        return atom
    return (source, tensor, tuple(a + b for a, b in zip(corner, away, strict=True)))


def alike(contents: list[CellSums]) -> list[CellSums] | None:
    """The same contents, cut into the same cells; None if their sizes differ."""
    formed = [content for content in contents if not is_zero(content)]
    if len({sizes(content) for content in formed}) > 1:
        return None
    if len({content.lengths for content in formed}) > 1:
        dims = zip(*(content.lengths for content in formed), strict=True)
        cuts = [frozenset(end for line in lines for end in accumulate(line)) for lines in dims]
        formed = [finer(content, cuts) for content in formed]
    if not formed:
        return contents
    blank = CellSums(formed[0].lengths, (EMPTY,) * len(formed[0].cells))
    rest = iter(formed)
    return [blank if is_zero(content) else next(rest) for content in contents]


def same(one: CellSums, other: CellSums) -> bool:
    """Whether two contents are equal, however they are cut."""
    if is_zero(one) or is_zero(other):
        return is_zero(one) and is_zero(other)
    both = alike([one, other])
    return both is not None and both[0].cells == both[1].cells


def scaled(content: CellSums, scale: Scale) -> CellSums:
    """The content times a coefficient."""
    if scale == 1:
        return content
    cells = (frozenset((atom, times * scale) for atom, times in cell) for cell in content.cells)
    return CellSums(content.lengths, tuple(cells))


def combined(reduction: str, contents: Iterable[CellSums]) -> CellSums:
    """The reduction of contents, cell by cell; a content that equals no other if sizes differ."""
    given = list(contents)
    if reduction == "sum":
        given = [content for content in given if not is_zero(content)]
    if not given:
        return ZERO
    formed = alike(given)
    if formed is None:
        senseless: Atom = ("of other sizes", frozenset(given), ())
        return CellSums((), (single([senseless]),))
    columns = zip(*(content.cells for content in formed), strict=True)
    return CellSums(formed[0].lengths, tuple(reduced(reduction, cells) for cells in columns))


def reduced(reduction: str, cells: Iterable[Sum]) -> Sum:
    """The reduction of several blocks in one cell."""
    if reduction == "sum":
        total: dict[Atom, Scale] = {}
        for atom, times in chain.from_iterable(cells):
            total[atom] = total.get(atom, 0) + times
        return frozenset(total.items())
    among: set[Sum] = set()
    for cell in cells:
        among |= _among(reduction, cell)
    return next(iter(among)) if len(among) == 1 else single([(reduction, frozenset(among))])


def _among(reduction: str, cell: Sum) -> frozenset[Sum]:
    """The operands of a maximum or minimum; any other sum is itself the only operand."""
    if len(cell) == 1:
        ((atom, times),) = cell
        if times == 1 and atom[0] == reduction:
            chosen: frozenset[Sum] = atom[1]
            return chosen
    return frozenset((cell,))


def atoms(cell: Sum) -> Iterator[Atom]:
    """Yield all terms of a sum, also those inside of maxima and minima."""
    for atom, _ in cell:
        if atom[0] in ("max", "min"):
            for one in atom[1]:
                yield from atoms(one)
        else:
            yield atom


def piece(content: CellSums, box: Iterable[tuple[int, int]]) -> CellSums:
    """The part of a block in a box, counted from the block's first element."""
    sides = list(box)
    cut = finer(content, [frozenset(side) for side in sides])
    cells = tuple(
        cell
        for corner, cell in zip(starts(cut.lengths), cut.cells, strict=True)
        if all(
            first <= position < end for position, (first, end) in zip(corner, sides, strict=True)
        )
    )
    return CellSums(
        tuple(
            tuple(b - a for a, b in pairwise(_ends(line)) if first <= a < end)
            for line, (first, end) in zip(cut.lengths, sides, strict=True)
        ),
        cells,
    )


def _ends(line: tuple[int, ...]) -> list[int]:
    return list(accumulate(line, initial=0))


def whole(parts: list[tuple[tuple[int, ...], CellSums]]) -> CellSums:
    """The content of adjacent blocks, each with its first element; they fill a box."""
    ends: list[set[int]] = [{0} for _ in parts[0][0]]
    for place, content in parts:
        for dim, (start, line) in enumerate(zip(place, content.lengths, strict=True)):
            ends[dim] |= {start + end for end in _ends(line)}
    cells: dict[tuple[int, ...], Sum] = {}
    for place, content in parts:
        cuts = [frozenset(stop - start for stop in dim if stop > start)
                for dim, start in zip(ends, place, strict=True)]  # fmt: skip
        fine = finer(content, cuts)
        for corner, cell in zip(starts(fine.lengths), fine.cells, strict=True):
            cells[tuple(a + b for a, b in zip(place, corner, strict=True))] = cell
    lengths = tuple(tuple(b - a for a, b in pairwise(sorted(dim))) for dim in ends)
    return CellSums(lengths, tuple(cells[corner] for corner in sorted(cells)))
