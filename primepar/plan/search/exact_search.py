"""The exact search: segments of a planner's graph put together, over options that may be the best.

Options that a bound shows to be part of no better plan than one that is known are left out first:
few are left, and the tables are small.
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
"""The operator whose options stand for those of any that leaves the stream."""
SLACK = 1e-9
"""Share of a cost by which sums in another order may differ."""


class Exact:
    """The plan of the least cost out of a planner's options, or out of some of them by kind."""

    def __init__(self, planner: Planner, among: Mapping[object, Numbers]) -> None:
        self.planner, self.among = planner, among
        self._edges: dict[object, Matrix] = {}
        self._tables: dict[object, Table] = {}

    @classmethod
    def of(cls, planner: Planner) -> Exact:
        """The search among the options that may be part of a plan as good as one that is known."""
        known = cheapest_way(*_chain(planner))
        most = planner.cost(dict(zip(planner.named, known, strict=True))) * (1 + SLACK)
        least = least_with(planner).items()
        return cls(planner, {kind: np.flatnonzero(bound <= most) for kind, bound in least})

    def search(self) -> tuple[float, dict[str, int]]:
        """The least cost, and an option of the planner for every operator that has it."""
        segments = self.planner.segments()
        tables = [self._segment(each) for each in segments]
        first = self.planner.first
        start, own = self._objective(first), self._own(first)
        if self.planner.tied:
            head = next(at for at, each in enumerate(segments) if each[-1].name == "head") + 1
            start, own, tables = self._tied(start, tables, head)
        cost, choices = cheapest(start, tables)
        return cost, self._named(own, choices)

    def _named(self, first: Numbers, choices: Choices) -> dict[str, int]:
        """Numbers of the planner for choices among those that are kept here."""
        owns = [first, *(self._own(name) for name in list(self.planner.named)[1:])]
        return {name: int(own[at]) for name, own, at in zip(self.planner.named, owns, choices,
                                                            strict=True)}  # fmt: skip

    def _own(self, name: str) -> Numbers:
        return self.among[kind_of(self.planner.named[name])]

    def _objective(self, name: str) -> Vector:
        return self.planner.objective(name)[self._own(name)]

    def _edge(self, producer: str, consumer: str) -> Matrix:
        key = kind_of(self.planner.named[producer]), kind_of(self.planner.named[consumer])
        if key not in self._edges:
            at = np.ix_(self._own(producer), self._own(consumer))
            self._edges[key] = self.planner.edge(producer, consumer)[at]
        return self._edges[key]

    def _step(self, operator: Operator, before: str, first: str) -> ChainStep:
        """An operator as the next node of a segment."""
        edge = self._edge(before, operator.name)
        several = len(operator.inputs) > 1
        extra = self._edge(first, operator.name) if several else None
        return ChainStep(edge, self._objective(operator.name), extra)

    def _segment(self, operators: Several[Operator]) -> Table:
        """The table of one segment.

        A segment of a block begins with the stream, which an addition, the embedding or a norm
        leaves: what follows depends on the layout alone, so that one table serves them all.
        """
        names = [operator.name for operator in operators]
        begin = STREAM if len(names) > 2 and self._in_stream(names[0]) is not None else names[0]
        key = tuple(kind_of(self.planner.named[name]) for name in (begin, *names[1:]))
        if key not in self._tables:
            pairs = zip(operators[1:], (begin, *names[1:]), strict=False)
            self._tables[key] = stretch(self._step(operator, before, begin)
                                        for operator, before in pairs)  # fmt: skip
        found, at = self._tables[key], self._in_stream(names[0])
        return found if begin == names[0] or at is None else found.at(at)

    def _in_stream(self, name: str) -> Numbers | None:
        """Option of the stream with the layout that each option of an operator leaves, if all."""
        if STREAM not in self.planner.named:
            return None
        at = {layout: place for place, layout in enumerate(self._leaves(STREAM))}
        found = [at.get(layout) for layout in self._leaves(name)]
        return None if None in found else np.array(found)

    def _leaves(self, name: str) -> list[int]:
        found: list[int] = self.planner.options(name).leaves[self._own(name)].tolist()
        return found

    def _tied(
        self, start: Vector, tables: list[Table], head: int
    ) -> tuple[Vector, Numbers, list[Table]]:  # fmt: skip
        """The best embedding alone at the start, and the table's way from there to the head.

        With that way, a plan costs at least as much more as without it the best plan does with its
        embedding, and the best with its head. Options of the embedding are tried in the order of
        this bound, until it is no better than the best that was found.
        """
        own = self._own("embedding")
        after = ahead(tables[head:], np.zeros(len(self._own("loss"))))
        tie = self.planner.tie()[np.ix_(own, self._own("head"))]
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
        one = np.array([chosen])
        first = tables[0].at(one)
        tables = [first, *tables[1 : head - 1], tables[head - 1].plus(tie[chosen]), *tables[head:]]
        return start[one], own[one], tables


def least_with(planner: Planner) -> dict[object, Vector]:
    """What a plan with each option costs at least, by kind of operator."""
    found: dict[object, Vector] = {}
    for operator, bound in zip(planner.operators, bounds(*_chain(planner)), strict=True):
        kind = kind_of(operator)
        found[kind] = np.minimum(found.get(kind, bound), bound)
    return found


def _chain(planner: Planner) -> tuple[Vector, list[ChainLink]]:
    """The cost of the first operator, and all others one after another."""
    links = [
        ChainLink((kind_of(one), kind_of(other)), planner.edge(one.name, other.name),
             planner.objective(other.name))
        for one, other in pairwise(planner.operators)
    ]  # fmt: skip
    return planner.objective(planner.first), links
