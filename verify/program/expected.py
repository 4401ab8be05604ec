"""The data that the blocks of a program have to hold, by their names."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from math import prod

from primepar.schedule.meaning import Box, Key, Meaning, Phase, Place
from primepar.schedule.program import Compute
from primepar.verify.deadline import in_time
from primepar.verify.program.contents import (
    BEFORE,
    LOOSE,
    OWN,
    Content,
    Source,
    Sum,
    Summand,
    Terms,
    reduction_of,
)


class Expected:
    """The required contents of blocks, by their names; without a grid, from what is computed."""

    def __init__(self, meaning: Meaning) -> None:
        self.meaning = meaning
        self._before: dict[str, set[Box]] = {}
        """Tensor -> boxes with data from before the program; sums in these places contain it."""
        self._known: dict[str, Sum] = {}
        self._whole: dict[str, Terms] = {}
        """Phase of the grid -> the terms that every block of its output requires."""
        self._data: dict[str, Content] = {}
        self._seen: dict[str, dict[Box, set[Key]]] = {}
        for instructions in meaning.program.programs:
            for node in in_time(instructions):
                if isinstance(node, Compute) and node.phase and node.sub_operator is not None:
                    self._see(self.meaning.phases[node.phase], node.sub_operator)

    def _see(self, phase: Phase, sub_operator: dict[str, int]) -> None:
        """Without a grid, a sum requires the products that the program computes."""
        if phase.keys is None:
            place = self.meaning.place(phase.writes.block(sub_operator))
            assert place is not None
            keys = self._seen.setdefault(phase.name, {}).setdefault(place.box, set())
            keys.add(phase.key(sub_operator))

    def initial(self, block: str) -> Content:
        """The content of a block from before the program; a sum in that place then requires it."""
        place = self.meaning.place(block)
        if place is not None and self.meaning.maker(block) is not None:
            self._before.setdefault(place.tensor, set()).add(place.box)
            self._known.clear()
        return self.datum(block)

    def datum(self, block: str) -> Content:
        """The content of a block that the program did not write."""
        if block not in self._data:
            self._data[block] = self._datum(block)
        return self._data[block]

    def _datum(self, block: str) -> Content:
        place = self.meaning.place(block)
        source: Source = OWN if self.meaning.maker(block) is None else BEFORE
        part = Summand(source, place) if place else Summand(LOOSE, Place(block, ()))
        return Content.flat(reduction_of(part.place, frozenset(((part.source, 1),)), "sum"))

    def sum(self, block: str) -> Sum:
        """What a block must hold where it is read: its own data, or its finished sum."""
        if block not in self._known:
            self._known[block] = self._sum(block)
        return self._known[block]

    def _sum(self, block: str) -> Sum:
        place, phase = self.meaning.place(block), self.meaning.maker(block)
        if place is None or phase is None:
            return self.datum(block).parts
        terms = self._terms(phase, place.box)
        if any(meet(place.box, box) for box in self._before.get(place.tensor, ())):
            terms |= {(BEFORE, 1)}
        return reduction_of(place, terms, phase.reduction) if terms else frozenset()

    def _terms(self, phase: Phase, box: Box) -> Terms:
        """The terms that a box of the output requires: all of its products, scaled."""
        if phase.keys is None:
            return frozenset(((phase.name, key), phase.scale) for key in self._computed(phase, box))
        if phase.name not in self._whole:
            self._whole[phase.name] = frozenset(
                ((phase.name, key), phase.scale) for key in phase.keys
            )
        return self._whole[phase.name]

    def _computed(self, phase: Phase, box: Box) -> set[Key]:
        """Keys of the products that a program without a grid computes in a box or a part of it."""
        seen = self._seen.get(phase.name, {})
        if box in seen:
            return set[Key]().union(seen[box])
        return set[Key]().union(*(keys for other, keys in seen.items() if meet(other, box)))


def fills(boxes: Sequence[Box], whole: Box) -> bool:
    """Whether boxes are disjoint, inside of another, and fill it."""
    inside = all(
        len(box) == len(whole)
        and all(start <= first and end <= stop
                for (first, end), (start, stop) in zip(box, whole, strict=True))
        for box in boxes
    )  # fmt: skip
    size = sum(prod(end - first for first, end in box) for box in boxes)
    disjoint = not any(meet(first, second) for first, second in combinations(boxes, 2))
    return inside and disjoint and size == prod(end - first for first, end in whole)


def meet(one: Box, other: Box) -> bool:
    """Whether two boxes have an element in common."""
    sides = zip(one, other, strict=False)
    meets = all(first < stop and start < end for (first, end), (start, stop) in sides)
    return meets and len(one) == len(other)
