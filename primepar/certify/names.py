"""What the blocks of a program should hold, by their names.

Part of the checker of certificates: it knows the grammar of programs and nothing of the proofs.
"""

from __future__ import annotations

from itertools import combinations, product
from typing import Any

from primepar.certify.contents import Content, Token, Value, corner, fill, fits, further, meet
from primepar.schedule.meaning import Box, Meaning, Phase, Place
from primepar.schedule.program import Compute, Cut, Join, Program

Cell = dict[str, int]
"""A sub-operator: the slice of each dim."""


class Names:
    """The names of a program."""

    def __init__(self, program: Program) -> None:
        self.program, self.meaning = program, Meaning(program)
        self.products: dict[str, list[tuple[tuple[int, int], Cell]]] = {}
        """Phase -> where it is computed, and which sub-operators."""
        for rank, nodes in enumerate(program.programs):
            for index, node in enumerate(nodes):
                if isinstance(node, Compute) and node.phase is not None:
                    own = self.products.setdefault(node.phase, [])
                    own.append(((rank, index), node.sub_operator or {}))
        self._before: dict[str, set[Box]] = {}
        """Tensor -> where it had data before the program, which stays in its sums."""
        self._due: dict[str, dict[Box, set[Token]]] = {}
        """Phase -> where its blocks lie -> the products that belong there."""
        for phase in self.meaning.phases.values():
            due = self._due.setdefault(phase.name, {})
            for cell in self.cells(phase):
                block = phase.writes.block(cell)
                due.setdefault(self.box(block), set()).add(self.token(phase, cell))

    def cells(self, phase: Phase) -> list[Cell]:
        """All sub-operators of a phase; without a grid those that the program has."""
        if phase.grid is None:
            return [cell for _, cell in self.products.get(phase.name, ())]
        indices = product(*(range(count) for count in phase.grid.values()))
        return [dict(zip(phase.grid, index, strict=True)) for index in indices]

    def made(self) -> set[str]:
        """Blocks that the phases of the grid make."""
        phases = [phase for phase in self.meaning.phases.values() if phase.grid is not None]
        return {phase.writes.block(cell) for phase in phases for cell in self.cells(phase)}

    @staticmethod
    def token(phase: Phase, cell: Cell) -> Token:
        """A sub-operator without the dims that count copies."""
        return phase.name, tuple(sorted((dim, at) for dim, at in cell.items() if dim in phase.dims))

    def box(self, block: str) -> Box:
        """Where a block lies in its tensor."""
        at = self.meaning.place(block)
        return at.box if at else ()

    def of(self, block: str, token: Token) -> Content:
        """One token all over a block."""
        box = self.box(block)
        term = token, corner(box)
        return ((further(box, [-first for first in corner(box)]), Value(frozenset({(term, 1)}))),)

    def own(self, block: str, bring: bool = False) -> Content:
        """The data of a block that the program did not make; `bring` says that it is there."""
        at, phase = self.meaning.place(block), self.meaning.maker(block)
        if at and phase and bring:
            self._before.setdefault(at.tensor, set()).add(at.box)
        return self.of(block, ("before" if phase else "own", at.tensor if at else block))

    def is_right(self, content: Content, block: str) -> bool:
        """Whether a block of that name should hold this: its own data, or its finished sum."""
        at, phase = self.meaning.place(block), self.meaning.maker(block)
        if at is None:
            return content == self.own(block)
        first, how = corner(at.box), {phase.reduction} if phase else set[str]()
        return (
            bool(content)
            and fits(content, at.box)
            and all(
                value.how <= how and value.terms == self._terms(further(box, first), at, phase)
                for box, value in content
            )
        )

    def _terms(self, box: Box, at: Place, phase: Phase | None) -> frozenset[Any] | None:
        """What is due in a box of a block; None where no one sum is due in all of it."""
        tokens: set[Token] = {("own", at.tensor)}
        if phase is not None:
            due = self._due[phase.name]
            met = [box] if box in due else [each for each in due if meet(each, box)]
            if any(meet(each, box) != box for each in met):
                return None
            tokens = set().union(*(due[each] for each in met))
            if any(meet(box, each) for each in self._before.get(at.tensor, ())):
                tokens |= {("before", at.tensor)}
        return frozenset(((token, corner(at.box)), 1) for token in tokens)

    def is_one_kind(self, content: Content) -> bool:
        """Whether all that lies in a block are the same parts of the same tensors."""
        return len({self._kind(value) for _, value in content}) < 2

    def _kind(self, value: Value) -> Any:
        """A value with only the slices that the index of an output block leaves open."""
        phases = self.meaning.phases
        kinds = [
            (name, phases[name].key(dict(which)) if name in phases else which, at, times)
            for ((name, which), at), times in value.terms
        ]
        return frozenset(kinds), value.how

    def parts(self, node: Cut | Join) -> list[Box] | None:
        """Where the parts of a block lie in it; None unless they fill it."""
        whole = self.meaning.place(node.block)
        places = [self.meaning.place(block) for block in node.blocks]
        if whole is None or not all(at and len(at.box) == len(whole.box) for at in places):
            return None
        away = [-first for first in corner(whole.box)]
        boxes = [further(at.box, away) for at in places if at]
        apart = not any(meet(one, other) for one, other in combinations(boxes, 2))
        return boxes if apart and fill(boxes, further(whole.box, away)) else None
