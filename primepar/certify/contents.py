"""What blocks hold at a time of a program, and what their names require.

All cuts of a tensor together divide it into cells; a block has the cells in its box. Each cell
holds a formal sum of terms, each with its coefficient: products of sub-operators, and data from
before the program. A reduction by max or min is one term of its own, with the sums that it chooses
from. Where a block has another name than its data, the cells are still those of the data.

For example, `O[0,0]` of a product with two slices of N has one cell. It is right when this cell
holds the two products N=0 and N=1, each once. With scale 1/2 in the phase's signature it is right
when it holds each of them 1/2 times. After an all-reduce over two ranks that both hold the finished
`O[0,0]` each is in it twice, and it is wrong. Two contents are the same exactly if their sums are:
this holds for all shapes and numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise, product
from typing import Any, NamedTuple

from primepar.schedule.deadline import in_time
from primepar.schedule.evidence import Term
from primepar.schedule.meaning import Box, Key, Meaning, Phase
from primepar.schedule.program import Compute, Program
from primepar.schedule.signature import Reduction, Scale

Cell = tuple[str, Box | None]
"""A tensor and a box in it that no cut divides; a block without meaning is its own cell."""
Cells = tuple[Cell, ...]
Token = tuple[str, Key]
"""A phase and which product of an output block; data from before the program is `INITIAL`."""
INITIAL: Token = ("", ())
Value = frozenset[tuple[Any, Scale]]
"""The formal sum of a cell: (token or extremum, coefficient)."""
Leaf = tuple[Cells, Token]
"""One term, in all cells of its block."""
MIXED: Cells = (("", None),)
"""In place of the cells of a content that is made of data of different places."""


class Extremum(NamedTuple):
    """The largest or smallest of some sums."""

    reduction: Reduction
    of: frozenset[Value]


class Content:
    """What a block holds: a reduction of other contents and of leaves, times `scale`.

    It is only recorded here, and summed up when somebody reads it. So a chain of 4,000 additions
    costs one pass when the sum is read, and not one pass for each of its partial sums.
    """

    __slots__ = ("_of", "_reduction", "_scale", "_values", "cells")

    def __init__(
        self,
        cells: Cells,
        of: Sequence[Content | Leaf] = (),
        reduction: Reduction = "sum",
        scale: Scale = 1,
        values: Mapping[Cell, Value] | None = None,
    ) -> None:
        self.cells, self._of, self._reduction, self._scale = cells, of, reduction, scale
        self._values = values

    @property
    def values(self) -> Mapping[Cell, Value]:
        """The formal sum of each cell."""
        if self._values is None:
            self._values = self._extrema() if self._reduction != "sum" else self._sums()
            self._of = ()
        return self._values

    def equals(self, due: Mapping[Cell, Value]) -> bool:
        """Whether these are the sums that are due; the next comparison is by identity."""
        if self._values is not due and self.values == due:
            self._values = due
        return self._values is due

    def _sums(self) -> Mapping[Cell, Value]:
        """Add up each content below this one once, times its number of uses.

        Contents share others: after an all-reduce on all ranks, each rank's sum has the same
        operands, and a further all-reduce of these has the same again. To follow every path would
        take time exponential in the number of reductions. So a content is opened when all those
        that use it have been: with `times[x]` the sum, over these, of their own times and scale.
        """
        # First pass: how often each content below is used. Two ranks hold x = a + b and all-reduce
        # it: the sum uses x twice, x uses a and b once each. What is summed up already, or chosen
        # by max, is not opened: it counts as one operand.
        uses: dict[int, int] = {}
        ready: list[Content] = [self]
        for above in in_time(ready):
            for below in above._of:
                if not isinstance(below, tuple):
                    key = id(below)
                    uses[key] = uses.get(key, 0) + 1
                    if uses[key] == 1 and below._values is None and below._reduction == "sum":
                        ready.append(below)
        # Second pass, from the top: a content is opened when its last user has been, so that its
        # factor is complete. Above, x is opened once with the factor 2, and a and b get 2 each.
        times: dict[int, Scale] = dict.fromkeys(uses, 0)
        times[id(self)] = 1
        total: dict[Cell, dict[Any, Scale]] = {}
        opened: list[Content] = [self]
        for above in in_time(opened):
            factor = times[id(above)] * above._scale
            for below in above._of:
                if isinstance(below, tuple):
                    cells, token = below
                    for cell in cells:
                        counts = total.setdefault(cell, {})
                        counts[token] = counts.get(token, 0) + factor
                    continue
                key = id(below)
                times[key] += factor
                uses[key] -= 1
                # Another user of it is still to come, with a factor of its own.
                if uses[key]:
                    continue
                if below._values is None and below._reduction == "sum":
                    opened.append(below)
                    continue
                for cell, value in below.values.items():
                    counts = total.setdefault(cell, {})
                    for term, count in value:
                        # A coefficient of 0 stays in the sum. No name requires a term 0 times, so
                        # data that cancelled is not taken for data that was never there.
                        counts[term] = counts.get(term, 0) + count * times[key]
        return {cell: frozenset(counts.items()) for cell, counts in total.items()}

    def _extrema(self) -> Mapping[Cell, Value]:
        """The extremum of each cell; of one distinct sum that sum. Equal kinds nest as one."""
        operands = [_values_of(below) for below in self._of]
        values: dict[Cell, Value] = {}
        for cell in dict.fromkeys(cell for of in operands for cell in of):
            chosen: set[Value] = set()
            for of in operands:
                value = of.get(cell, frozenset())
                # max(max(a, b), c) is one choice from a, b and c. 2 * max(a, b) is not one from 2a
                # and 2b here, as a negative factor would turn it to a minimum: such a sum is one
                # operand.
                inner: frozenset[Value] = frozenset({value})
                if len(value) == 1:
                    ((term, times),) = value
                    if isinstance(term, Extremum) and times == 1:
                        inner = term.of if term.reduction == self._reduction else inner
                chosen |= inner
            # max(a, a) is a: an all-reduce by max of equal copies changes nothing, where a sum
            # would count them twice.
            if len(chosen) > 1:
                values[cell] = frozenset({(Extremum(self._reduction, frozenset(chosen)), 1)})
            else:
                values[cell] = chosen.pop()
        return values


def _values_of(below: Content | Leaf) -> Mapping[Cell, Value]:
    if isinstance(below, Content):
        return below.values
    cells, token = below
    return dict.fromkeys(cells, frozenset({(token, 1)}))


ZERO = Content((), values={})
"""What `alloc` makes: nothing, which changes no sum."""


def reduced(reduction: Reduction, operands: Iterable[Content | Leaf], scale: Scale = 1) -> Content:
    """The reduction of contents and leaves, cell by cell; a sum is multiplied by `scale`.

    A reduction of data of different places is right for no block.
    """
    # 0 + a is a, but max(0, a) is not.
    of = tuple([part for part in operands if part is not ZERO or reduction != "sum"])
    if not of:
        return ZERO
    cells: Cells = ()
    for part in of:
        its = part[0] if isinstance(part, tuple) else part.cells
        # I[0] + I[1] has the cells of neither: whoever reads it under any name reads something
        # wrong.
        if cells is not its and cells and its and cells != its:
            cells = MIXED
            break
        cells = cells or its
    return Content(cells, of, reduction, scale)


class Required:
    """What the block names of a program require.

    Without a grid, a sum requires the products that the program computes in it.
    """

    def __init__(self, meaning: Meaning) -> None:
        self.meaning, self.program = meaning, meaning.program
        self._cuts: dict[tuple[str, int], set[int]] = {}
        for name, tensor in (self.program.tensors or {}).items():
            for dim, positions in enumerate(tensor.cuts):
                # `y` with cuts 0 2 4 and `y.other of y` with cuts 0 1 3 4 are one tensor: its cells
                # end at 0, 1, 2, 3 and 4, and y[0] consists of two of them.
                self._cuts.setdefault((tensor.of or name, dim), set()).update(positions)
        self._cells: dict[str, Cells] = {}
        self.block_of: dict[Cells, str] = {}
        """The cells of a block -> its name."""
        self._data: dict[str, Content] = {}
        self._due: dict[str, Mapping[Cell, Value]] = {}
        self._terms: dict[str, Value] = {}
        """A phase of the grid -> what each of its output blocks requires, shared by all of them."""
        self._before: set[Cell] = set()
        """Cells of outputs that hold data from before the program: their sums contain it."""
        self._computed = self._products_without_grid(self.program)

    def _products_without_grid(self, program: Program) -> dict[Cell, set[Token]]:
        computed: dict[Cell, set[Token]] = {}
        phases = {name: phase for name, phase in self.meaning.phases.items() if phase.keys is None}
        for node in (node for nodes in program.programs for node in nodes if phases):
            if isinstance(node, Compute) and node.phase in phases:
                cells, token = self.leaf(phases[node.phase], node.sub_operator or {})
                for cell in cells:
                    computed.setdefault(cell, set()).add(token)
        return computed

    def cells(self, block: str) -> Cells:
        """The cells of its tensor that a block consists of."""
        if block not in self._cells:
            tensor, box = self.meaning.place(block) or (block, None)
            sides = []
            for dim, (first, end) in enumerate(box or ()):
                cuts = self._cuts.get((tensor, dim), ())
                sides.append(pairwise([first, *sorted(x for x in cuts if first < x < end), end]))
            boxes = [None] if box is None else product(*sides)
            cells = tuple([(tensor, cell) for cell in boxes])
            self._cells[block] = cells
            self.block_of.setdefault(cells, block)
        return self._cells[block]

    def leaf(self, phase: Phase, sub_operator: Mapping[str, int]) -> Leaf:
        """The product of a sub-operator, in the block that it belongs to."""
        return self.cells(phase.writes.block(sub_operator)), (phase.name, phase.key(sub_operator))

    def datum(self, block: str) -> Content:
        """The content of a block that holds its own data."""
        if block not in self._data:
            cells = self.cells(block)
            self._data[block] = Content(cells, ((cells, INITIAL),))
        return self._data[block]

    def initial(self, block: str) -> Content:
        """The content of a block from before the program; a sum in that place then requires it."""
        if self.meaning.maker(block) is not None and not self._before.issuperset(self.cells(block)):
            self._before.update(self.cells(block))
            # What sums require has changed: a finished one now also has the data from before.
            self._due.clear()
        return self.datum(block)

    def due(self, block: str) -> Mapping[Cell, Value]:
        """What a block of this name has to hold: its own data, or its finished sum."""
        if block not in self._due:
            phase = self.meaning.maker(block)
            self._due[block] = (
                self.datum(block).values
                if phase is None
                else {cell: self._sum(phase, cell) for cell in self.cells(block)}
            )
        return self._due[block]

    def _sum(self, phase: Phase, cell: Cell) -> Value:
        terms = self._terms_of(phase, cell)
        # A gradient that was there before the program is part of its sum: g += dy * x gives g and
        # the product, each once.
        if cell in self._before:
            terms |= {(INITIAL, 1)}
        if phase.reduction == "sum" or len(terms) < 2:
            return terms
        choices = frozenset(frozenset({term}) for term in terms)
        return frozenset({(Extremum(phase.reduction, choices), 1)})

    def _terms_of(self, phase: Phase, cell: Cell) -> Value:
        # No grid states which products there are, so those that the program computes are the sum. A
        # product that no rank computes is missed only with a grid.
        if phase.keys is None:
            return frozenset((token, phase.scale) for token in self._computed.get(cell, ()))
        if phase.name not in self._terms:
            self._terms[phase.name] = frozenset(
                ((phase.name, key), phase.scale) for key in phase.keys
            )
        return self._terms[phase.name]

    def holds(self, content: Content, block: str) -> bool:
        """Whether a content is what a block of this name has to hold."""
        # Equal sums in other cells are another block: I[0] received under the name I[1] is wrong.
        return content.cells == self.cells(block) and content.equals(self.due(block))

    def is_uniform(self, contents: Iterable[Content]) -> bool:
        """Whether all cells of some contents are equally far summed: the same terms in each."""
        return len({value for content in contents for value in content.values.values()}) < 2


class HeldData:
    """What a block holds next to what its name requires: `primepar.schedule.evidence.Data`."""

    def __init__(self, required: Required, content: Content, block: str) -> None:
        self._required, self._values = required, content.values
        self._due = required.due(block)
        phase = required.meaning.maker(block)
        self.reduction: str = phase.reduction if phase else "sum"
        # Zeros have no cells, and fit everywhere: they are a sum that lacks all its products.
        fits = content is ZERO or content.cells == required.cells(block)
        self._is_sum_of_block = phase is not None and fits

    @property
    def is_unfinished(self) -> bool:
        """Whether it has terms of the sum and no others, some of them missing or too often."""
        return self._is_sum_of_block and all(
            _tokens(value).keys() <= _tokens(self._due.get(cell, frozenset())).keys()
            for cell, value in self._values.items()
        )

    def terms(self) -> list[Term]:
        """Every term; one that is equally often in all cells of a block is listed once."""
        counts: dict[Token, dict[Cell, tuple[Scale, Scale]]] = {}
        for cell in dict.fromkeys((*self._due, *self._values)):
            got = _tokens(self._values.get(cell, frozenset()))
            required = _tokens(self._due.get(cell, frozenset()))
            for token in dict.fromkeys((*required, *got)):
                pair = got.get(token, 0), required.get(token, 0)
                counts.setdefault(token, {})[cell] = pair
        terms: list[Term] = []
        for token, pairs in counts.items():
            alike: dict[tuple[Scale, Scale], list[Cell]] = {}
            for cell, pair in pairs.items():
                alike.setdefault(pair, []).append(cell)
            for pair, cells in alike.items():
                # A term that is the same in all cells of a known block is one line of a report:
                # *O[0,0] has N=1 twice*, in place of one line for each cell.
                known = self._required.block_of.get(tuple(cells))
                groups = [tuple(cells)] if known else [(cell,) for cell in cells]
                terms += [self._term(group, token, *pair) for group in groups]
        return terms

    def _term(self, cells: Cells, token: Token, got: Scale, required: Scale) -> Term:
        meaning, (name, key) = self._required.meaning, token
        tensor, box = cells[0]
        block = self._required.block_of.get(cells) or meaning.block_at(tensor, box or ())
        place = meaning.place(block) if cells in self._required.block_of else None
        box = place.box if place else box
        if box is not None:
            block = meaning.block_at(tensor, box)
        which = (cells[0], token)
        if token == INITIAL:
            made = meaning.makers.get(tensor) is not None
            return Term(block, got, required, is_before=made and box is not None, key=which)
        phase = meaning.phases[name]
        index = meaning.index_of(phase, box or ())
        cell = None if index is None else phase.sub_operator(index, key)
        return Term(block, got, required, name, cell, key, key=which)


def count_of(content: Content, which: tuple[Cell, Token]) -> Scale:
    """How often a term is in a content."""
    cell, token = which
    return _tokens(content.values.get(cell, frozenset())).get(token, 0)


def _tokens(value: Value) -> dict[Token, Scale]:
    """How often each token is in a sum. In an extremum that is where it is most often.

    Nested extrema are opened without recursion: a schedule may nest as many as it has reductions.
    """
    counts: dict[Token, Scale] = {}
    waiting: list[tuple[Value, Scale]] = [(value, 1)]
    seen: dict[Value, Scale] = {}
    while waiting:
        inner, factor = waiting.pop()
        # A sum in two extrema is opened again only with a larger factor, which raises the maximum;
        # so the loop ends, and takes no exponential time.
        if seen.get(inner, 0) >= factor:
            continue
        seen[inner] = factor
        for term, times in inner:
            if isinstance(term, Extremum):
                waiting += [(operand, factor * times) for operand in term.of]
            else:
                counts[term] = max(counts.get(term, 0), factor * times)
    return counts
