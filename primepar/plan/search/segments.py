"""Segmented dynamic programming (PrimePar, section 5): the cheapest choice for every node.

A table has the least cost of a segment of a chain for each pair of choices at its two ends. Joining
two tables at the node between them minimises over that node (equation 11). An edge from the first
to the last node of a segment is added to its table (equation 12). The node at the start of a table
is not counted in it, so that joined segments count no node twice. Example: nodes a-b-c with an edge
a-c: join the tables of a-b and b-c over b, then add the matrix of a-c.

All layers of a model but the first are equal. So a folded graph with two layers has every operator
and edge, and the second stands for all but the first.

Tables keep no choices. The choices inside a segment are recomputed along the best plan only.

Legend: P, Q, R choices of the first, the middle and the last node.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Several
from dataclasses import dataclass, replace
from functools import reduce
from typing import NamedTuple, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from primepar.models.graph import Operator

Matrix: TypeAlias = NDArray[np.float64]
Vector: TypeAlias = NDArray[np.float64]
Choice: TypeAlias = NDArray[np.int64]
Choices = tuple[int, ...]
Part = TypeVar("Part", Operator, list[Operator])


@dataclass(frozen=True, eq=False)
class Table:
    """Least cost of a segment by the choices at its ends; `parts` are the two joined tables."""

    costs: Matrix
    parts: tuple[Table, Table] | None = None

    def then(self, other: Table) -> Table:
        """This segment joined with the one that starts where it ends (equations 11, 13, 14)."""
        return Table(cheapest_sums(self.costs, other.costs), (self, other))

    def plus(self, extra: Matrix) -> Table:
        """The same segment with an additional cost by the choices at its ends (equation 12)."""
        return Table(self.costs + extra, self.parts)

    def within(self, first: int, last: int) -> Choices:
        """Choices of the nodes between the ends on the cheapest path."""
        if self.parts is None:
            return ()
        first_part, second_part = self.parts
        middle = int((first_part.costs[first] + second_part.costs[:, last]).argmin())
        return (*first_part.within(first, middle), middle, *second_part.within(middle, last))

    def at(self, choices: Choice) -> Table:
        """The segment from some of the choices of its first node, in that order."""
        parts = self.parts and (self.parts[0].at(choices), self.parts[1])
        return Table(self.costs[choices], parts)


def powers(table: Table, times: int) -> list[Table]:
    """Tables which, one after another, are a segment `times` times; it ends where it starts.

    Each table is the one before it joined with itself, so that there are few. Example: for 5 times
    those of one and of four segments.
    """
    tables: list[Table] = []
    while times:
        if times % 2:
            tables.append(table)
        times //= 2
        table = table.then(table) if times else table
    return tables


def cheapest_sums(left: Matrix, right: Matrix) -> Matrix:
    """The least of left_PQ + right_QR over Q, the product of the (min, +) algebra."""
    least = np.full((left.shape[0], right.shape[1]), np.inf)
    sums = np.empty_like(least)
    for column, row in zip(left.T, right, strict=True):
        np.add(column[:, None], row, out=sums)
        np.minimum(least, sums, out=least)
    return least


class ChainStep(NamedTuple):
    """The next node of a chain: the costs of its edge, of the node, and of an edge from the first.

    `edge` is from the previous node, by the choices of both.
    """

    edge: Matrix
    node: Vector
    first: Matrix | None = None

    def after(self, table: Table | None) -> Table:
        """The segment extended by this node."""
        step = Table(self.edge + self.node)
        joined = step if table is None else table.then(step)
        return joined if self.first is None else joined.plus(self.first)


def stretch(steps: Iterable[ChainStep]) -> Table:
    """A segment of the graph: nodes in a chain, some of which also read from the first one.

    Raises `ValueError` for no steps.
    """
    first, *others = steps
    return reduce(lambda table, step: step.after(table), others, first.after(None))


def cheapest(start: Vector, tables: Several[Table]) -> tuple[float, Choices]:
    """The least cost along consecutive segments, and the choice of every node.

    `start` is the cost of the first node. Propagating one vector takes P^2 sums per segment, where
    joining two tables takes P^3. The cost is infinite where no choice is possible.
    """
    reached = along(start, tables)
    last = int(reached[-1].argmin())
    cost, choices = float(reached[-1][last]), [last]
    for costs, table in zip(reached[-2::-1], reversed(tables), strict=True):
        first = int((costs + table.costs[:, last]).argmin())
        choices[:0] = (first, *table.within(first, last))
        last = first
    return cost, tuple(choices)


def along(start: Vector, tables: Iterable[Table]) -> list[Vector]:
    """The least cost from the start to every choice of each node at which segments meet."""
    reached = [start]
    for table in tables:
        reached.append((reached[-1][:, None] + table.costs).min(axis=0))
    return reached


def ahead(tables: Several[Table], end: Vector) -> Vector:
    """The least cost from every choice of the first node to the last, whose cost is `end`."""
    for table in reversed(tables):
        end = (table.costs + end).min(axis=1)
    return end


@dataclass(frozen=True)
class FoldedGraph:
    """The operators of a model with at most two layers; the second stands for all but the first.

    Example: of embedding, blocks 0 to 95, norm, head and loss it has the embedding, blocks 0 and 1,
    norm, head and loss. Block 1 is there for 95 layers.

    `second` are the places of the operators of the second layer.
    """

    operators: tuple[Operator, ...]
    layers: int
    second: range

    @classmethod
    def of(cls, operators: Several[Operator]) -> FoldedGraph:
        """The folded graph of the operators of a model, in the order of execution."""
        names = [operator.name for operator in operators]
        begin = next(place for place, name in enumerate(names) if name.startswith("blocks."))
        size = sum(name.startswith("blocks.0.") for name in names)
        layers = sum(name.startswith("blocks.") for name in names) // size
        end = begin + layers * size
        second = range(begin + size, min(end, begin + 2 * size))
        last, now_last = f"blocks.{layers - 1}.", f"blocks.{min(layers, 2) - 1}."
        after = (
            replace(
                operator, inputs=tuple(name.replace(last, now_last) for name in operator.inputs)
            )
            for operator in operators[end:]
        )
        return cls((*operators[: second.stop], *after), layers, second)

    def split(self, parts: Several[Part]) -> tuple[list[Part], list[Part], list[Part]]:
        """Operators, or segments by their last one: to the first layer, the second, the rest."""
        place_of = {operator.name: place for place, operator in enumerate(self.operators)}
        split: tuple[list[Part], list[Part], list[Part]] = [], [], []
        for part in parts:
            place = place_of[part.name if isinstance(part, Operator) else part[-1].name]
            split[(place >= self.second.start) + (place >= self.second.stop)].append(part)
        return split


def segments(operators: Several[Operator]) -> list[list[Operator]]:
    """The chain of operators, cut at the nodes that no edge skips; segments share their ends.

    Example: a residual addition reads the previous addition too, so that the operators from one
    addition to the next form a segment.
    """
    position = {operator.name: place for place, operator in enumerate(operators)}
    earliest = len(position)
    chain: list[list[Operator]] = []
    for operator in reversed(operators):
        if position[operator.name] <= earliest and position[operator.name] < len(position) - 1:
            chain[-1].append(operator)
            chain.append([operator])
        elif chain:
            chain[-1].append(operator)
        else:
            chain.append([operator])
        earliest = min([earliest, *(position[producer] for producer in operator.inputs)])
    return [segment[::-1] for segment in chain[:-1]][::-1]
