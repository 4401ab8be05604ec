"""Liveness of tensors on the devices: when they are written, last read, and redistributed.

A tensor is stored in blocks, and operators work block by block. At its last read, each block of a
tensor is freed as soon as it has been read. So a tensor that replaces another of its size needs one
additional block, not a second tensor. Example: y of 4 blocks is computed from x of 4 blocks, which
is not read again; the peak is 5 blocks.

Legend: R ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from math import prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from primepar.plan.layouts import Way
from primepar.schedule.layout import Cells, Layout

Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class PlacedTensor:
    """One tensor of `size` elements: the cuts between its blocks, and the elements of each rank."""

    cells: Cells
    size: int
    local_R: Ints

    @classmethod
    def in_layout(cls, layout: Layout, size: int) -> PlacedTensor:
        """A tensor in the blocks of a layout."""
        return cls(Cells.even(layout.grid), size, shares(layout, size))

    @property
    def block(self) -> int:
        """Elements of the largest block."""
        return _block(self.cells, self.size)


class _Event(NamedTuple):
    """One operation, on blocks of `block` elements, or else with `most_R` additional elements."""

    reads: tuple[PlacedTensor, ...] = ()
    writes: tuple[PlacedTensor, ...] = ()
    block: int = 0
    most_R: Ints | None = None
    times: int | None = None
    """How often the events since the last repetition are repeated; None for an operation."""


@dataclass
class Lifetimes:
    """Operations on the devices of a program, in order, and the peak that follows from them."""

    ranks: int
    _initial: list[PlacedTensor] = field(default_factory=list)
    _events: list[_Event] = field(default_factory=list)
    _kept: set[int] = field(default_factory=set)

    def begin(self, tensor: PlacedTensor, times: int = 1) -> PlacedTensor:
        """Add `times` equal tensors that are live from the start."""
        self._initial += [tensor] * times
        return tensor

    def repeat(self, times: int = 0) -> None:
        """Repeat what was done since the last call `times` more times, for equal layers.

        Each repetition adds the same number of live elements. So the peak is in the first or in the
        last one. The last one is not skipped: it is recorded after this call.
        """
        self._events.append(_Event(times=times))

    def keep(self, tensor: PlacedTensor) -> None:
        """Keep a tensor live to the end."""
        self._kept.add(id(tensor))

    def make(self, tensor: PlacedTensor, *reads: PlacedTensor) -> PlacedTensor:
        """Write a tensor, block by block, from others."""
        self._events.append(_Event(reads, (tensor,), tensor.block))
        return tensor

    def run(
        self, most_R: Ints, reads: Sequence[PlacedTensor], writes: Sequence[PlacedTensor]
    ) -> None:
        """Record an operation that needs `most_R` elements in addition to all live ones."""
        self._events.append(_Event(tuple(reads), tuple(writes), most_R=most_R))

    def reblocked(self, tensor: PlacedTensor, cells: Cells, copy: bool = False) -> PlacedTensor:
        """The same data in other blocks: cut wherever either is cut, then joined.

        With `copy` the result always has blocks of its own.
        """
        pairs = zip(tensor.cells.cuts, cells.cuts, strict=True)
        fine = Cells(tuple(tuple(sorted({*before, *after})) for before, after in pairs))
        if fine != tensor.cells or copy:
            tensor = self._anew(tensor, fine, tensor.block)
        return tensor if fine == cells else self._anew(tensor, cells, _block(cells, tensor.size))

    def _anew(self, tensor: PlacedTensor, cells: Cells, block: int) -> PlacedTensor:
        result = PlacedTensor(cells, tensor.size, tensor.local_R)
        self._events.append(_Event((tensor,), (result,), block))
        return result

    def moved(
        self, tensor: PlacedTensor, way: Way, cells: Cells, shared: bool = False
    ) -> PlacedTensor:
        """A tensor redistributed to another layout and other blocks; a copy where `shared`."""
        if way.source == way.target:
            return self.reblocked(tensor, cells)
        tensor = self.reblocked(tensor, Cells.of(way.source, way.target), copy=shared)
        in_target, in_either = (_elements(share, tensor.size) for share in _meeting(way))
        result = PlacedTensor(tensor.cells, tensor.size, in_target)
        self.run(in_either - tensor.local_R, [tensor], [result])
        return self.reblocked(result, cells)

    @property
    def peak_R(self) -> Ints:
        """The peak of live elements."""
        last_reads = {
            id(tensor): index for index, event in enumerate(self._events) for tensor in event.reads
        }
        live_R = sum((tensor.local_R for tensor in self._initial), np.zeros(self.ranks, np.int64))
        peak_R, last_R = live_R.copy(), live_R
        for index, event in enumerate(self._events):
            if event.times is not None:
                last_R = live_R = live_R + event.times * (live_R - last_R)
                continue
            gone = {
                id(tensor): tensor.local_R
                for tensor in event.reads
                if last_reads[id(tensor)] == index and id(tensor) not in self._kept
            }
            gone_R = sum(gone.values(), np.zeros_like(live_R))
            np.maximum(peak_R, live_R + self._more(event, gone_R), out=peak_R)
            live_R = live_R - gone_R
            live_R = sum((tensor.local_R for tensor in event.writes), live_R)
        return peak_R

    @staticmethod
    def _more(event: _Event, gone_R: Ints) -> Ints:
        """Elements that an event needs in addition to all that are live before it.

        Of the n blocks written, n - 1 come while blocks of the freed tensors go.
        """
        if event.most_R is not None:
            return event.most_R
        made_R = sum((tensor.local_R for tensor in event.writes), np.zeros_like(gone_R))
        blocks_R = np.maximum(1, made_R // max(1, event.block))
        more: Ints = made_R + (blocks_R - 1) * np.maximum(0, made_R - gone_R)
        return -(-more // blocks_R)


def shares(layout: Layout, size: int) -> Ints:
    """Elements of every rank, of a tensor of `size` elements."""
    parts = prod(layout.grid)
    return np.array([len(blocks) * size // parts for blocks in layout.held], np.int64)


@lru_cache(maxsize=4096)
def _block(cells: Cells, size: int) -> int:
    largest = (max(b - a for a, b in pairwise(cuts)) for cuts in cells.cuts)
    return int(prod(largest, start=size))


@lru_cache(maxsize=4096)
def _meeting(way: Way) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Shares of a tensor that every rank holds in the target, and in either layout."""
    cells = Cells.of(way.source, way.target)
    shares = np.zeros((2, way.source.ranks))
    for rank in range(way.source.ranks):
        source, target = set(cells.held(way.source, rank)), set(cells.held(way.target, rank))
        for number, blocks in enumerate((target, source | target)):
            shares[number, rank] = sum(map(cells.count, blocks)) / cells.parts
    return shares[0], shares[1]


def _elements(share_R: NDArray[np.float64], size: int) -> Ints:
    return np.rint(share_R * size).astype(np.int64)
