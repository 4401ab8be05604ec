"""Layouts: which blocks of a tensor every rank holds, and the cells in which two layouts meet."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator
from collections.abc import Sequence as Several
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from itertools import pairwise, product
from math import lcm, prod
from typing import NamedTuple

from primepar.errors import SequenceError
from primepar.schedule.operators import Index, block_name
from primepar.schedule.program import Free, IRecv, ISend, Program, Wait

Slices = tuple[slice, ...]


@dataclass(frozen=True)
class Layout:
    """`held[rank]` lists the blocks of a tensor whose dims are cut into `grid` slices each."""

    grid: tuple[int, ...]
    held: tuple[tuple[Index, ...], ...]

    @classmethod
    def of(cls, grid: Several[int], held: Several[frozenset[Index]]) -> Layout:
        """Build a layout from sets of blocks."""
        return cls(tuple(grid), tuple(tuple(sorted(blocks)) for blocks in held))

    @property
    def ranks(self) -> int:
        """Number of devices."""
        return len(self.held)

    def cuts(self, dim: int) -> tuple[Fraction, ...]:
        """Where a dim is cut, from 0 to 1: not between slices that no device holds separately."""
        count = self.grid[dim]
        holders = [set[tuple[int, Index]]() for _ in range(count)]
        for rank, blocks in enumerate(self.held):
            for index in blocks:
                holders[index[dim]].add((rank, (*index[:dim], *index[dim + 1 :])))
        # Between two slices that the same devices hold there is no cut: of rows (0, 1, 2, 3) on
        # ranks (0, 0, 1, 1) the cuts are 0, 1/2 and 1.
        inner = (
            Fraction(cut, count) for cut in range(1, count) if holders[cut - 1] != holders[cut]
        )
        return (Fraction(0), *inner, Fraction(1))

    def coarsest(self) -> Layout:
        """The same layout in the largest equal blocks that devices hold whole or not at all."""
        dims = range(len(self.grid))
        grid = tuple(lcm(*(cut.denominator for cut in self.cuts(dim))) for dim in dims)
        ratios = tuple(zip(grid, self.grid, strict=True))
        held = (
            {
                tuple(part * few // many for part, (few, many) in zip(index, ratios, strict=True))
                for index in blocks
            }
            for blocks in self.held
        )
        return Layout(grid, tuple(tuple(sorted(blocks)) for blocks in held))

    def turned(self) -> Layout:
        """The layout of the transposed tensor."""
        return Layout(self.grid[::-1], tuple(tuple(b[::-1] for b in held) for held in self.held))

    def slices(self, rank: int, dim: int) -> tuple[int, ...]:
        """Slices of one dim that `rank` holds."""
        return self._slices[dim][self.held[rank]]

    @cached_property
    def _slices(self) -> list[dict[tuple[Index, ...], tuple[int, ...]]]:
        """For each dim the slices of some blocks: many ranks hold the same ones."""
        return [
            {held: tuple(sorted({index[dim] for index in held})) for held in set(self.held)}
            for dim in range(len(self.grid))
        ]

    def own_shape(self, rank: int, whole: Several[int]) -> tuple[int, ...]:
        """Shape of what `rank` holds of a tensor of shape `whole`."""
        counts = (len(self.slices(rank, dim)) for dim in range(len(self.grid)))
        return tuple(w * n // c for w, n, c in zip(whole, counts, self.grid, strict=True))

    def whole_shape(self, rank: int, local: Several[int]) -> tuple[int, ...]:
        """Shape of the tensor of which `rank` holds a part of shape `local`."""
        counts = (len(self.slices(rank, dim)) for dim in range(len(self.grid)))
        return tuple(o * c // n for o, n, c in zip(local, counts, self.grid, strict=True))

    def elements(self, rank: int, dim: int, size: int) -> tuple[range, ...]:
        """Elements of a dim of `size` that `rank` holds, slice by slice."""
        count = self.grid[dim]
        slices = self.slices(rank, dim)
        return tuple(range(part * size // count, (part + 1) * size // count) for part in slices)

    def peers_along(self, dim: int) -> tuple[tuple[int, ...], ...]:
        """Groups of ranks that together hold every slice of `dim` once, all else being equal.

        One group for each choice of the other dims' slices and each replica; in order of `dim`.
        """
        lines: dict[tuple[object, ...], list[list[int]]] = {}
        copies = Counter[tuple[object, ...]]()
        order = sorted(range(self.ranks), key=lambda rank: (self.slices(rank, dim), rank))
        for rank in order:
            every = tuple(self.slices(rank, d) for d in range(len(self.grid)))
            replicas = lines.setdefault((*every[:dim], *every[dim + 1 :]), [])
            # The first line without these slices: each earlier rank with them is in one before it.
            replica = copies[every]
            copies[every] += 1
            if replica == len(replicas):
                replicas.append([])
            replicas[replica].append(rank)
        return tuple(tuple(line) for replicas in lines.values() for line in replicas)


class Piece(NamedTuple):
    """The place of a cell in the whole tensor, and in what a rank holds of it."""

    whole: Slices
    local: Slices

    @property
    def shape(self) -> tuple[int, ...]:
        """Elements of the cell along every dim."""
        return tuple(along.stop - along.start for along in self.local)


@dataclass(frozen=True)
class Cells:
    """A tensor cut along each dim at `cuts`, from 0 to 1, into segments that need not be equal.

    A cell has the numbers of its segments as its index. Cells are the common pieces of several
    layouts: every device holds each of them whole or not at all, so what moves between two
    layouts is a set of cells. A dim that one layout cuts in halves and another in thirds is cut
    at 1/3, 1/2 and 2/3, and its four segments are 2, 1, 1 and 2 sixths of it.
    """

    cuts: tuple[tuple[Fraction, ...], ...]

    @classmethod
    def of(cls, *layouts: Layout) -> Cells:
        """The largest cells that every device holds whole or not at all in each of the layouts."""
        dims = range(len(layouts[0].grid))
        cuts = ({cut for layout in layouts for cut in layout.cuts(dim)} for dim in dims)
        return cls(tuple(tuple(sorted(places)) for places in cuts))

    @classmethod
    def even(cls, grid: Several[int]) -> Cells:
        """Equal cells: the blocks of a grid."""
        return cls(tuple(tuple(Fraction(cut, n) for cut in range(n + 1)) for n in grid))

    @cached_property
    def grid(self) -> tuple[int, ...]:
        """Equal slices of each dim that the cuts fall between."""
        return tuple(lcm(*(cut.denominator for cut in cuts)) for cuts in self.cuts)

    @cached_property
    def parts(self) -> int:
        """Cells of the grid: all that the tensor has."""
        return prod(self.grid)

    @cached_property
    def _lengths(self) -> tuple[tuple[int, ...], ...]:
        """Slices of the grid in every segment of each dim."""
        return tuple(
            tuple(int((b - a) * n) for a, b in pairwise(cuts))
            for cuts, n in zip(self.cuts, self.grid, strict=True)
        )

    def count(self, cell: Index) -> int:
        """How many cells of the grid a cell is: of `parts`."""
        pairs = zip(self._lengths, cell, strict=True)
        return prod(lengths[segment] for lengths, segment in pairs)

    def held(self, layout: Layout, rank: int) -> tuple[Index, ...]:
        """Cells that a rank holds."""
        cells = {cell for index in layout.held[rank] for cell in self._within(index, layout.grid)}
        return tuple(sorted(cells))

    def _within(self, block: Index, grid: Index) -> product[Index]:
        """Cells of a block; one that is larger holds its neighbours too, on the same devices."""
        return product(
            *(
                range(
                    bisect_right(cuts, Fraction(part, count)) - 1,
                    bisect_left(cuts, Fraction(part + 1, count)),
                )
                for cuts, part, count in zip(self.cuts, block, grid, strict=True)
            )
        )

    def bounds(self, shape: Several[int]) -> tuple[tuple[int, ...], ...]:
        """Elements of a tensor of `shape` between which each dim is cut, from 0 to its size."""
        pairs = zip(self.cuts, shape, strict=True)
        return tuple(tuple(int(cut * size) for cut in cuts) for cuts, size in pairs)

    def pieces(self, layout: Layout, rank: int, shape: Several[int]) -> dict[Index, Piece]:
        """The places of a rank's cells in a tensor of `shape`, and in the rank's local tensor.

        The local tensor is its cells, joined in the order of their segments along every dim.
        """
        cells = self.held(layout, rank)
        places = [
            _places({cell[dim] for cell in cells}, bounds)
            for dim, bounds in enumerate(self.bounds(shape))
        ]
        pieces = {}
        for cell in cells:
            pairs = [along[segment] for along, segment in zip(places, cell, strict=True)]
            whole, local = (tuple(pair[side] for pair in pairs) for side in (0, 1))
            pieces[cell] = Piece(whole, local)
        return pieces


def _places(segments: set[int], bounds: tuple[int, ...]) -> dict[int, tuple[slice, slice]]:
    """Segment -> its elements of the whole dim, and of the joined segments that are held."""
    places, end = {}, 0
    for segment in sorted(segments):
        whole = slice(bounds[segment], bounds[segment + 1])
        start, end = end, end + whole.stop - whole.start
        places[segment] = whole, slice(start, end)
    return places


# The way of a tensor from one layout to another: what moves, and the program that moves it.

Held = list[tuple[Index, ...]]
Hop = tuple[int, int, Index]
"""Source, target and cell."""


@lru_cache(maxsize=1024)
def redistribution(source: Layout, target: Layout, tensor: str = "O") -> Program:
    """Program that takes a tensor from one layout to another (PrimePar, equations 8 and 9).

    Its blocks are the cells in which the two layouts meet, `Cells.of(source, target)`, so that
    devices with one block each send one another one message at most. A cell that is already there
    stays; any other comes from the holder that has sent least so far, the largest cells first, so
    that replicas share the work. Raises `SequenceError` if the layouts have other numbers of ranks
    or leave a block nowhere.
    """
    if source.ranks != target.ranks:
        raise SequenceError(
            f"redistribution: expected layouts over the same devices, got {source.ranks} and "
            f"{target.ranks}: give both operators sequences for one mesh"
        )
    cells = Cells.of(source, target)
    here, needed = _held(cells, source), _held(cells, target)
    hops, _ = _hops(cells, here, needed)
    messages = _messages(hops, source.ranks, tensor)
    programs = tuple(
        (
            *posts,
            *(Wait(post.request) for post in posts),
            *(Free(block_name(tensor, index)) for index in sorted(set(before) - set(after))),
        )
        for posts, before, after in zip(messages, here, needed, strict=True)
    )
    return Program(
        format="primepar-program",
        version=1,
        ranks=source.ranks,
        programs=programs,
        initial=_named(here, tensor),
        final=_named(needed, tensor),
    )


@lru_cache(maxsize=4096)
def moved(source: Layout, target: Layout) -> Fraction:
    """What a redistribution sends, as a part of the tensor: all that a device lacks."""
    if source == target:
        return Fraction(0)
    cells = Cells.of(source, target)
    missing = _missing(_held(cells, source), _held(cells, target))
    return Fraction(sum(cells.count(index) for _, index in missing), cells.parts)


@lru_cache(maxsize=4096)
def sent(source: Layout, target: Layout) -> tuple[Fraction, ...]:
    """What every device sends in a redistribution, as a part of the tensor."""
    if source == target:
        return (Fraction(0),) * source.ranks
    cells = Cells.of(source, target)
    _, sent_cells = _hops(cells, _held(cells, source), _held(cells, target))
    return tuple(Fraction(count, cells.parts) for count in sent_cells)


def _held(cells: Cells, layout: Layout) -> Held:
    """The cells of every rank; ranks with the same blocks share them."""
    first = {blocks: rank for rank, blocks in enumerate(layout.held)}
    known = {blocks: cells.held(layout, rank) for blocks, rank in first.items()}
    return [known[blocks] for blocks in layout.held]


def _named(held: Held, tensor: str) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(block_name(tensor, index) for index in blocks) for blocks in held)


def _missing(here: Held, needed: Held) -> Iterator[tuple[int, Index]]:
    """(target, cell) for every cell that is not where it is needed."""
    for target, (before, after) in enumerate(zip(here, needed, strict=True)):
        for index in sorted(set(after) - set(before)):
            yield target, index


def _hops(cells: Cells, here: Held, needed: Held) -> tuple[list[Hop], list[int]]:
    """The hops, and how many cells of the grid every rank sends."""
    holders: dict[Index, list[int]] = {}
    for rank, blocks in enumerate(here):
        for index in blocks:
            holders.setdefault(index, []).append(rank)
    sizes = {index: cells.count(index) for index in holders}
    missing = sorted(
        _missing(here, needed), key=lambda pair: sizes.get(pair[1], cells.parts), reverse=True
    )
    sent = [0] * len(here)
    hops = []
    for target, index in missing:
        if index not in holders:
            raise SequenceError(
                f"redistribution: expected block {index} on some device, got it on none"
            )
        # Replicas share the work: of two holders, the one that has sent less. Large cells first, as
        # a small one still evens out what a large one left.
        source = min(holders[index], key=sent.__getitem__)
        sent[source] += sizes[index]
        hops.append((source, target, index))
    return hops, sent


def _messages(hops: list[Hop], ranks: int, tensor: str) -> list[list[ISend | IRecv]]:
    """What every rank posts, in the order of the hops."""
    posts: list[list[ISend | IRecv]] = [[] for _ in range(ranks)]
    for source, target, index in hops:
        block = block_name(tensor, index)
        posts[source].append(ISend(target, block, request=f">{target}{block}"))
        posts[target].append(IRecv(source, block, request=f"<{source}{block}"))
    return posts
