"""The contents of blocks: what they hold at a time of a program, and what their names require.

All cuts of a tensor together divide it into cells; a block has the cells in its box. Each cell
holds a reduction of tokens: products of sub-operators, or data from before the program. Where a
block has another name than its data, the cells are still those of the data. For example, `O[0,0]`
of a product with two slices of N has one cell. It is right when this cell holds the two tokens
N=0 and N=1, each once, joined by a sum. With scale 1/2 in the phase's signature it is right when
it holds each of them 1/2 times.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, pairwise, product
from typing import NamedTuple

from primepar.schedule.meaning import Box, Meaning, Phase
from primepar.schedule.program import Compute, Program
from primepar.schedule.signature import Scale

Cell = tuple[str, Box | None]
"""A tensor and a box in it that no cut divides; a block without meaning is its own cell."""
Token = tuple[str, tuple[tuple[str, int], ...]]
"""A phase and the slices in which its sub-operators differ; data from before is `INITIAL`."""
INITIAL: Token = ("", ())
SubOperator = dict[str, int]
"""The slice of each dim."""


class Value(NamedTuple):
    """How often each token occurs in a cell, and by which reductions the tokens were joined."""

    tokens: frozenset[tuple[Token, Scale]]
    reductions: frozenset[str] = frozenset()


Content = dict[Cell, Value]
ZERO: Content = {}
MISMATCH: Content = {("", None): Value(frozenset())}
"""The reduction of contents with different cells; it is right for no block."""


def reduced(reduction: str, contents: Iterable[Content], scale: Scale = 1) -> Content:
    """The reduction of the contents of several blocks, cell by cell; a sum leaves zeros out.

    A sum is multiplied by `scale`.
    """
    given = [content for content in contents if content or reduction != "sum"]
    if not given:
        return ZERO
    if any(content.keys() != given[0].keys() for content in given):
        return MISMATCH
    return {
        cell: _joined(reduction, [content[cell] for content in given], scale) for cell in given[0]
    }


def _joined(reduction: str, values: list[Value], scale: Scale) -> Value:
    """The reduction of one cell: a sum adds counts of tokens; max and min take one of equals.

    A mean of equals is one of them too.
    """
    if (reduction != "sum" or len(values) * scale == 1) and len(set(values)) == 1:
        return values[0]
    reductions = frozenset[str]().union(*(value.reductions for value in values))
    reductions |= {reduction} if len(values) > 1 else frozenset()
    if reduction != "sum":
        return Value(frozenset(chain(*(value.tokens for value in values))), reductions)
    total: dict[Token, Scale] = {}
    for token, times in chain(*(value.tokens for value in values)):
        total[token] = total.get(token, 0) + times * scale
    return Value(frozenset(total.items()), reductions)


class ProgramNames:
    """What the block names of a program require.

    `products` maps each phase to the places, (rank, instruction), that compute it, with their
    sub-operators; `grid` maps each phase to the sub-operators that have to be computed.
    """

    def __init__(self, program: Program) -> None:
        self.meaning = Meaning(program)
        self.products: dict[str, list[tuple[tuple[int, int], SubOperator]]] = {}
        for rank, nodes in enumerate(program.programs):
            for index, node in enumerate(nodes):
                if isinstance(node, Compute) and node.phase and not node.again:
                    products = self.products.setdefault(node.phase, [])
                    products.append(((rank, index), node.sub_operator or {}))
        self.grid: dict[str, list[SubOperator]] = {}
        for name, slices in (program.grid or {}).items():
            cells = product(*map(range, slices.values()))
            self.grid[name] = [dict(zip(slices, cell, strict=True)) for cell in cells]
        self._cuts: dict[tuple[str, int], set[int]] = {}
        for name, tensor in (program.tensors or {}).items():
            for dim, positions in enumerate(tensor.cuts):
                self._cuts.setdefault((tensor.of or name, dim), set()).update(positions)
        self._cells: dict[str, list[Cell]] = {}
        self._required: dict[Cell, set[Token]] = {}
        """The tokens of every cell of the tensors that a phase writes."""
        for phase in self.meaning.makers.values():
            computed = [cell for _, cell in self.products.get(phase.name, ())]
            for sub_operator in self.grid.get(phase.name, computed):
                for cell in self.cells(phase.writes.block(sub_operator)):
                    self._required.setdefault(cell, set()).add(self.token(phase, sub_operator))

    def outputs(self) -> set[str]:
        """The blocks that the phases of the grid write."""
        written = {name: self.meaning.phases[name].writes for name in self.grid}
        return {written[name].block(cell) for name, grid in self.grid.items() for cell in grid}

    @staticmethod
    def token(phase: Phase, sub_operator: SubOperator) -> Token:
        """The token of a sub-operator: its slices, without the dims that count copies."""
        return phase.name, tuple(sorted((d, n) for d, n in sub_operator.items() if d in phase.dims))

    def cells(self, block: str) -> list[Cell]:
        """The cells of its tensor that a block consists of."""
        if block not in self._cells:
            tensor, box = self.meaning.place(block) or (block, None)
            sides = []
            for dim, (first, end) in enumerate(box or ()):
                cuts = self._cuts.get((tensor, dim), ())
                sides.append(pairwise([first, *sorted(x for x in cuts if first < x < end), end]))
            boxes = [None] if box is None else product(*sides)
            self._cells[block] = [(tensor, cell) for cell in boxes]
        return self._cells[block]

    def overlapping(self, blocks: Iterable[str]) -> Iterator[str]:
        """Yield the blocks that share a cell with one before them."""
        seen = set[Cell]()
        for block in blocks:
            if not seen.isdisjoint(self.cells(block)):
                yield block
            seen |= set(self.cells(block))

    def content(self, block: str, token: Token = INITIAL) -> Content:
        """The content of a block with one token in all its cells."""
        return dict.fromkeys(self.cells(block), Value(frozenset({(token, 1)})))

    def initial(self, block: str) -> Content:
        """The content of a block from before the program; sums that are added to it contain it."""
        if self.meaning.maker(block) is not None:
            for cell in self.cells(block):
                self._required.setdefault(cell, set()).add(INITIAL)
        return self.content(block)

    def is_right(self, content: Content, block: str) -> bool:
        """Whether this is what a block of that name has to hold: its data, or its finished sum."""
        phase = self.meaning.maker(block)
        allowed = {phase.reduction if phase else "sum"}
        return content.keys() == set(self.cells(block)) and all(
            value.reductions <= allowed
            and value.tokens
            == {
                (token, phase.scale if phase and token != INITIAL else 1)
                for token in (self._required.get(cell, ()) if phase else (INITIAL,))
            }
            for cell, value in content.items()
        )

    def is_uniform(self, content: Mapping[Cell, Value]) -> bool:
        """Whether all cells are equally far summed: they have the same terms and reductions.

        The term of a product is the slices that the index of its output block leaves open.
        """
        phases = self.meaning.phases
        sums = {
            (frozenset((n, name and (name, phases[name].key(dict(which))))
                       for (name, which), n in value.tokens), value.reductions)
            for value in content.values()
        }  # fmt: skip
        return len(sums) < 2
