"""Layouts of many sequences at once, as arrays, and the cost of redistribution between them.

The box of a device is the part of a tensor that it holds: some slices of the rows by some slices of
the columns. It is described by binary digits, those of the rows before those of the columns. Fixed
digits have the value of the device; the others take every value. Example: of 4 x 4 slices, the
digits `1?` and `??` are the last two slices of the rows in all columns.

Legend: D devices, P, Q layouts.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Several
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from primepar.plan.cost.candidate import Digits, Slices, Spread
from primepar.plan.cost.links import ClusterLinks

Floats = NDArray[np.float32]
Bools = NDArray[np.bool_]
AT_ONCE = 1 << 18
"""Maximum number of elements of the arrays that are computed together."""
FEW_SIZES = 4
"""Sizes of a tensor for which the seconds of redistributions are kept."""


@dataclass
class Layouts:
    """The distinct layouts of a search over 2^n devices, by number."""

    links: ClusterLinks
    _numbers: dict[tuple[int, bytes], int] = field(default_factory=dict)
    _known: dict[tuple[Slices, Slices], int | None] = field(default_factory=dict)
    _fixed: list[int] = field(default_factory=list)
    _values: list[Digits] = field(default_factory=list)
    _cached: dict[int, _LayoutProperties] = field(default_factory=dict)
    _ways_of: dict[tuple[int, int], Ways] = field(default_factory=dict)

    def number(self, spread: Spread) -> int | None:
        """Number of a layout, a new one where it has none yet.

        None where a dim has more slices than there are devices.
        """
        slices = spread.rows, spread.columns
        if slices not in self._known:
            self._known[slices] = self._number(spread)
        return self._known[slices]

    def _number(self, spread: Spread) -> int | None:
        if max(spread.rows.digits, spread.columns.digits) > self.links.bits:
            return None
        (rows, row_values), (columns, column_values) = map(
            self._fine, (spread.rows, spread.columns)
        )
        fixed = rows << self.links.bits | columns
        values = row_values << np.uint32(self.links.bits) | column_values
        key = fixed, values.tobytes()
        if key not in self._numbers:
            self._numbers[key] = len(self._fixed)
            self._fixed.append(fixed)
            self._values.append(values)
        return self._numbers[key]

    def _fine(self, slices: Slices) -> tuple[int, Digits]:
        """The same slices, in the digits of a cut into as many slices as devices."""
        added = self.links.bits - slices.digits
        return slices.fixed << added, slices.values_D << np.uint32(added)

    def slices(self, number: int, dim: int) -> int:
        """Number of parts into which the layout cuts rows (0) or columns (1)."""
        return self._properties(number).slices[dim]

    def share(self, number: int) -> float:
        """The share of the tensor on a device."""
        return self._properties(number).share

    def line(self, number: int, dim: int) -> tuple[int, ...]:
        """Device bits of the groups that together hold all parts of rows (0) or columns (1).

        Each part is taken from its nearest replica.
        """
        return self._properties(number).lines[dim]

    def others(self, bits: Several[int]) -> tuple[int, ...]:
        """The device bits that are not among some."""
        return tuple(bit for bit in range(self.links.bits) if bit not in bits)

    def _properties(self, number: int) -> _LayoutProperties:
        if number not in self._cached:
            bits, fixed, values = self.links.bits, self._fixed[number], self._values[number]
            rows, columns = values >> np.uint32(bits), values & np.uint32(self.links.devices - 1)
            slices = 1 << (fixed >> bits).bit_count(), 1 << (fixed % (1 << bits)).bit_count()
            lines = self._bits(columns, rows), self._bits(rows, columns)
            self._cached[number] = _LayoutProperties(slices, 1 / (slices[0] * slices[1]), lines)
        return self._cached[number]

    def _bits(self, same: Digits, apart: Digits) -> tuple[int, ...]:
        alike = np.flatnonzero(same == same[0])
        _, first = np.unique(apart[alike], return_index=True)
        apart_by = int(np.bitwise_or.reduce(alike[first]))
        bits = self.links.bits
        return tuple(place for place in range(bits) if apart_by >> (bits - 1 - place) & 1)

    def way(self, source: int, target: int) -> Ways:
        """Link loads of the redistribution from one layout to another, cached."""
        if (source, target) not in self._ways_of:
            self._ways_of[source, target] = self.ways([source], [target])
        return self._ways_of[source, target]

    def ways(self, sources: Several[int], targets: Several[int]) -> Ways:
        """Link loads of the redistribution from each source layout to each target layout."""
        target_boxes = self.boxes(targets)
        parts = [
            self._ways(source_boxes, target_boxes)
            for source_boxes in self._in_parts(sources, targets)
        ]
        loads = tuple(np.concatenate(part) for part in zip(*(part.loads for part in parts),
                                                           strict=True))  # fmt: skip
        moved, pieces, copied = (np.concatenate([getattr(part, name) for part in parts])
                                 for name in ("moved_PQ", "pieces_PQ", "copied_PQ"))  # fmt: skip
        return Ways(self.links, loads, moved, pieces, copied)

    def _ways(self, here: Boxes, there: Boxes) -> Ways:
        devices = self.links.devices
        remote_DPQ = there.sizes_P - here.shared_with(there)
        moved_PQ, pieces_PQ = remote_DPQ.sum(axis=0), sizes(here.fixed_P[:, None] | there.fixed_P)
        loads, copied_PQ = [], remote_DPQ.max(axis=0) + there.sizes_P
        for level, link in enumerate(self.links.by_level):
            joined = 1 << sum(bit_level <= level for bit_level in self.links.levels)
            through = remote_DPQ
            if joined < devices:
                outer_DPQ = there.sizes_P - here.near(there, joined)
                through = remote_DPQ - outer_DPQ
                remote_DPQ = outer_DPQ
            below = 1 << self.links.below(level)
            if link.shared and below > 1:
                through = through.reshape(-1, below, *moved_PQ.shape).sum(axis=1)
            loads.append(through.max(axis=0))
        return Ways(self.links, tuple(loads), moved_PQ, pieces_PQ, copied_PQ)

    def received(self, sources: Several[int], targets: Several[int]) -> Floats:
        """The largest share that a device lacks, from each source to each target layout."""
        target_boxes = self.boxes(targets)
        lacking = [(target_boxes.sizes_P - source_boxes.shared_with(target_boxes)).max(axis=0)
                 for source_boxes in self._in_parts(sources, targets)]  # fmt: skip
        return np.concatenate(lacking)

    def _in_parts(self, sources: Several[int], targets: Several[int]) -> Iterator[Boxes]:
        """The sources, in parts whose arrays with all targets have at most `AT_ONCE` elements."""
        at_once = max(1, AT_ONCE // (len(targets) * self.links.devices))
        for first in range(0, len(sources), at_once):
            yield self.boxes(sources[first : first + at_once])

    def boxes(self, numbers: Several[int]) -> Boxes:
        """The boxes of some layouts."""
        fixed_P = np.array([self._fixed[number] for number in numbers], np.uint32)
        return Boxes(fixed_P, np.stack([self._values[number] for number in numbers], axis=1))


class _LayoutProperties(NamedTuple):
    """Cached properties of one layout."""

    slices: tuple[int, int]
    share: float
    lines: tuple[tuple[int, ...], tuple[int, ...]]


class Boxes(NamedTuple):
    """What each device holds in each of some layouts: which digits are fixed, and their values."""

    fixed_P: Digits
    values_DP: Digits

    @property
    def sizes_P(self) -> Floats:
        """Share of the tensor in one box of each layout."""
        return sizes(self.fixed_P)

    def shared_with(self, other: Boxes) -> Floats:
        """Share of the tensor that each device has in both layouts, (D, P, Q)."""
        apart = self.values_DP[:, :, None] ^ other.values_DP[:, None]
        apart &= self.fixed_P[:, None] & other.fixed_P
        return np.where(apart == 0, sizes(self.fixed_P[:, None] | other.fixed_P), np.float32(0))

    def near(self, other: Boxes, joined: int) -> Floats:
        """Share that a device has in `other` and its group of `joined` devices here, (D, P, Q)."""
        union, is_box = self.joined(joined)
        shares = union.shared_with(other)
        if not is_box.all():
            shares[:, ~is_box] = self.only(~is_box)._near_by_one(other, joined)
        return shares

    def joined(self, count: int) -> tuple[Boxes, Bools]:
        """The smallest boxes around the boxes of each group of `count` devices.

        The second result states for which layouts the union of the boxes fills that box.
        """
        groups = self.groups(count)
        apart_P = np.bitwise_or.reduce(groups ^ groups[:, :1], axis=(0, 1))
        distinct = 1 + (np.diff(np.sort(groups, axis=1), axis=1) > 0).sum(axis=1)
        values = np.repeat(groups[:, 0] & ~apart_P, count, axis=0)
        is_box_P = (distinct * sizes(apart_P) == 1).all(axis=0)
        return Boxes(self.fixed_P & ~apart_P, values), is_box_P

    def _near_by_one(self, other: Boxes, joined: int) -> Floats:
        """As `near`, summed over the distinct boxes of the devices of a group."""
        groups = self.groups(joined)
        shares = np.zeros((*self.values_DP.shape, len(other.fixed_P)), np.float32)
        for place in range(joined):
            member = groups[:, place]
            is_new = (groups[:, :place] != member[:, None]).all(axis=1)
            boxes = Boxes(self.fixed_P, np.repeat(member, joined, axis=0))
            shares += boxes.shared_with(other) * np.repeat(is_new, joined, axis=0)[:, :, None]
        return shares

    def groups(self, count: int) -> Digits:
        """The values by groups of `count` devices, (G, count, P)."""
        return self.values_DP.reshape(-1, count, len(self.fixed_P))

    def only(self, which: Bools) -> Boxes:
        """Some of the layouts."""
        return Boxes(self.fixed_P[which], self.values_DP[:, which])


def sizes(fixed: Digits) -> Floats:
    """1 / 2^k for k fixed digits, by a population count of 32 bits."""
    pairs = fixed - (fixed >> np.uint32(1) & np.uint32(0x55555555))
    pairs = (pairs & np.uint32(0x33333333)) + (pairs >> np.uint32(2) & np.uint32(0x33333333))
    pairs = pairs + (pairs >> np.uint32(4)) & np.uint32(0x0F0F0F0F)
    count = (pairs * np.uint32(0x01010101)) >> np.uint32(24)
    sizes: Floats = np.ldexp(np.float32(1), -count.astype(np.int32))
    return sizes


@dataclass(frozen=True)
class Ways:
    """Redistributions from each of P layouts to each of Q, as shares of the tensor.

    `loads` has for every level what its busiest port receives, `moved_PQ` what all devices receive
    together (PrimePar, equations 8 and 9). `pieces_PQ` is the share in one message: what one device
    has of what another one needs. `copied_PQ` is what a device copies where anything moves: blocks
    out of the tensor that it sends, and into the one that it needs.
    """

    links: ClusterLinks
    loads: tuple[Floats, ...]
    moved_PQ: Floats
    pieces_PQ: Floats
    copied_PQ: Floats
    _known: dict[float, NDArray[np.float64]] = field(default_factory=dict)
    """Seconds by size, of the last few."""

    def seconds(self, size: float) -> NDArray[np.float64]:
        """Seconds of each redistribution for a tensor of `size` bytes."""
        if size not in self._known:
            if len(self._known) == FEW_SIZES:
                del self._known[next(iter(self._known))]
            self._known[size] = self._seconds(size)
        return self._known[size]

    def _seconds(self, size: float) -> NDArray[np.float64]:
        longest = np.zeros(self.moved_PQ.shape)
        for link, load in zip(self.links.by_level, self.loads, strict=True):
            largest = np.minimum(load, self.pieces_PQ)
            of_level = np.maximum(load * np.float64(size / link.bandwidth),
                                  largest * np.float64(size / link.alone))  # fmt: skip
            further = load / self.pieces_PQ - 1
            start = link.messages(largest * np.float64(size)) + link.gap * further
            np.add(of_level, start, out=of_level, where=load > 0)
            np.maximum(longest, of_level, out=longest)
        copies = self.links.rearranged(self.copied_PQ * np.float64(size))
        np.add(longest, copies, out=longest, where=self.moved_PQ > 0)
        return longest
