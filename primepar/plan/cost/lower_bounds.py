"""Lower bounds of redistribution, valid for every order of the device bits of each link level.

Sequences whose cuts take other bits of the same levels are one class. The bounds use only what all
layouts of a class have in common: which digits of rows and columns are equal within a group of
devices, the levels of their bits, and how much the group holds. So a bound for two layouts is one
for all pairs of layouts of their classes. This is ours.

Example: a device needs 1/4 of a tensor, and its node of 4 devices can hold at most 1/8 of it. Then
at least 1/8 per device comes over the network.

Legend: G groups of devices, P, Q layouts, T kinds of digits.
"""

from __future__ import annotations

from collections.abc import Sequence as Several
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from primepar.plan.cost.candidate import Digits
from primepar.plan.cost.layouts import AT_ONCE, Bools, Boxes, Floats, Layouts, sizes
from primepar.plan.cost.links import ClusterLinks

Places = NDArray[np.int64]


@dataclass(frozen=True)
class LevelHoldings:
    """What each group of `count` devices holds in each of some layouts.

    `hull_P` are the digits that are fixed for a group: its hull is the box of these digits.
    `is_box_P` states whether the group holds its whole hull. `kinds_TP` are the fixed digits that
    equal single device bits of each level, then all others. `most_P` is the largest share of the
    tensor that a group holds, `copies_P` the largest number of its devices with equal boxes.
    """

    count: int
    hull_P: Digits
    is_box_P: Bools
    kinds_TP: Digits
    sizes_P: Floats
    most_P: Floats
    copies_P: Floats

    @classmethod
    def of(cls, boxes: Boxes, links: ClusterLinks, count: int) -> LevelHoldings:
        """The holdings of groups of `count` devices in some layouts."""
        hull, is_box_P = boxes.joined(count)
        groups = boxes.groups(count)
        distinct = 1 + (np.diff(np.sort(groups, axis=1), axis=1) > 0).sum(axis=1)
        copies = sum(
            (groups == member[:, None]).astype(np.int32) for member in groups.swapaxes(0, 1)
        )
        most_P = distinct.max(axis=0) * boxes.sizes_P
        return cls(count, hull.fixed_P, is_box_P, _kinds(hull, links), boxes.sizes_P, most_P,
                   np.max(copies, axis=(0, 1)))  # fmt: skip

    def only(self, places: Several[int] | Places) -> LevelHoldings:
        """The holdings of some of the layouts."""
        return LevelHoldings(
            self.count, self.hull_P[places], self.is_box_P[places], self.kinds_TP[:, places],
            self.sizes_P[places], self.most_P[places], self.copies_P[places],
        )  # fmt: skip

    def and_of(self, more: LevelHoldings) -> LevelHoldings:
        """The holdings of these layouts, then of more."""
        fields = ("hull_P", "is_box_P", "kinds_TP", "sizes_P", "most_P", "copies_P")
        return LevelHoldings(self.count, *(
            np.concatenate([getattr(part, name) for part in (self, more)], axis=-1)
            for name in fields
        ))  # fmt: skip

    @property
    def features(self) -> NDArray[np.float64]:
        """All that the bounds use of each layout, as numbers, (features, P)."""
        return np.stack([self.hull_P, self.is_box_P, *self.kinds_TP, self.sizes_P, self.most_P,
                         self.copies_P]).astype(np.float64)  # fmt: skip

    def common(self, other: LevelHoldings) -> Floats:
        """Upper bound of what a group's devices hold in `other` and the group holds here, (P, Q).

        Summed over its devices, as shares of the tensor. What both have in common is in both hulls,
        and each part of it is on at most `copies_P` devices.
        """
        both_PQ = sizes(self.hull_P[:, None] | other.hull_P)
        both_PQ = np.minimum(both_PQ, np.minimum(self.most_P[:, None], other.most_P))
        most: Floats = np.minimum(other.copies_P * both_PQ, self.count * other.sizes_P)
        return most

    def near(self, single: LevelHoldings) -> Floats:
        """The share of a device's box that a group holds if it holds any, (P, Q); 0 if unknown."""
        share = sizes(self.hull_P[:, None] | single.hull_P)
        return np.where(self.is_box_P[:, None], share, np.float32(0))

    def apart(self, other: LevelHoldings) -> Bools:
        """Whether the two hulls of some group have nothing in common, (P, Q).

        That is so if a digit of both hulls is a device bit of one level here, and a bit of another
        level or no single bit there: then it differs for some group.
        """
        apart_PQ = self.hull_P[:, None] & other.hull_P
        for kinds_P, kinds_Q in zip(self.kinds_TP, other.kinds_TP, strict=True):
            apart_PQ &= ~(kinds_P[:, None] & kinds_Q)
        return apart_PQ > 0


def _kinds(hull: Boxes, links: ClusterLinks) -> Digits:
    """The digits that equal single device bits, by level, then all other fixed digits, (T, P).

    `words` has the digits that each device bit sets. A digit is single if one bit alone sets it and
    if it is linear in the bits: the exclusive or of the set bits' words gives its value everywhere.
    """
    bits = links.bits
    words = [hull.values_DP[1 << (bits - 1 - place)] for place in range(bits)]
    once, twice = np.zeros_like(hull.fixed_P), hull.values_DP[0].copy()
    for word in words:
        twice |= once & word
        once |= word
    ranks = np.arange(links.devices)
    linear_DP = np.zeros_like(hull.values_DP)
    for place, word in enumerate(words):
        is_set = (ranks >> (bits - 1 - place) & 1).astype(bool)
        linear_DP[is_set] ^= word
    single = once & ~twice & ~np.bitwise_or.reduce(linear_DP ^ hull.values_DP, axis=0)
    kinds = np.zeros((len(links.by_level) + 1, len(single)), np.uint32)
    for place, word in enumerate(words):
        kinds[links.levels[place]] |= word & single
    kinds[-1] = hull.fixed_P & ~single
    return kinds


@dataclass
class Holdings:
    """What the groups below every level of links hold, computed once for each layout."""

    layouts: Layouts
    _places: dict[int, int] = field(default_factory=dict)
    _by_level: list[LevelHoldings] = field(default_factory=list)

    def of(self, numbers: Several[int]) -> list[LevelHoldings]:
        """The holdings of some layouts by level, the innermost first."""
        self._add([number for number in dict.fromkeys(numbers) if number not in self._places])
        places = [self._places[number] for number in numbers]
        return [holdings.only(places) for holdings in self._by_level]

    def alike(self, numbers: Several[int]) -> list[int]:
        """For each layout the first one that all bounds treat alike."""
        features = np.concatenate([holdings.features for holdings in self.of(numbers)])
        _, first, places = np.unique(features, axis=1, return_index=True, return_inverse=True)
        return [numbers[place] for place in first[places.ravel()].tolist()]

    def _add(self, numbers: Several[int]) -> None:
        links, layouts = self.layouts.links, self.layouts
        at_once = max(1, AT_ONCE // links.devices)
        for begin in range(0, len(numbers), at_once):
            part = numbers[begin : begin + at_once]
            boxes = layouts.boxes(part)
            more = [LevelHoldings.of(boxes, links, 1 << links.below(level))
                    for level in range(len(links.by_level))]  # fmt: skip
            if self._by_level:
                levels = zip(self._by_level, more, strict=True)
                more = [before.and_of(after) for before, after in levels]
            self._by_level = more
            self._places |= {number: len(self._places) + place for place, number in enumerate(part)}


@dataclass(frozen=True)
class LeastWays:
    """Bounds from each class of P layouts to each of Q, for the groups below each level of links.

    `mean` is a lower bound of the share of the tensor that a device receives from outside its
    group, on average over all devices. `whole` is what it receives where its group has nothing of
    what it needs. `near` is the part of a device's need that the group joined by a level holds,
    where it holds any; it is known where groups hold boxes, and 0 elsewhere.
    """

    links: ClusterLinks
    mean: tuple[Floats, ...]
    whole: tuple[Floats, ...]
    near: tuple[Floats, ...]

    @classmethod
    def of(cls, layouts: Layouts, sources: Several[int], targets: Several[int]) -> LeastWays:
        """Bounds for the classes of these layouts."""
        return cls.between(Holdings(layouts), sources, targets)

    @classmethod
    def between(cls, holdings: Holdings, sources: Several[int], targets: Several[int]) -> LeastWays:
        """As `of`, with holdings that may be known already."""
        source_holdings, target_holdings = holdings.of(sources), holdings.of(targets)
        pairs = list(zip(source_holdings, target_holdings, strict=True))
        need_Q = target_holdings[0].sizes_P
        mean = (
            (need_Q - source.common(target) / source.count).astype(np.float32)
            for source, target in pairs
        )
        whole = (np.where(source.apart(target), need_Q, np.float32(0)) for source, target in pairs)
        near = [source.near(target_holdings[0]) for source in source_holdings[1:]]
        all_PQ = np.broadcast_to(need_Q, (len(sources), len(targets)))
        return cls(holdings.layouts.links, tuple(mean), tuple(whole), (*near, all_PQ))

    def seconds(self, size: float) -> NDArray[np.float64]:
        """Lower bound of the seconds of each redistribution for a tensor of `size` bytes.

        In that time no level carries more than its ports can. What comes from outside a group
        passes its own level or those above: through all of their ports together, or through those
        of the one group that has nothing.
        """
        links = self.links
        bound = np.where(self.whole[0] > 0, self._alone(size), 0)
        for level, (mean, whole) in enumerate(zip(self.mean, self.whole, strict=True)):
            latency = min(link.latency for link in links.by_level[level:])
            for share, devices in ((mean, links.devices), (whole, 1 << links.below(level))):
                ports = self._bandwidth(level, devices)
                least = latency + share * np.float64(devices * size / ports)
                np.maximum(bound, least, out=bound, where=share > 0)
        received = np.maximum(self.mean[0], self.whole[0])
        copies = links.rearranged((received + self.near[-1]) * np.float64(size))
        np.add(bound, copies, out=bound, where=received > 0)
        return bound

    def _alone(self, size: float) -> NDArray[np.float64]:
        """Lower bound of the seconds of a device that has nothing of what it needs.

        The groups around it have nothing up to some level, and `near` from that level on. The bound
        is the least over all such levels.
        """
        shortest = np.full(self.mean[0].shape, np.inf)
        for first in range(len(self.near)):
            longest, covered = np.zeros_like(shortest), 0 * self.near[0]
            for link, near in zip(self.links.by_level[first:], self.near[first:], strict=True):
                least = link.latency + (near - covered) * np.float64(size / link.bandwidth)
                np.maximum(longest, least, out=longest, where=near > covered)
                covered = near
            np.minimum(shortest, longest, out=shortest)
        known = np.all([near > 0 for near in self.near], axis=0)
        return np.where(known, shortest, 0)

    def _bandwidth(self, level: int, devices: int) -> float:
        """Bytes per second of all ports of a group of `devices`, at a level and those above."""
        total = 0.0
        for number, link in enumerate(self.links.by_level[level:], level):
            behind = 1 << self.links.below(number) if link.shared else 1
            total += max(1, devices // behind) * link.bandwidth
        return total
