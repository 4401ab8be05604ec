"""Tensors that come and go on the devices: when they are made, read for the last time, and moved.

A tensor lies in blocks. Work on it goes block by block, and what is read for the last time goes as
its blocks are done with, so that a tensor that takes the place of another one needs one block more.

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
class Lies:
    """One tensor of `size` elements: between which cuts its blocks lie, and a rank's elements."""

    cells: Cells
    size: int
    own_R: Ints

    @classmethod
    def in_layout(cls, layout: Layout, size: int) -> Lies:
        """In the blocks of a layout."""
        return cls(Cells.even(layout.grid), size, shares(layout, size))

    @property
    def block(self) -> int:
        """Elements of its largest block."""
        return _block(self.cells, self.size)


class _Event(NamedTuple):
    """Something that is done, on blocks of so many elements, or else with `most_R` more."""

    reads: tuple[Lies, ...] = ()
    writes: tuple[Lies, ...] = ()
    block: int = 0
    most_R: Ints | None = None
    times: int | None = None
    """How often that which came and went since the last such event comes and goes again."""


@dataclass
class Lifetimes:
    """Everything that happens on the devices of a program, in order."""

    ranks: int
    _there: list[Lies] = field(default_factory=list)
    _events: list[_Event] = field(default_factory=list)
    _kept: set[int] = field(default_factory=set)

    def begin(self, lies: Lies, times: int = 1) -> Lies:
        """Have a tensor there from the start, and others like it, so many in all."""
        self._there += [lies] * times
        return lies

    def repeat(self, times: int = 0) -> None:
        """Let what was done since the last call be done so many times more, with the same gain.

        Each time the most is as much more as the last: the first and the last time have the most,
        of which the last is yet to come.
        """
        self._events.append(_Event(times=times))

    def keep(self, lies: Lies) -> None:
        """Let a tensor stay to the end."""
        self._kept.add(id(lies))

    def make(self, lies: Lies, *reads: Lies) -> Lies:
        """Make a tensor, block by block, of others."""
        self._events.append(_Event(reads, (lies,), lies.block))
        return lies

    def run(self, most_R: Ints, reads: Sequence[Lies], writes: Sequence[Lies]) -> None:
        """Do what needs so much beside all that is there before."""
        self._events.append(_Event(tuple(reads), tuple(writes), most_R=most_R))

    def reblocked(self, lies: Lies, cells: Cells, copy: bool = False) -> Lies:
        """The same data in other blocks: cut where either is cut, then joined.

        With `copy` it gets blocks of its own always.
        """
        pairs = zip(lies.cells.cuts, cells.cuts, strict=True)
        fine = Cells(tuple(tuple(sorted({*one, *other})) for one, other in pairs))
        if fine != lies.cells or copy:
            lies = self._anew(lies, fine, lies.block)
        return lies if fine == cells else self._anew(lies, cells, _block(cells, lies.size))

    def _anew(self, lies: Lies, cells: Cells, block: int) -> Lies:
        found = Lies(cells, lies.size, lies.own_R)
        self._events.append(_Event((lies,), (found,), block))
        return found

    def moved(self, lies: Lies, way: Way, cells: Cells, shared: bool = False) -> Lies:
        """A tensor in another layout and in other blocks; a copy where it is `shared`."""
        if way.source == way.target:
            return self.reblocked(lies, cells)
        lies = self.reblocked(lies, Cells.of(way.source, way.target), copy=shared)
        there, both = (_elements(share, lies.size) for share in _meeting(way))
        found = Lies(lies.cells, lies.size, there)
        self.run(both - lies.own_R, [lies], [found])
        return self.reblocked(found, cells)

    @property
    def peak_R(self) -> Ints:
        """The most elements that are there at once."""
        ends = {id(each): at for at, event in enumerate(self._events) for each in event.reads}
        now_R = sum((each.own_R for each in self._there), np.zeros(self.ranks, np.int64))
        peak_R, last_R = now_R.copy(), now_R
        for at, event in enumerate(self._events):
            if event.times is not None:
                last_R = now_R = now_R + event.times * (now_R - last_R)
                continue
            gone = {id(each): each.own_R for each in event.reads
                    if ends[id(each)] == at and id(each) not in self._kept}  # fmt: skip
            gone_R = sum(gone.values(), np.zeros_like(now_R))
            np.maximum(peak_R, now_R + self._more(event, gone_R), out=peak_R)
            now_R = now_R - gone_R
            now_R = sum((each.own_R for each in event.writes), now_R)
        return peak_R

    @staticmethod
    def _more(event: _Event, gone_R: Ints) -> Ints:
        """What an event needs beside all that is there before it."""
        if event.most_R is not None:
            return event.most_R
        made_R = sum((each.own_R for each in event.writes), np.zeros_like(gone_R))
        blocks_R = np.maximum(1, made_R // max(1, event.block))
        more: Ints = made_R + (blocks_R - 1) * np.maximum(0, made_R - gone_R)
        return -(-more // blocks_R)


def shares(layout: Layout, size: int) -> Ints:
    """Elements of every rank of a tensor of that size."""
    parts = prod(layout.grid)
    return np.array([len(own) * size // parts for own in layout.held], np.int64)


@lru_cache(maxsize=4096)
def _block(cells: Cells, size: int) -> int:
    largest = (max(b - a for a, b in pairwise(cuts)) for cuts in cells.cuts)
    return int(prod(largest, start=size))


@lru_cache(maxsize=4096)
def _meeting(way: Way) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Shares of a tensor that every rank has in the target, and in either layout."""
    cells = Cells.of(way.source, way.target)
    found = np.zeros((2, way.source.ranks))
    for rank in range(way.source.ranks):
        here, there = set(cells.held(way.source, rank)), set(cells.held(way.target, rank))
        for at, own in enumerate((there, here | there)):
            found[at, rank] = sum(map(cells.count, own)) / cells.parts
    return found[0], found[1]


def _elements(share_R: NDArray[np.float64], size: int) -> Ints:
    return np.rint(share_R * size).astype(np.int64)
