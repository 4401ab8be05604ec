"""Which ranks hold which blocks of a tensor, and which of the ranks is nearest to another."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice, product

from primepar.schedule.operators import Index
from primepar.schedule.sequence import Coordinates, Sequence

Holdings = list[frozenset[Index]]
"""The blocks of one tensor on every rank."""
Holders = dict[Index, set[int]]
"""The ranks of every block."""


def both(one: Holdings, other: Holdings) -> Holdings:
    """Blocks that a rank has in either."""
    return [blocks | more for blocks, more in zip(one, other, strict=True)]


def less(one: Holdings, other: Holdings) -> Holdings:
    """Blocks that a rank has in the first alone."""
    return [blocks - fewer for blocks, fewer in zip(one, other, strict=True)]


def holders(holdings: Holdings) -> Holders:
    """The same by blocks."""
    ranks_of: Holders = {}
    for rank, blocks in enumerate(holdings):
        for index in blocks:
            ranks_of.setdefault(index, set()).add(rank)
    return ranks_of


@dataclass(frozen=True)
class MeshDistance:
    """Which devices of a sequence's mesh are near to one another."""

    sequence: Sequence

    def nearest(self, target: int, ranks: set[int]) -> int:
        """The rank that is fewest axes away, then the shortest way round, then in one direction.

        The search goes outwards from the target. Where all ranks are far, it would visit most of
        the mesh; so after four places for each rank, the distances of all ranks are compared.
        """
        if len(ranks) == 1:
            return next(iter(ranks))
        here = self.sequence.coordinates[target]
        for rank in islice(self._outwards(here), 4 * len(ranks)):
            if rank in ranks:
                return rank
        return min(ranks, key=lambda rank: self._distance(self._offset(rank, target)))

    def _offset(self, source: int, target: int) -> Coordinates:
        coordinates, lengths = self.sequence.coordinates, self.sequence.axis_lengths
        ends = zip(coordinates[source], coordinates[target], lengths, strict=True)
        return tuple((there - here) % length for there, here, length in ends)

    def _distance(self, offset: Coordinates) -> tuple[int, int, Coordinates]:
        around = zip(offset, self.sequence.axis_lengths, strict=True)
        shortest = sum(min(step, length - step) for step, length in around)
        return sum(step != 0 for step in offset), shortest, offset

    def _outwards(self, here: Coordinates) -> Iterator[int]:
        lengths = self.sequence.axis_lengths
        for offset in self._offsets:
            steps = zip(here, offset, lengths, strict=True)
            yield self._rank_at[tuple((start + step) % length for start, step, length in steps)]

    @cached_property
    def _offsets(self) -> list[Coordinates]:
        return sorted(product(*map(range, self.sequence.axis_lengths)), key=self._distance)

    @cached_property
    def _rank_at(self) -> dict[Coordinates, int]:
        return {device: rank for rank, device in enumerate(self.sequence.coordinates)}
