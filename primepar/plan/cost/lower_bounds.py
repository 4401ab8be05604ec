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

from primepar.plan.cost.device_slices import Digits
from primepar.plan.cost.layouts import AT_ONCE, Bools, Boxes, Floats, Layouts, sizes
from primepar.plan.cost.links import ClusterLinks


@dataclass(frozen=True)
class LevelHoldings:
    """What each group of so many devices holds in each of some layouts.

    `hull_P` are the digits that are fixed for a group, which may hold less than all boxes with
    these (`is_box_P`), and `kinds_TP` those of them that are single
    device bits of each level, then those that are not. `most_P` is the share of the tensor that a
    group has at most, `copies_P` how many of its devices have the same of it at most.
    """

    count: int
    hull_P: Digits
    is_box_P: Bools
    kinds_TP: Digits
    sizes_P: Floats
    most_P: Floats
    copies_P: Floats

    @classmethod
    def of(cls, boxes: Boxes, wires: ClusterLinks, count: int) -> LevelHoldings:
        """What some layouts say of groups of `count` devices."""
        hull, is_box_P = boxes.joined(count)
        groups = boxes.groups(count)
        distinct = 1 + (np.diff(np.sort(groups, axis=1), axis=1) > 0).sum(axis=1)
        copies = sum((groups == each[:, None]).astype(np.int32) for each in groups.swapaxes(0, 1))
        most_P = distinct.max(axis=0) * boxes.sizes_P
        return cls(count, hull.fixed_P, is_box_P, _kinds(hull, wires), boxes.sizes_P, most_P,
                   np.max(copies, axis=(0, 1)))  # fmt: skip

    def common(self, other: LevelHoldings) -> Floats:
        """The most of what a group has in one layout that its devices have in the other, (P, Q).

        What they have in common lies in the hulls of both, and no more devices share it there.
        """
        both_PQ = sizes(self.hull_P[:, None] | other.hull_P)
        both_PQ = np.minimum(both_PQ, np.minimum(self.most_P[:, None], other.most_P))
        found: Floats = np.minimum(other.copies_P * both_PQ, self.count * other.sizes_P)
        return found

    def near(self, single: LevelHoldings) -> Floats:
        """What of the box of a single device a group has if it has some, (P, Q); 0 if unknown."""
        found = sizes(self.hull_P[:, None] | single.hull_P)
        return np.where(self.is_box_P[:, None], found, np.float32(0))

    def apart(self, other: LevelHoldings) -> Bools:
        """Whether some group has nothing in common in both layouts, (P, Q).

        A digit of both hulls that is a bit of one level here, and there a bit of another level or
        no bit at all, is not the same for all groups.
        """
        apart_PQ = self.hull_P[:, None] & other.hull_P
        for own_P, its_Q in zip(self.kinds_TP, other.kinds_TP, strict=True):
            apart_PQ &= ~(own_P[:, None] & its_Q)
        return apart_PQ > 0


def _kinds(hull: Boxes, wires: ClusterLinks) -> Digits:
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
    """From each class of P layouts to each of Q, for the groups below each level of links.

    `mean` is the share of the tensor that a device gets from outside of its group, on average of
    all devices at least; `whole` is what it gets where a group has nothing of what it needs. `near`
    is what of a device's need the groups that a level joins have, where they have some of it; this
    is known where they hold boxes, and 0 elsewhere.
    """

    wires: ClusterLinks
    mean: tuple[Floats, ...]
    whole: tuple[Floats, ...]
    near: tuple[Floats, ...]

    @classmethod
    def of(cls, layouts: Layouts, sources: Several[int], targets: Several[int]) -> LeastWays:
        """Bounds for the classes of these layouts."""
        wires = layouts.wires
        counts = [1 << wires.below(level) for level in range(len(wires.links))]
        here, there = ([_held(layouts, numbers, count) for count in counts]
                       for numbers in (sources, targets))  # fmt: skip
        pairs, need_Q = list(zip(here, there, strict=True)), there[0].sizes_P
        mean = ((need_Q - one.common(other) / one.count).astype(np.float32) for one, other in pairs)
        whole = (np.where(one.apart(other), need_Q, np.float32(0)) for one, other in pairs)
        near = [one.near(there[0]) for one in here[1:]]
        every = np.broadcast_to(need_Q, (len(sources), len(targets)))
        return cls(wires, tuple(mean), tuple(whole), (*near, every))

    def seconds(self, size: float) -> NDArray[np.float64]:
        """Least time of each way for a tensor of so many bytes.

        In that time a level brings no more than its ports can. What comes from outside of a group
        comes by its own level or those above: by all of their ports together, or by those of the
        one group that has nothing.
        """
        wires = self.wires
        found = np.where(self.whole[0] > 0, self._alone(size), 0)
        for level, (mean, whole) in enumerate(zip(self.mean, self.whole, strict=True)):
            latency = min(each.latency for each in wires.links[level:])
            for share, devices in ((mean, wires.devices), (whole, 1 << wires.below(level))):
                ports = self._bandwidth(level, devices)
                least = latency + share * np.float64(devices * size / ports)
                np.maximum(found, least, out=found, where=share > 0)
        return found

    def _alone(self, size: float) -> NDArray[np.float64]:
        """Least time of a device that has nothing of what it needs.

        The groups around it have nothing either up to one level, and from there on what is near.
        """
        found = np.full(self.mean[0].shape, np.inf)
        for first in range(len(self.near)):
            took, had = np.zeros_like(found), 0 * self.near[0]
            for link, near in zip(self.wires.links[first:], self.near[first:], strict=True):
                least = link.latency + (near - had) * np.float64(size / link.bandwidth)
                np.maximum(took, least, out=took, where=near > had)
                had = near
            np.minimum(found, took, out=found)
        known = np.all([near > 0 for near in self.near], axis=0)
        return np.where(known, found, 0)

    def _bandwidth(self, level: int, devices: int) -> float:
        """Of all ports that a group of so many devices has, of a level and those above."""
        total = 0.0
        for at, link in enumerate(self.wires.links[level:], level):
            behind = 1 << self.wires.below(at) if link.shared else 1
            total += max(1, devices // behind) * link.bandwidth
        return total


def _held(layouts: Layouts, numbers: Several[int], count: int) -> LevelHoldings:
    """What groups of `count` devices hold in some layouts."""
    at_once = max(1, AT_ONCE // layouts.wires.devices)
    parts = [LevelHoldings.of(layouts.boxes(numbers[at : at + at_once]), layouts.wires, count)
             for at in range(0, len(numbers), at_once)]  # fmt: skip
    own = [(each.hull_P, each.is_box_P, each.kinds_TP, each.sizes_P, each.most_P, each.copies_P)
           for each in parts]  # fmt: skip
    return LevelHoldings(count, *(np.concatenate(each, axis=-1) for each in zip(*own, strict=True)))
