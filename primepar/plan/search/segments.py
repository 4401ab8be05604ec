"""Segmented dynamic programming (PrimePar, section 5): the cheapest choice for every node.

A table has the least cost of a stretch of a chain for each choice at its two ends; joining two
tables at the node between them minimises over that node (equation 11). An edge from the first to
the last node of a stretch is added to its table (equation 12). The node at the start of a table is
not counted in it, so that stretches join without counting a node twice.

Choices within a stretch are found again along the one best way, where they are asked for.

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
    """Least cost of a stretch by the choices at its ends; `parts` are what it was joined of."""

    costs: Matrix
    parts: tuple[Table, Table] | None = None

    def then(self, other: Table) -> Table:
        """This stretch and the one that starts where it ends (equations 11, 13 and 14)."""
        return Table(cheapest_sums(self.costs, other.costs), (self, other))

    def plus(self, extra: Matrix) -> Table:
        """The same stretch with an edge, or anything else, between its ends (equation 12)."""
        return Table(self.costs + extra, self.parts)

    def within(self, first: int, last: int) -> Choices:
        """Choices of the nodes between the ends of the cheapest way."""
        if self.parts is None:
            return ()
        one, other = self.parts
        middle = int((one.costs[first] + other.costs[:, last]).argmin())
        return (*one.within(first, middle), middle, *other.within(middle, last))

    def at(self, choices: Choice) -> Table:
        """The stretch from some of the choices of its first node, in that order."""
        parts = self.parts and (self.parts[0].at(choices), self.parts[1])
        return Table(self.costs[choices], parts)


def cheapest_sums(one: Matrix, other: Matrix) -> Matrix:
    """The least of one_PQ + other_QR over Q, the product of the (min, +) algebra."""
    found = np.full((one.shape[0], other.shape[1]), np.inf)
    sums = np.empty_like(found)
    for column, row in zip(one.T, other, strict=True):
        np.add(column[:, None], row, out=sums)
        np.minimum(found, sums, out=found)
    return found


class ChainStep(NamedTuple):
    """The next node of a chain: the costs of its edge, of it, and of an edge from the first node.

    `edge` is from the node before, by the choices of both.
    """

    edge: Matrix
    node: Vector
    first: Matrix | None = None

    def after(self, table: Table | None) -> Table:
        """The stretch with this node at its end."""
        own = Table(self.edge + self.node)
        found = own if table is None else table.then(own)
        return found if self.first is None else found.plus(self.first)


def stretch(steps: Iterable[ChainStep]) -> Table:
    """A segment of the graph: nodes in a chain, of which some take from the first one too.

    Raises `ValueError` for no steps.
    """
    first, *others = steps
    return reduce(lambda table, step: step.after(table), others, first.after(None))


def cheapest(start: Vector, tables: Several[Table]) -> tuple[float, Choices]:
    """The least cost along stretches that follow one another, and the choice of every node.

    `start` is the cost of the first node. With one end left open a stretch takes P^2 sums, where
    joining two takes P^3. The cost is infinite where no choice is possible.
    """
    reached = along(start, tables)
    last = int(reached[-1].argmin())
    cost, choices = float(reached[-1][last]), [last]
    for found, table in zip(reached[-2::-1], reversed(tables), strict=True):
        first = int((found + table.costs[:, last]).argmin())
        choices[:0] = (first, *table.within(first, last))
        last = first
    return cost, tuple(choices)


def along(start: Vector, tables: Iterable[Table]) -> list[Vector]:
    """The least cost of reaching every choice of each node at which stretches meet."""
    found = [start]
    for table in tables:
        found.append((found[-1][:, None] + table.costs).min(axis=0))
    return found


def ahead(tables: Several[Table], end: Vector) -> Vector:
    """The least cost of what lies ahead of every choice of the first node, `end` at the last."""
    for table in reversed(tables):
        end = (table.costs + end).min(axis=1)
    return end
