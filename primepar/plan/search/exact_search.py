"""The exact search: segmented dynamic programming over the options that can be in a best plan.

Options are pruned first: those whose lower bound is above the cost of a known plan are in no better
plan. Few options remain, and the tables are small.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Several
from itertools import pairwise

import numpy as np

from primepar.models.graph import Operator
from primepar.plan.search.bounds import ChainLink, bounds, cheapest_way
from primepar.plan.search.options import Numbers, kind_of
from primepar.plan.search.planner import Planner
from primepar.plan.search.segments import (
    ChainStep,
    Choices,
    Matrix,
    Table,
    Vector,
    ahead,
    along,
    cheapest,
    stretch,
)

STREAM = "blocks.0.add2"
"""The operator whose layouts index the tables of segments that start in the residual stream."""
SLACK = 1e-9
"""Relative difference that sums in another order may have."""


class Exact:
    """The plan of least cost out of the options `among`, given by kind of operator."""

    def __init__(self, planner: Planner, among: Mapping[object, Numbers]) -> None:
        self.planner, self.among = planner, among
        self._edges: dict[object, Matrix] = {}
        self._tables: dict[object, Table] = {}

    @classmethod
    def of(cls, planner: Planner) -> Exact:
        """The search among the options that can be in a plan as cheap as a known one."""
        known = cheapest_way(*_chain(planner))
        most = planner.cost(dict(zip(planner.named, known, strict=True))) * (1 + SLACK)
        least = least_with(planner).items()
        return cls(planner, {kind: np.flatnonzero(bound <= most) for kind, bound in least})

    def search(self) -> tuple[float, dict[str, int]]:
        """The least cost, and the planner's option of every operator in that plan."""
        segments = self.planner.segments()
        tables = [self._segment(segment) for segment in segments]
        first = self.planner.first
        start, first_options = self._objective(first), self._kept(first)
        if self.planner.tied:
            head = (
                next(index for index, segment in enumerate(segments) if segment[-1].name == "head")
                + 1
            )
            start, first_options, tables = self._tied(start, tables, head)
        cost, choices = cheapest(start, tables)
        return cost, self._named(first_options, choices)

    def _named(self, first: Numbers, choices: Choices) -> dict[str, int]:
        """The planner's option numbers for choices among the kept options."""
        options = [first, *(self._kept(name) for name in list(self.planner.named)[1:])]
        return {
            name: int(numbers[choice])
            for name, numbers, choice in zip(self.planner.named, options, choices, strict=True)
        }

    def _kept(self, name: str) -> Numbers:
        return self.among[kind_of(self.planner.named[name])]

    def _objective(self, name: str) -> Vector:
        return self.planner.objective(name)[self._kept(name)]

    def _edge(self, producer: str, consumer: str) -> Matrix:
        key = kind_of(self.planner.named[producer]), kind_of(self.planner.named[consumer])
        if key not in self._edges:
            index = np.ix_(self._kept(producer), self._kept(consumer))
            self._edges[key] = self.planner.edge(producer, consumer)[index]
        return self._edges[key]

    def _step(self, operator: Operator, before: str, first: str) -> ChainStep:
        """An operator as the next node of a segment."""
        edge = self._edge(before, operator.name)
        several = len(operator.inputs) > 1
        extra = self._edge(first, operator.name) if several else None
        return ChainStep(edge, self._objective(operator.name), extra)

    def _segment(self, operators: Several[Operator]) -> Table:
        """The table of one segment.

        A segment of a block starts in the residual stream, after an addition, the embedding or a
        norm. Its table depends on the layout of the stream alone, so that one table serves all.
        """
        names = [operator.name for operator in operators]
        begin = STREAM if len(names) > 2 and self._in_stream(names[0]) is not None else names[0]
        key = tuple(kind_of(self.planner.named[name]) for name in (begin, *names[1:]))
        if key not in self._tables:
            pairs = zip(operators[1:], (begin, *names[1:]), strict=False)
            self._tables[key] = stretch(self._step(operator, before, begin)
                                        for operator, before in pairs)  # fmt: skip
        table, choices = self._tables[key], self._in_stream(names[0])
        return table if begin == names[0] or choices is None else table.at(choices)

    def _in_stream(self, name: str) -> Numbers | None:
        """Option of the stream with the layout that each option of an operator leaves, if all."""
        if STREAM not in self.planner.named:
            return None
        option_of = {layout: place for place, layout in enumerate(self._leaves(STREAM))}
        options = [option_of.get(layout) for layout in self._leaves(name)]
        return None if None in options else np.array(options)

    def _leaves(self, name: str) -> list[int]:
        layouts: list[int] = self.planner.options(name).leaves[self._kept(name)].tolist()
        return layouts

    def _tied(
        self, start: Vector, tables: list[Table], head: int
    ) -> tuple[Vector, Numbers, list[Table]]:  # fmt: skip
        """Fix the best embedding of a tied model, with the table's redistribution to the head.

        The redistribution is an edge over the whole chain. A lower bound of each pair (embedding,
        head) is its cost plus the larger of two costs: the best plan with this embedding, and the
        best with this head, both without that edge. Embeddings are tried in the order of their
        bounds, until a bound is no lower than the best cost so far.
        """
        embeddings = self._kept("embedding")
        after = ahead(tables[head:], np.zeros(len(self._kept("loss"))))
        tie = self.planner.tie()[np.ix_(embeddings, self._kept("head"))]
        with_embedding = start + ahead(tables[:head], after)
        with_head = along(start, tables[:head])[-1] + after
        bounds = (np.maximum(with_embedding[:, None], with_head) + tie).min(axis=1)
        best, chosen = np.inf, 0
        for option in np.argsort(bounds, kind="stable").tolist():
            if bounds[option] >= best:
                break
            reached = along(start[[option]], [tables[0].at(np.array([option])), *tables[1:head]])
            cost = float((reached[-1] + tie[option] + after).min())
            if cost < best:
                best, chosen = cost, option
        index = np.array([chosen])
        first = tables[0].at(index)
        tables = [first, *tables[1 : head - 1], tables[head - 1].plus(tie[chosen]), *tables[head:]]
        return start[index], embeddings[index], tables


def least_with(planner: Planner) -> dict[object, Vector]:
    """A lower bound of the cost of a plan with each option, by kind of operator."""
    least: dict[object, Vector] = {}
    for operator, bound in zip(planner.operators, bounds(*_chain(planner)), strict=True):
        kind = kind_of(operator)
        least[kind] = np.minimum(least.get(kind, bound), bound)
    return least


def _chain(planner: Planner) -> tuple[Vector, list[ChainLink]]:
    """Costs of the first operator, and the links of the chain to all later ones."""
    links = [
        ChainLink((kind_of(before), kind_of(operator)), planner.edge(before.name, operator.name),
             planner.objective(operator.name))
        for before, operator in pairwise(planner.operators)
    ]  # fmt: skip
    return planner.objective(planner.first), links
