"""Rectangles of blocks that lie in one tensor, so that one product or collective takes them all.

The blocks of a region are views of its tensor. Those of one column, or of whole rows, are
contiguous; others are not, and are copied where torch sends them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

from primepar.distributed.buffers import Shape
from primepar.schedule.operators import block_name, parse_block

Slices = tuple[slice, slice]


class Window(NamedTuple):
    """Adjoining blocks of a region, counted in blocks."""

    rows: range
    columns: range

    def slices(self, block: Shape) -> Slices:
        """Where they lie in the region's tensor, for blocks of this shape."""
        (height, width), (rows, columns) = block, self
        return (
            slice(rows.start * height, rows.stop * height),
            slice(columns.start * width, columns.stop * width),
        )


@dataclass(frozen=True)
class Region:
    """Blocks of a tensor: every one of `rows` with every one of `columns`, both ascending."""

    tensor: str
    rows: tuple[int, ...]
    columns: tuple[int, ...]

    @classmethod
    def of(cls, names: Iterable[str]) -> Region | None:
        """The rectangle that some blocks make, each named once; None if they make none."""
        listed = tuple(names)
        parsed = [block for block in map(parse_block, listed) if block is not None]
        tensors = {(block.tensor, block.scratch, len(block.index)) for block in parsed}
        if len(parsed) != len(listed) or len(tensors) != 1:
            return None
        tensor, scratch, dims = tensors.pop()
        if scratch or dims != 2:
            return None
        rows, columns = (tuple(sorted({block.index[dim] for block in parsed})) for dim in (0, 1))
        whole = len(rows) * len(columns) == len(listed) == len(set(listed))
        return cls(tensor, rows, columns) if whole else None

    @property
    def key(self) -> str:
        """The name that its tensor goes by beside the names of blocks."""
        return f"{self.tensor}{list(self.rows)}x{list(self.columns)}"

    @property
    def names(self) -> tuple[str, ...]:
        """Its blocks, row by row."""
        return tuple(block_name(self.tensor, index) for index in product(self.rows, self.columns))

    def shape(self, block: Shape) -> Shape:
        """Shape of its tensor, for blocks of this shape."""
        return (len(self.rows) * block[0], len(self.columns) * block[1])

    def window(self, names: Iterable[str]) -> Window | None:
        """Where a rectangle of blocks lies; None where they are not in it or do not adjoin."""
        part = Region.of(names)
        if part is None or part.tensor != self.tensor:
            return None
        rows, columns = _adjoining(self.rows, part.rows), _adjoining(self.columns, part.columns)
        return None if rows is None or columns is None else Window(rows, columns)

    def in_one_piece(self, window: Window) -> bool:
        """Whether the blocks of a window are contiguous in memory."""
        return len(window.columns) == len(self.columns)

    @property
    def strides(self) -> bool:
        """Whether a single one of its blocks is not contiguous."""
        return len(self.columns) > 1


def _adjoining(every: tuple[int, ...], some: tuple[int, ...]) -> range | None:
    if some[0] not in every:
        return None
    start = every.index(some[0])
    return range(start, start + len(some)) if every[start : start + len(some)] == some else None


class Held(NamedTuple):
    """A region that outlives a program; `copies` are blocks that lie elsewhere too."""

    region: Region
    borrowed: bool
    copies: frozenset[str] = frozenset()
