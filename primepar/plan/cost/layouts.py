"""Layouts of many sequences at once, as arrays, and what redistribution between them takes.

The box of a device is what it holds of a tensor, some slices of the rows by some of the columns: it
is told by digits, those of the rows before those of the columns, of which some are the device's and
the others are any.

Legend: D devices, P, Q layouts.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Several
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from primepar.plan.cost.device_slices import Digits, Slices, Spread
from primepar.plan.cost.links import ClusterLinks

Floats = NDArray[np.float32]
Bools = NDArray[np.bool_]
AT_ONCE = 1 << 18
"""Numbers in an array of what is looked at together."""


@dataclass
class Layouts:
    """The distinct layouts of a search over 2^n devices, by number."""

    wires: ClusterLinks
    _numbers: dict[tuple[int, bytes], int] = field(default_factory=dict)
    _fixed: list[int] = field(default_factory=list)
    _values: list[Digits] = field(default_factory=list)
    _about: dict[int, _Told] = field(default_factory=dict)

    def number(self, spread: Spread) -> int | None:
        """Number of a layout, a new one where it has none yet.

        None where a dim has slices that are no 1 / devices of it.
        """
        if max(spread.rows.digits, spread.columns.digits) > self.wires.bits:
            return None
        (rows, row_values), (columns, column_values) = map(
            self._fine, (spread.rows, spread.columns)
        )
        fixed = rows << self.wires.bits | columns
        values = row_values << np.uint32(self.wires.bits) | column_values
        key = fixed, values.tobytes()
        if key not in self._numbers:
            self._numbers[key] = len(self._fixed)
            self._fixed.append(fixed)
            self._values.append(values)
        return self._numbers[key]

    def _fine(self, slices: Slices) -> tuple[int, Digits]:
        """The same slices in digits of a cut into as many as devices."""
        more = self.wires.bits - slices.digits
        return slices.fixed << more, slices.values_D << np.uint32(more)

    def slices(self, number: int, dim: int) -> int:
        """In how many parts the layout cuts rows (0) or columns (1)."""
        return self._told(number).slices[dim]

    def share(self, number: int) -> float:
        """The share of the tensor on a device."""
        return self._told(number).share

    def line(self, number: int, dim: int) -> tuple[int, ...]:
        """Device bits of the groups that hold all parts of rows (0) or columns (1) between them.

        The nearest replica of each part is taken.
        """
        return self._told(number).lines[dim]

    def _told(self, number: int) -> _Told:
        if number not in self._about:
            bits, fixed, values = self.wires.bits, self._fixed[number], self._values[number]
            rows, columns = values >> np.uint32(bits), values & np.uint32(self.wires.devices - 1)
            slices = 1 << (fixed >> bits).bit_count(), 1 << (fixed % (1 << bits)).bit_count()
            lines = self._bits(columns, rows), self._bits(rows, columns)
            self._about[number] = _Told(slices, 1 / (slices[0] * slices[1]), lines)
        return self._about[number]

    def _bits(self, same: Digits, apart: Digits) -> tuple[int, ...]:
        alike = np.flatnonzero(same == same[0])
        _, first = np.unique(apart[alike], return_index=True)
        apart_by = int(np.bitwise_or.reduce(alike[first]))
        bits = self.wires.bits
        return tuple(place for place in range(bits) if apart_by >> (bits - 1 - place) & 1)

    def ways(self, sources: Several[int], targets: Several[int]) -> Ways:
        """What redistribution from each of some layouts to each of others loads the links with."""
        there = self.boxes(targets)
        found = [self._ways(here, there) for here in self._in_parts(sources, targets)]
        loads = tuple(np.concatenate(each) for each in zip(*(each.loads for each in found),
                                                           strict=True))  # fmt: skip
        return Ways(self.wires, loads, np.concatenate([each.moved_PQ for each in found]))

    def _ways(self, here: Boxes, there: Boxes) -> Ways:
        devices = self.wires.devices
        left_DPQ = there.sizes_P - here.shared_with(there)
        moved_PQ = left_DPQ.sum(axis=0)
        loads = []
        for level, link in enumerate(self.wires.links):
            joined = 1 << sum(each <= level for each in self.wires.levels)
            through = left_DPQ
            if joined < devices:
                outer_DPQ = there.sizes_P - here.near(there, joined)
                through = left_DPQ - outer_DPQ
                left_DPQ = outer_DPQ
            below = 1 << self.wires.below(level)
            if link.shared and below > 1:
                through = through.reshape(-1, below, *moved_PQ.shape).sum(axis=1)
            loads.append(through.max(axis=0))
        return Ways(self.wires, tuple(loads), moved_PQ)

    def received(self, sources: Several[int], targets: Several[int]) -> Floats:
        """From each of some layouts to each of others: the most that a device lacks, as a share."""
        there = self.boxes(targets)
        found = [(there.sizes_P - here.shared_with(there)).max(axis=0)
                 for here in self._in_parts(sources, targets)]  # fmt: skip
        return np.concatenate(found)

    def _in_parts(self, sources: Several[int], targets: Several[int]) -> Iterator[Boxes]:
        """The sources, so many at once as memory takes beside the targets."""
        at_once = max(1, AT_ONCE // (len(targets) * self.wires.devices))
        for first in range(0, len(sources), at_once):
            yield self.boxes(sources[first : first + at_once])

    def boxes(self, numbers: Several[int]) -> Boxes:
        """The boxes of some layouts."""
        fixed_P = np.array([self._fixed[each] for each in numbers], np.uint32)
        return Boxes(fixed_P, np.stack([self._values[each] for each in numbers], axis=1))


class _Told(NamedTuple):
    """What is asked of one layout again and again."""

    slices: tuple[int, int]
    share: float
    lines: tuple[tuple[int, ...], tuple[int, ...]]


class Boxes(NamedTuple):
    """What each device holds in each of some layouts: the digits that are fixed, and which."""

    fixed_P: Digits
    values_DP: Digits

    @property
    def sizes_P(self) -> Floats:
        """Share of the tensor in a box of each layout."""
        return sizes(self.fixed_P)

    def shared_with(self, other: Boxes) -> Floats:
        """Share of the tensor that each device has in both layouts, (D, P, Q)."""
        apart = self.values_DP[:, :, None] ^ other.values_DP[:, None]
        apart &= self.fixed_P[:, None] & other.fixed_P
        return np.where(apart == 0, sizes(self.fixed_P[:, None] | other.fixed_P), np.float32(0))

    def near(self, other: Boxes, joined: int) -> Floats:
        """Share of what each device has there that its group of so many holds here, (D, P, Q)."""
        union, is_box = self.joined(joined)
        found = union.shared_with(other)
        if not is_box.all():
            found[:, ~is_box] = self.only(~is_box)._near_by_one(other, joined)
        return found

    def joined(self, count: int) -> tuple[Boxes, Bools]:
        """The least boxes around those of groups of so many devices, and which hold no more."""
        groups = self.groups(count)
        apart_P = np.bitwise_or.reduce(groups ^ groups[:, :1], axis=(0, 1))
        distinct = 1 + (np.diff(np.sort(groups, axis=1), axis=1) > 0).sum(axis=1)
        values = np.repeat(groups[:, 0] & ~apart_P, count, axis=0)
        is_box_P = (distinct * sizes(apart_P) == 1).all(axis=0)
        return Boxes(self.fixed_P & ~apart_P, values), is_box_P

    def _near_by_one(self, other: Boxes, joined: int) -> Floats:
        """The same, of one device of the group after another, each box once."""
        groups = self.groups(joined)
        found = np.zeros((*self.values_DP.shape, len(other.fixed_P)), np.float32)
        for place in range(joined):
            own = groups[:, place]
            is_new = (groups[:, :place] != own[:, None]).all(axis=1)
            boxes = Boxes(self.fixed_P, np.repeat(own, joined, axis=0))
            found += boxes.shared_with(other) * np.repeat(is_new, joined, axis=0)[:, :, None]
        return found

    def groups(self, count: int) -> Digits:
        """The same values by groups of so many devices, (G, count, P)."""
        return self.values_DP.reshape(-1, count, len(self.fixed_P))

    def only(self, which: Bools) -> Boxes:
        """Some of the layouts."""
        return Boxes(self.fixed_P[which], self.values_DP[:, which])


def sizes(fixed: Digits) -> Floats:
    """1 / 2^k for k digits that are fixed, counted in pairs, fours, eights and all 32."""
    found = fixed - (fixed >> np.uint32(1) & np.uint32(0x55555555))
    found = (found & np.uint32(0x33333333)) + (found >> np.uint32(2) & np.uint32(0x33333333))
    found = found + (found >> np.uint32(4)) & np.uint32(0x0F0F0F0F)
    count = (found * np.uint32(0x01010101)) >> np.uint32(24)
    sizes: Floats = np.ldexp(np.float32(1), -count.astype(np.int32))
    return sizes


@dataclass(frozen=True)
class Ways:
    """From each of P layouts to each of Q: the share of the tensor that the links carry.

    `loads` has for every level what its busiest port receives, `moved_PQ` what all devices receive
    together (PrimePar, equations 8 and 9).
    """

    wires: ClusterLinks
    loads: tuple[Floats, ...]
    moved_PQ: Floats

    def seconds(self, size: float) -> NDArray[np.float64]:
        """Time of each way for a tensor of so many bytes."""
        found = np.zeros(self.moved_PQ.shape)
        for link, load in zip(self.wires.links, self.loads, strict=True):
            took = load * np.float64(size / link.bandwidth)
            np.add(took, link.latency, out=took, where=load > 0)
            np.maximum(found, took, out=found)
        return found
