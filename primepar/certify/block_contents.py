"""What the blocks of a program hold, and what they should hold by their names.

All cuts of a tensor cut it together into cells. In each of the cells that a block has there is a
reduction of tokens: products that belong there, or data from before the program. Where a block
has another name than its data, the cells are still those of the data.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, pairwise, product
from typing import NamedTuple

from primepar.schedule.meaning import Box, Meaning, Phase
from primepar.schedule.program import Compute, Program

Cell = tuple[str, Box | None]
"""A tensor and a box in it that no cut goes through; a block without meaning is its own cell."""
Token = tuple[str, tuple[tuple[str, int], ...]]
"""A phase and the slices that its sub-operators differ in; data from before is `FOUND`."""
FOUND: Token = ("", ())
SubOperator = dict[str, int]
"""The slice of each dim."""


class Value(NamedTuple):
    """How often each token is in it, and by which reductions they came together."""

    tokens: frozenset[tuple[Token, int]]
    how: frozenset[str] = frozenset()


Content = dict[Cell, Value]
ZERO: Content = {}
OF_SEVERAL: Content = {("", None): Value(frozenset())}
"""The reduction of blocks with several cells; it is right nowhere."""


def reduced(reduction: str, contents: Iterable[Content]) -> Content:
    """The reduction of what several blocks hold; a sum leaves zeros out."""
    given = [content for content in contents if content or reduction != "sum"]
    if not given:
        return ZERO
    if any(content.keys() != given[0].keys() for content in given):
        return OF_SEVERAL
    return {cell: _joined(reduction, [content[cell] for content in given]) for cell in given[0]}


def _joined(reduction: str, values: list[Value]) -> Value:
    """A sum counts its tokens; the largest or smallest of equal values is one of them."""
    if len(values if reduction == "sum" else set(values)) == 1:
        return values[0]
    how = frozenset({reduction}).union(*(value.how for value in values))
    if reduction != "sum":
        return Value(frozenset(chain(*(value.tokens for value in values))), how)
    total = Counter[Token]()
    for value in values:
        total.update(dict(value.tokens))
    return Value(frozenset(total.items()), how)


class ProgramNames:
    """The names of a program.

    `products` has for each phase the places where it is computed, with the sub-operators; `grid`
    has the sub-operators that are due.
    """

    def __init__(self, program: Program) -> None:
        self.meaning = Meaning(program)
        self.products: dict[str, list[tuple[tuple[int, int], SubOperator]]] = {}
        for rank, nodes in enumerate(program.programs):
            for index, node in enumerate(nodes):
                if isinstance(node, Compute) and node.phase and node.sub_operator is not None:
                    own = self.products.setdefault(node.phase, [])
                    own.append(((rank, index), node.sub_operator))
        self.grid: dict[str, list[SubOperator]] = {}
        for name, slices in (program.grid or {}).items():
            cells = product(*map(range, slices.values()))
            self.grid[name] = [dict(zip(slices, cell, strict=True)) for cell in cells]
        self._lines: dict[tuple[str, int], set[int]] = {}
        for name, tensor in (program.tensors or {}).items():
            for dim, cuts in enumerate(tensor.cuts):
                self._lines.setdefault((tensor.of or name, dim), set()).update(cuts)
        self._cells: dict[str, list[Cell]] = {}
        self._due: dict[Cell, set[Token]] = {}
        """What belongs into the cells of tensors that a phase makes."""
        for phase in self.meaning.makers.values():
            computed = [own for _, own in self.products.get(phase.name, ())]
            for sub_operator in self.grid.get(phase.name, computed):
                for cell in self.cells(phase.writes.block(sub_operator)):
                    self._due.setdefault(cell, set()).add(self.token(phase, sub_operator))

    def made(self) -> set[str]:
        """Blocks that the phases of the grid make."""
        written = {name: self.meaning.phases[name].writes for name in self.grid}
        return {written[name].block(own) for name, grid in self.grid.items() for own in grid}

    @staticmethod
    def token(phase: Phase, sub_operator: SubOperator) -> Token:
        """A sub-operator without the dims that count copies."""
        return phase.name, tuple(sorted((d, n) for d, n in sub_operator.items() if d in phase.dims))

    def cells(self, block: str) -> list[Cell]:
        """The cells of its tensor that a block has."""
        if block not in self._cells:
            tensor, box = self.meaning.place(block) or (block, None)
            sides = []
            for dim, (first, end) in enumerate(box or ()):
                lines = self._lines.get((tensor, dim), ())
                sides.append(pairwise([first, *sorted(x for x in lines if first < x < end), end]))
            boxes = [None] if box is None else product(*sides)
            self._cells[block] = [(tensor, each) for each in boxes]
        return self._cells[block]

    def doubled(self, blocks: Iterable[str]) -> Iterator[str]:
        """Blocks that have a cell in common with one before them."""
        seen = set[Cell]()
        for block in blocks:
            if not seen.isdisjoint(self.cells(block)):
                yield block
            seen |= set(self.cells(block))

    def of(self, block: str, token: Token = FOUND) -> Content:
        """One token all over a block."""
        return dict.fromkeys(self.cells(block), Value(frozenset({(token, 1)})))

    def bring(self, block: str) -> Content:
        """The data of a block that is there before the program; it stays in sums that are made."""
        if self.meaning.maker(block) is not None:
            for cell in self.cells(block):
                self._due.setdefault(cell, set()).add(FOUND)
        return self.of(block)

    def is_right(self, content: Content, block: str) -> bool:
        """Whether a block of that name should hold this: its own data, or its finished sum."""
        phase = self.meaning.maker(block)
        how = {phase.reduction} if phase else set[str]()
        return content.keys() == set(self.cells(block)) and all(
            value.how <= how
            and value.tokens
            == {(token, 1) for token in (self._due.get(cell, ()) if phase else (FOUND,))}
            for cell, value in content.items()
        )

    def is_one_kind(self, content: Mapping[Cell, Value]) -> bool:
        """Whether all cells have the same parts.

        Of a product those slices are its part that the index of an output block leaves open.
        """
        phases = self.meaning.phases
        kinds = {
            (frozenset((n, name and (name, phases[name].key(dict(which))))
                       for (name, which), n in value.tokens), value.how)
            for value in content.values()
        }  # fmt: skip
        return len(kinds) < 2
