"""What the blocks of a program should hold, by their names."""

from __future__ import annotations

from itertools import combinations, product
from typing import Any

from primepar.certify.contents import (
    Content,
    Token,
    Value,
    corner,
    fill,
    fits,
    meet,
    within,
)
from primepar.schedule.meaning import Box, Meaning, Phase, Place
from primepar.schedule.program import Compute, Cut, Join, Program

Cell = dict[str, int]
"""A sub-operator: the slice of each dim."""


class Names:
    """The names of a program.

    `products` says where each phase is computed, and which sub-operators; `grid` lists those that
    it should compute.
    """

    def __init__(self, program: Program) -> None:
        self.meaning = Meaning(program)
        self.products: dict[str, list[tuple[tuple[int, int], Cell]]] = {}
        for rank, nodes in enumerate(program.programs):
            for index, node in enumerate(nodes):
                if isinstance(node, Compute) and node.phase and node.sub_operator is not None:
                    own = self.products.setdefault(node.phase, [])
                    own.append(((rank, index), node.sub_operator))
        self.grid: dict[str, list[Cell]] = {}
        for name, slices in (program.grid or {}).items():
            indices = product(*map(range, slices.values()))
            self.grid[name] = [dict(zip(slices, index, strict=True)) for index in indices]
        self._before: dict[str, set[Box]] = {}
        """Tensor -> where it had data before the program, which stays in its sums."""
        self._due: dict[str, dict[Box, set[Token]]] = {}
        """Phase -> where its blocks lie -> the products that belong there."""
        for phase in self.meaning.phases.values():
            due = self._due.setdefault(phase.name, {})
            computed = [cell for _, cell in self.products.get(phase.name, ())]
            for cell in self.grid.get(phase.name, computed):
                block = phase.writes.block(cell)
                due.setdefault(self.box(block), set()).add(self.token(phase, cell))

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
        first = corner(self.box(block))
        return ((within(self.box(block), first), Value(frozenset({(token, 1)}), first)),)

    def own(self, block: str, bring: bool = False) -> Content:
        """The data of a block that the program did not make; `bring` says that it is there."""
        at, phase = self.meaning.place(block), self.meaning.maker(block)
        if at and phase and bring:
            self._before.setdefault(at.tensor, set()).add(at.box)
        return self.of(block, ("before" if phase else "own", at.tensor if at else block))

    def is_right(self, content: Content, block: str) -> bool:
        """Whether a block of that name should hold this: its own data, or its finished sum."""
        at, phase = self.meaning.place(block), self.meaning.maker(block)
        if at is None or not content or not fits(content, at.box):
            return at is None and content == self.own(block)
        first, how = corner(at.box), {phase.reduction} if phase else set[str]()
        return all(
            value.corner == first
            and value.how <= how
            and value.tokens == self._tokens(within(box, [-at for at in first]), at, phase)
            for box, value in content
        )

    def _tokens(self, box: Box, at: Place, phase: Phase | None) -> frozenset[Any] | None:
        """What is due in a box of a block; None where no one sum is due in all of it."""
        if phase is None:
            return frozenset({(("own", at.tensor), 1)})
        due = self._due[phase.name]
        met = [box] if box in due else [each for each in due if meet(each, box)]
        if any(meet(each, box) != box for each in met):
            return None
        tokens = set[Token]().union(*(due[each] for each in met))
        if any(meet(box, each) for each in self._before.get(at.tensor, ())):
            tokens.add(("before", at.tensor))
        return frozenset((token, 1) for token in tokens)

    def is_one_kind(self, content: Content) -> bool:
        """Whether all that lies in a block are the same parts of the same tensors."""
        return len({self._kind(value) for _, value in content}) < 2

    def _kind(self, value: Value) -> Any:
        """A value with only the slices that the index of an output block leaves open."""
        phases = self.meaning.phases
        kinds = [
            (name, phases[name].key(dict(which)) if name in phases else which, times)
            for (name, which), times in value.tokens
        ]
        return frozenset(kinds), value.corner, value.how

    def parts(self, node: Cut | Join) -> list[Box] | None:
        """Where the parts of a block lie in it; None unless they fill it."""
        whole = self.meaning.place(node.block)
        places = [self.meaning.place(block) for block in node.blocks]
        if whole is None or not all(at and len(at.box) == len(whole.box) for at in places):
            return None
        first = corner(whole.box)
        boxes = [within(at.box, first) for at in places if at]
        apart = not any(meet(one, other) for one, other in combinations(boxes, 2))
        return boxes if apart and fill(boxes, within(whole.box, first)) else None
