"""Tensors in layouts on emulated devices, and the programs that move and sum them.

A tensor in a layout is a list of arrays, what each rank holds of it: a block, or several put
together in the order of their slices.
"""

from __future__ import annotations

from collections.abc import Sequence as Several
from fractions import Fraction
from functools import lru_cache

import numpy as np

from primepar.errors import WrongDataError
from primepar.reference.blocks import Memory
from primepar.reference.executor import emulate
from primepar.reference.layers import Array, Tokens
from primepar.schedule.layout import Cells, Layout
from primepar.schedule.operators import Index, block_name, parse_block
from primepar.schedule.program import AllGather, AllReduce, Program, ReduceScatter
from primepar.schedule.redistribute import redistribution
from primepar.schedule.sequence import Sequence
from primepar.schedule.signature import Reduction

Blocks = list[Array]
Groups = tuple[tuple[int, ...], ...]


def elements(layout: Layout, rank: int, dim: int, size: int) -> Tokens:
    """The numbers of the elements of a dim of `size` that a rank holds."""
    parts = layout.elements(rank, dim, size)
    return np.concatenate([np.arange(part.start, part.stop) for part in parts])


def _window(layout: Layout, rank: int, shape: tuple[int, ...]) -> tuple[Tokens, ...]:
    """What selects the part of a rank from a tensor of that shape."""
    return np.ix_(*(elements(layout, rank, dim, size) for dim, size in enumerate(shape)))


def spread(array: Array, layout: Layout) -> Blocks:
    """What every rank holds of a whole tensor."""
    return [array[_window(layout, rank, array.shape)] for rank in range(layout.ranks)]


def whole(blocks: Blocks, layout: Layout) -> Array:
    """The whole tensor. Raises `WrongDataError` if two replicas of a block differ."""
    array = np.empty(layout.whole_shape(0, blocks[0].shape), blocks[0].dtype)
    for rank, block in reversed(list(enumerate(blocks))):
        array[_window(layout, rank, array.shape)] = block
    for rank, (own, block) in enumerate(zip(spread(array, layout), blocks, strict=True)):
        if not np.array_equal(own, block):
            raise WrongDataError(f"expected equal replicas of a block, got another on rank {rank}")
    return array


def named(tensor: str, block: Array, layout: Layout, rank: int, cells: Cells) -> Memory:
    """What a rank holds, cut into cells that go by their names."""
    pieces = cells.pieces(layout, rank, layout.whole_shape(rank, block.shape))
    return {block_name(tensor, index): block[piece.own] for index, piece in pieces.items()}


def joined(tensor: str, memory: Memory) -> Array:
    """The array that the named blocks of a tensor of two dims make together."""
    found: dict[Index, Array] = {}
    for name, array in memory.items():
        parsed = parse_block(name)
        if parsed is not None and parsed.tensor == tensor:
            found[parsed.index] = array
    for dim in (1, 0):
        lines: dict[Index, list[Array]] = {}
        for index in sorted(found):
            lines.setdefault(index[:dim], []).append(found[index])
        found = {index: np.concatenate(line, axis=dim) for index, line in lines.items()}
    return found[()]


class Devices:
    """Emulated devices that count the elements they send."""

    def __init__(self, ranks: int) -> None:
        self.sent = [Fraction(0)] * ranks

    def run(
        self, program: Program, memories: list[Memory], sequence: Sequence | None = None
    ) -> list[Memory]:
        """Memories after a program. Raises the `EmulationError` of what is wrong in it."""
        run = emulate(program, memories, sequence)
        self.sent = [sum(pair, Fraction(0)) for pair in zip(self.sent, run.sent, strict=True)]
        return run.memories

    def redistributed(self, blocks: Blocks, source: Layout, target: Layout) -> Blocks:
        """A tensor of two dims in another layout."""
        if source == target:
            return blocks
        cells = Cells.of(source, target)
        memories = [named("O", block, source, rank, cells) for rank, block in enumerate(blocks)]
        return [joined("O", held) for held in self.run(redistribution(source, target), memories)]

    def reduced(self, blocks: Blocks, groups: Groups, reduction: Reduction = "sum") -> Blocks:
        """Every rank's block reduced over its group; a rank in no group keeps its own."""
        groups = tuple(group for group in groups if len(group) > 1)
        if not groups:
            return blocks
        program = _all_reduce(len(blocks), groups, reduction)
        return [held["x"] for held in self.run(program, [{"x": block} for block in blocks])]

    def gathered(self, blocks: Blocks, lines: Groups) -> Blocks:
        """The blocks of every rank's line, one below the other in the line's order."""
        if all(len(line) == 1 for line in lines):
            return blocks
        run = self.run(_all_gather(len(blocks), lines), [{"x": block} for block in blocks])
        size = {rank: len(line) for line in lines for rank in line}
        return [
            np.concatenate([held[f"y{place}"] for place in range(size[rank])])
            for rank, held in enumerate(run)
        ]

    def summed_in_parts(self, blocks: Blocks, groups: Groups, parts: Several[int]) -> Blocks:
        """The sum over each group, of which a rank keeps one part of the rows.

        `parts[rank]` tells which: a group is cut into as many parts as its ranks name, and ranks
        that name the same part all have it.
        """
        groups = tuple(group for group in groups if len(group) > 1)
        counts = {rank: len({parts[r] for r in group}) for group in groups for rank in group}
        memories = []
        for rank, block in enumerate(blocks):
            cut = np.split(block, counts.get(rank, 1))
            memories.append({f"x{part}": piece for part, piece in enumerate(cut)})
        scattered = self.run(_scatter(len(blocks), groups, tuple(parts)), memories)
        kept = [held.get("y", held["x0"]) for held in scattered]
        return self.reduced(kept, _same_part(groups, parts))


def _same_part(groups: Groups, parts: Several[int]) -> Groups:
    """Ranks of each group that keep the same part."""
    return tuple(
        tuple(rank for rank in group if parts[rank] == part)
        for group in groups
        for part in sorted({parts[rank] for rank in group})
    )


def _lines(groups: Groups, parts: tuple[int, ...]) -> Groups:
    """Each group in lines that hold every part once, in the order of the parts."""
    lines = []
    for group in groups:
        owners = [
            [rank for rank in group if parts[rank] == part]
            for part in sorted({parts[rank] for rank in group})
        ]
        lines += [tuple(line) for line in zip(*owners, strict=True)]
    return tuple(lines)


@lru_cache(maxsize=1024)
def _all_reduce(ranks: int, groups: Groups, reduction: Reduction) -> Program:
    of = {rank: group for group in groups for rank in group}
    programs = tuple(
        (AllReduce(group=of[rank], block="x", reduction=reduction),) if rank in of else ()
        for rank in range(ranks)
    )
    own = (("x",),) * ranks
    return Program("primepar-program", 1, ranks, programs, initial=own, final=own)


@lru_cache(maxsize=256)
def _all_gather(ranks: int, lines: Groups) -> Program:
    """Every rank is in one line, perhaps alone."""
    of = {rank: line for line in lines for rank in line}
    names = [tuple(f"y{place}" for place in range(len(of[rank]))) for rank in range(ranks)]
    programs = tuple(
        (AllGather(group=of[rank], block="x", blocks=names[rank]),) for rank in range(ranks)
    )
    return Program("primepar-program", 1, ranks, programs, initial=(("x",),) * ranks)


@lru_cache(maxsize=256)
def _scatter(ranks: int, groups: Groups, parts: tuple[int, ...]) -> Program:
    of = {rank: line for line in _lines(groups, parts) for rank in line}
    names = {rank: tuple(f"x{part}" for part in range(len(line))) for rank, line in of.items()}
    programs = tuple(
        (ReduceScatter(group=of[rank], blocks=names[rank], block="y"),)
        if len(names.get(rank, ())) > 1
        else ()
        for rank in range(ranks)
    )
    initial = tuple(names.get(rank, ("x0",)) for rank in range(ranks))
    return Program("primepar-program", 1, ranks, programs, initial=initial)
