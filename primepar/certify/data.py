"""What the blocks of a program hold, and what they should hold by their names.

All cuts of a tensor cut it together into cells. In each of its cells a block holds tokens, which
stand for products and for data from before the program, with a corner: where the block would begin
in the tensor of its tokens.

    W is cut at 0, 2, 4, 8, and V at 0, 4, 8:   W[2] holds {(0, 4): W from 4}
    received under the name V[1] it holds       {(0, 4): W from 4}, and V from 4 is due
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise, product
from typing import Any, NamedTuple

from primepar.schedule.meaning import Box, Meaning, Phase, Place
from primepar.schedule.program import Compute, Program

Token = tuple[str, Any]
"""A phase and the slices that tell its sub-operators apart, or ("own" or "before", tensor)."""
Cell = dict[str, int]
"""A sub-operator: the slice of each dim."""


class Value(NamedTuple):
    """How often each token is in it, their corner, and by which reductions they came together.

    Where tokens of several corners met, `how` says so, and the corner is one of them.
    """

    tokens: frozenset[tuple[Token, int]]
    corner: tuple[int, ...]
    how: frozenset[str] = frozenset()


Content = dict[Box, Value]
"""What is in each cell, cells counted from the block's first element."""
ZERO: Content = {}
NO_SIZE: Content = {((-1, 0),): Value(frozenset(), ())}
"""Of blocks with several cells; it fits no block."""


def corner(box: Box) -> tuple[int, ...]:
    """The first element of a box."""
    return tuple([first for first, _ in box])


def within(box: Box, start: Sequence[int]) -> Box:
    """A box, counted from another first element."""
    return tuple([(first - at, end - at) for (first, end), at in zip(box, start, strict=True)])


def recounted(content: Content, cells: Iterable[Box], old: Box, new: Box) -> Content:
    """Some cells of a block that lies in one box, as cells of a block that lies in another."""
    if not content:
        return ZERO
    away = [to - at for at, to in zip(corner(old), corner(new), strict=True)]
    found = {within(cell, corner(new)): content[within(cell, corner(old))] for cell in cells}
    return {
        cell: value._replace(corner=tuple(map(int.__add__, value.corner, away)))
        for cell, value in found.items()
    }


def reduced(reduction: str, contents: Iterable[Content]) -> Content:
    """The reduction of what several blocks hold."""
    given = [content for content in contents if content or reduction != "sum"]
    if not given:
        return ZERO
    if any(content.keys() != given[0].keys() for content in given):
        return NO_SIZE
    return {cell: _joined(reduction, [content[cell] for content in given]) for cell in given[0]}


def _joined(reduction: str, values: list[Value]) -> Value:
    """A sum counts its tokens; the largest or smallest of equal values is one of them."""
    if len(values if reduction == "sum" else set(values)) == 1:
        return values[0]
    total = Counter[Token]()
    for value in values:
        if reduction == "sum":
            total.update(dict(value.tokens))
        else:
            total |= Counter(dict(value.tokens))
    how = {reduction}.union(*(value.how for value in values))
    how |= {"several corners"} if len({value.corner for value in values}) > 1 else set()
    return Value(frozenset(total.items()), values[0].corner, frozenset(how))


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
        self._lines: dict[tuple[str, int], set[int]] = {}
        for name, tensor in (program.tensors or {}).items():
            for dim, cuts in enumerate(tensor.cuts):
                self._lines.setdefault((tensor.of or name, dim), set()).update(cuts)
        self._cells: dict[str, list[Box]] = {}
        self._before: set[tuple[str, Box]] = set()
        """Cells with data from before the program, which stays in the sums that are made there."""
        self._due: dict[tuple[str, Box], set[Token]] = {}
        """Cell -> the products that belong there."""
        for phase in self.meaning.makers.values():
            computed = [cell for _, cell in self.products.get(phase.name, ())]
            for cell in self.grid.get(phase.name, computed):
                block = phase.writes.block(cell)
                for at in self.cells(block):
                    due = self._due.setdefault((self.place(block).tensor, at), set())
                    due.add(self.token(phase, cell))

    @staticmethod
    def token(phase: Phase, cell: Cell) -> Token:
        """A sub-operator without the dims that count copies."""
        return phase.name, tuple(sorted((dim, at) for dim, at in cell.items() if dim in phase.dims))

    def place(self, block: str) -> Place:
        """Where a block lies in its tensor; one without meaning is a tensor of its own."""
        return self.meaning.place(block) or Place(block, ())

    def cells(self, block: str) -> list[Box]:
        """The cells of its tensor that a block has."""
        if block not in self._cells:
            sides, (tensor, box) = [], self.place(block)
            for dim, (first, end) in enumerate(box):
                lines = self._lines.get((tensor, dim), ())
                sides.append(pairwise([first, *sorted(x for x in lines if first < x < end), end]))
            self._cells[block] = list(product(*sides))
        return self._cells[block]

    def doubled(self, blocks: Iterable[str]) -> Iterator[str]:
        """Blocks that have a cell in common with one before them."""
        seen = set[tuple[str, Box]]()
        for block in blocks:
            own = {(self.place(block).tensor, cell) for cell in self.cells(block)}
            if seen & own:
                yield block
            seen |= own

    def of(self, block: str, token: Token) -> Content:
        """One token all over a block."""
        first = corner(self.place(block).box)
        value = Value(frozenset({(token, 1)}), first)
        return {within(cell, first): value for cell in self.cells(block)}

    def own(self, block: str, bring: bool = False) -> Content:
        """The data of a block that the program did not make; `bring` says that it is there."""
        phase, tensor = self.meaning.maker(block), self.place(block).tensor
        if phase and bring:
            self._before |= {(tensor, cell) for cell in self.cells(block)}
        return self.of(block, ("before" if phase else "own", tensor))

    def fits(self, content: Content, block: str) -> bool:
        """Whether a content has the cells of a block; zeros fit any."""
        first = corner(self.place(block).box)
        return not content or content.keys() == {within(at, first) for at in self.cells(block)}

    def is_right(self, content: Content, block: str) -> bool:
        """Whether a block of that name should hold this: its own data, or its finished sum."""
        first, phase = corner(self.place(block).box), self.meaning.maker(block)
        how = {phase.reduction} if phase else set[str]()
        return bool(content) and self.fits(content, block) and all(
            value.corner == first and value.how <= how and value.tokens == self._tokens(block, cell)
            for cell in self.cells(block)
            for value in (content[within(cell, first)],)
        )  # fmt: skip

    def _tokens(self, block: str, cell: Box) -> frozenset[tuple[Token, int]]:
        """What is due in a cell of a block."""
        tensor = self.place(block).tensor
        tokens = {("own", tensor)}
        if self.meaning.maker(block) is not None:
            tokens = self._due.get((tensor, cell), set())
            tokens = tokens | {("before", tensor)} if (tensor, cell) in self._before else tokens
        return frozenset((token, 1) for token in tokens)

    def is_one_kind(self, content: Content) -> bool:
        """Whether all cells have the same parts of the same tensors."""
        kinds = {
            (frozenset((self._part(token), n) for token, n in value.tokens), *value[1:])
            for value in content.values()
        }
        return len(kinds) < 2

    def _part(self, token: Token) -> Any:
        """Of a product only the slices that the index of an output block leaves open."""
        name, which = token
        phase = self.meaning.phases.get(name)
        return (name, phase.key(dict(which))) if phase else token
