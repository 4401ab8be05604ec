"""What redistribution takes at least, however the device bits of each link level change places.

Sequences whose cuts take other bits of the same levels are of one class. What is looked at here is
the same for all layouts of a class: how many digits of rows and columns a group of devices has in
common, on which levels their bits lie, and how much the group holds. So a bound of one layout to
another is one of all layouts of their classes. This is ours.

Legend: G groups of devices, P, Q layouts, T kinds of digits.
"""

from __future__ import annotations

from collections.abc import Sequence as Several
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from primepar.plan.cost.layouts import AT_ONCE, Boxes, Digits, Floats, Layouts, sizes
from primepar.plan.cost.links import Wires


@dataclass(frozen=True)
class Held:
    """What each group of so many devices holds in each of some layouts.

    `hull_P` are the digits that are fixed for a group, and `kinds_TP` those of them that are single
    device bits of each level, then those that are not. `most_P` is the share of the tensor that a
    group has at most, `copies_P` how many of its devices have the same of it at most.
    """

    count: int
    hull_P: Digits
    kinds_TP: Digits
    sizes_P: Floats
    most_P: Floats
    copies_P: Floats

    @classmethod
    def of(cls, boxes: Boxes, wires: Wires, count: int) -> Held:
        """What some layouts say of groups of `count` devices."""
        hull, _ = boxes.joined(count)
        groups = boxes.groups(count)
        distinct = 1 + (np.diff(np.sort(groups, axis=1), axis=1) > 0).sum(axis=1)
        copies = sum((groups == each[:, None]).astype(np.int32) for each in groups.swapaxes(0, 1))
        most_P = distinct.max(axis=0) * boxes.sizes_P
        return cls(count, hull.fixed_P, _kinds(hull, wires), boxes.sizes_P, most_P,
                   np.max(copies, axis=(0, 1)))  # fmt: skip

    def brought(self, other: Held) -> Floats:
        """The least that the devices of some group together get from outside of it, (P, Q).

        Cells that a group has in both layouts are in the hulls of both, and it has no more copies
        of each there than of any. A digit that is a bit of one level here, and there a bit of
        another level or none, differs in some group: this has no cell in both.
        """
        needed_Q = self.count * other.sizes_P
        both_PQ = sizes(self.hull_P[:, None] | other.hull_P)
        both_PQ = np.minimum(both_PQ, np.minimum(self.most_P[:, None], other.most_P))
        apart_PQ = self.hull_P[:, None] & other.hull_P
        for own_P, its_Q in zip(self.kinds_TP, other.kinds_TP, strict=True):
            apart_PQ &= ~(own_P[:, None] & its_Q)
        had_PQ = np.where(apart_PQ == 0, other.copies_P * both_PQ, np.float32(0))
        return np.maximum(0, needed_Q - had_PQ).astype(np.float32)


def _kinds(hull: Boxes, wires: Wires) -> Digits:
    """The digits that are single device bits of each level, then those that are not, (T, P)."""
    bits = wires.bits
    words = [hull.values_DP[1 << (bits - 1 - place)] for place in range(bits)]
    once, twice = np.zeros_like(hull.fixed_P), hull.values_DP[0].copy()
    for word in words:
        twice |= once & word
        once |= word
    ranks = np.arange(wires.devices)
    told = np.zeros_like(hull.values_DP)
    for place, word in enumerate(words):
        is_set = (ranks >> (bits - 1 - place) & 1).astype(bool)
        told[is_set] ^= word
    single = once & ~twice & ~np.bitwise_or.reduce(told ^ hull.values_DP, axis=0)
    found = np.zeros((len(wires.links) + 1, len(single)), np.uint32)
    for place, word in enumerate(words):
        found[wires.levels[place]] |= word & single
    found[-1] = hull.fixed_P & ~single
    return found


@dataclass(frozen=True)
class LeastWays:
    """From each class of P layouts to each of Q: for each level, what comes through it or above."""

    wires: Wires
    brought: tuple[Floats, ...]

    @classmethod
    def of(cls, layouts: Layouts, sources: Several[int], targets: Several[int]) -> LeastWays:
        """Bounds for the classes of these layouts."""
        here, there = (_held(layouts, numbers) for numbers in (sources, targets))
        return cls(layouts.wires, tuple(one.brought(other) for one, other in zip(here, there,
                                                                                 strict=True)))

    def seconds(self, size: float) -> NDArray[np.float64]:
        """Least time of each way for a tensor of so many bytes.

        All levels from one on bring together no more than their bandwidths in that time.
        """
        found = np.zeros(self.brought[0].shape)
        links = self.wires.links
        for level, brought in enumerate(self.brought):
            devices = 1 << self.wires.below(level)
            outer = links[level:]
            bandwidth = sum(each.bandwidth * (1 if each.shared else devices) for each in outer)
            least = min(each.latency for each in outer) + brought * np.float64(size / bandwidth)
            np.maximum(found, least, out=found, where=brought > 0)
        return found


def _held(layouts: Layouts, numbers: Several[int]) -> list[Held]:
    """What groups hold, those of each level: of single devices first."""
    wires = layouts.wires
    at_once = max(1, AT_ONCE // wires.devices)
    parts = [layouts.boxes(numbers[at : at + at_once]) for at in range(0, len(numbers), at_once)]
    return [
        _joined([Held.of(part, wires, 1 << wires.below(level)) for part in parts])
        for level in range(len(wires.links))
    ]


def _joined(parts: list[Held]) -> Held:
    own = [(each.hull_P, each.kinds_TP, each.sizes_P, each.most_P, each.copies_P)
           for each in parts]  # fmt: skip
    return Held(parts[0].count, *(np.concatenate(each, axis=-1) for each in zip(*own, strict=True)))
