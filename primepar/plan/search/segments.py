"""Segmented dynamic programming (PrimePar, section 5): the cheapest choice for every node.

A table has the least cost of a segment of a chain for each pair of choices at its two ends. Joining
two tables at the node between them minimises over that node (equation 11). An edge from the first
to the last node of a segment is added to its table (equation 12). The node at the start of a table
is not counted in it, so that joined segments count no node twice. Example: nodes a-b-c with an edge
a-c: join the tables of a-b and b-c over b, then add the matrix of a-c.

Tables keep no choices. The choices inside a segment are recomputed along the best plan only.

Legend: P, Q, R choices of the first, the middle and the last node.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Several
from dataclasses import dataclass
from functools import reduce
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Matrix: TypeAlias = NDArray[np.float64]
Vector: TypeAlias = NDArray[np.float64]
Choice: TypeAlias = NDArray[np.int64]
Choices = tuple[int, ...]


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
