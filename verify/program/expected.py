"""What the blocks of a program should hold, by their names."""

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
    made_of,
)


class Expected:
    """What blocks should hold by their names."""

    def __init__(self, meaning: Meaning) -> None:
        self.meaning = meaning
        self._before: dict[str, set[Box]] = {}
        """Where tensors have data that the program found: it stays in the sums made there."""
        self._known: dict[str, Sum] = {}
        self._whole: dict[str, Terms] = {}
        """What is due in every block that a phase of the grid makes."""
        self._data: dict[str, Content] = {}
        self._seen: dict[str, dict[Box, set[Key]]] = {}
        for instructions in meaning.program.programs:
            for node in in_time(instructions):
                if isinstance(node, Compute) and node.phase and node.sub_operator is not None:
                    self._see(self.meaning.phases[node.phase], node.sub_operator)

    def _see(self, phase: Phase, sub_operator: dict[str, int]) -> None:
        """Without a grid a sum is due that is made of what the program computes."""
        if phase.keys is None:
            found = self.meaning.place(phase.writes.block(sub_operator))
            assert found is not None
            keys = self._seen.setdefault(phase.name, {}).setdefault(found.box, set())
            keys.add(phase.key(sub_operator))

    def bring(self, block: str) -> Content:
        """What a block holds that is there before the program."""
        found = self.meaning.place(block)
        if found is not None and self.meaning.maker(block) is not None:
            self._before.setdefault(found.tensor, set()).add(found.box)
            self._known.clear()
        return self.datum(block)

    def datum(self, block: str) -> Content:
        """What a block holds that the program did not make."""
        if block not in self._data:
            self._data[block] = self._datum(block)
        return self._data[block]

    def _datum(self, block: str) -> Content:
        found = self.meaning.place(block)
        source: Source = OWN if self.meaning.maker(block) is None else BEFORE
        part = Summand(source, found) if found else Summand(LOOSE, Place(block, ()))
        return Content.flat(made_of(part.place, frozenset(((part.source, 1),)), "sum"))

    def sum(self, block: str) -> Sum:
        """What a block must hold where it is read: its own data, or its sum, finished."""
        if block not in self._known:
            self._known[block] = self._sum(block)
        return self._known[block]

    def _sum(self, block: str) -> Sum:
        found, phase = self.meaning.place(block), self.meaning.maker(block)
        if found is None or phase is None:
            return self.datum(block).parts
        terms = self._terms(phase, found.box)
        if any(meet(found.box, box) for box in self._before.get(found.tensor, ())):
            terms |= {(BEFORE, 1)}
        return made_of(found, terms, phase.reduction) if terms else frozenset()

    def _terms(self, phase: Phase, box: Box) -> Terms:
        """All products that are due in a box."""
        if phase.keys is None:
            return frozenset(((phase.name, key), 1) for key in self._computed(phase, box))
        if phase.name not in self._whole:
            self._whole[phase.name] = frozenset(((phase.name, key), 1) for key in phase.keys)
        return self._whole[phase.name]

    def _computed(self, phase: Phase, box: Box) -> set[Key]:
        """Keys of what the program computes of a phase without a grid, there or in a part of it."""
        seen = self._seen.get(phase.name, {})
        met = [seen[box]] if box in seen else [own for at, own in seen.items() if meet(at, box)]
        return set[Key]().union(*met)


def fills(boxes: Sequence[Box], whole: Box) -> bool:
    """Whether boxes lie in another, side by side, and fill it."""
    inside = all(
        len(box) == len(whole)
        and all(start <= first and end <= stop
                for (first, end), (start, stop) in zip(box, whole, strict=True))
        for box in boxes
    )  # fmt: skip
    size = sum(prod(end - first for first, end in box) for box in boxes)
    apart = not any(meet(one, other) for one, other in combinations(boxes, 2))
    return inside and apart and size == prod(b - a for a, b in whole)


def meet(one: Box, other: Box) -> bool:
    """Whether two boxes have an element in common."""
    sides = zip(one, other, strict=False)
    meets = all(first < stop and start < end for (first, end), (start, stop) in sides)
    return meets and len(one) == len(other)
