"""What the blocks of a program should hold, by their names."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from primepar.schedule.meaning import Box, Key, Meaning, Phase
from primepar.schedule.program import Compute, Program
from primepar.verify.deadline import in_time
from primepar.verify.program_contents import (
    BEFORE,
    OWN,
    Content,
    Part,
    Source,
    Sum,
    made_of,
)


class Expected:
    """What blocks should hold by their names."""

    def __init__(self, program: Program) -> None:
        self.meaning = Meaning(program)
        self.makers = self.meaning.makers
        self.from_before: set[str] = set()
        """Blocks that the program did not make: what is in them stays in their sums."""
        self._known: dict[str, Sum] = {}
        self._data: dict[str, Content] = {}
        self._seen: dict[tuple[str, tuple[int, ...]], set[Key]] = {}
        for instructions in program.programs:
            for node in in_time(instructions):
                if isinstance(node, Compute) and node.phase and node.sub_operator is not None:
                    self._see(self.meaning.phases[node.phase], node.sub_operator)

    def _see(self, phase: Phase, sub_operator: dict[str, int]) -> None:
        """Without a grid a sum is due that is made of what the program computes."""
        if phase.keys is None:
            index = phase.writes.index(sub_operator)
            self._seen.setdefault((phase.name, index), set()).add(phase.key(sub_operator))

    def bring(self, block: str) -> Content:
        """What a block holds that is there before the program."""
        if self.maker(block) is not None:
            self.from_before.add(block)
            self._known.pop(block, None)
        return self.datum(block)

    def maker(self, block: str) -> Phase | None:
        """The phase that makes a block; None for data from outside."""
        found = self.meaning.place(block)
        return None if found is None else self.makers.get(found.tensor)

    def datum(self, block: str) -> Content:
        """What a block holds that the program did not make."""
        if block not in self._data:
            self._data[block] = self._datum(block)
        return self._data[block]

    def _datum(self, block: str) -> Content:
        found = self.meaning.place(block)
        source: Source = OWN if self.maker(block) is None else BEFORE
        return Content.one(Part(source, found.tensor, found.box) if found else
                           Part(OWN, block, ()))  # fmt: skip

    def sum(self, block: str) -> Sum:
        """What a block must hold where it is read: its own data, or its sum, finished."""
        if block not in self._known:
            self._known[block] = self._sum(block)
        return self._known[block]

    def _sum(self, block: str) -> Sum:
        found, phase = self.meaning.place(block), self.maker(block)
        if found is None or phase is None:
            return self.datum(block).parts
        keys = phase.keys
        if keys is None:
            index = tuple(first for first, _ in found.box)
            keys = tuple(sorted(self._seen.get((phase.name, index), ())))
        parts = [Part((phase.name, key), *found) for key in keys]
        due = made_of(parts, phase.reduction) if parts else frozenset()
        return due | self.datum(block).parts if block in self.from_before else due


def fills(boxes: Sequence[Box], whole: Box) -> bool:
    """Whether boxes lie in another, side by side, and fill it."""
    inside = all(
        len(box) == len(whole)
        and all(start <= first and end <= stop
                for (first, end), (start, stop) in zip(box, whole, strict=True))
        for box in boxes
    )  # fmt: skip
    size = sum(prod(end - first for first, end in box) for box in boxes)
    return inside and len(set(boxes)) == len(boxes) and size == prod(b - a for a, b in whole)
