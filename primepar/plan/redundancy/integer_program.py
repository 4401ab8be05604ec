"""The cheapest choice as an integer linear program, solved by HiGHS through SciPy.

For every node v and option p there is x[v, p], 0 or 1, and one of a node's is 1. For every edge and
pair of options there is y[p, q] >= 0, the product of both ends' x made linear: for each p the sum
of y over q is x of the one end, for each q that over p is x of the other. Least is the sum of costs
of nodes by x and of edges by y; sums of other costs may be bounded, and a largest peak.

Legend: P, Q options of the two ends of an edge; R rows of the program, C its columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Several
from dataclasses import dataclass, field
from math import inf
from time import monotonic
from typing import Any, Final, Self

import numpy as np

from primepar.plan.redundancy.option_graph import Choices, Graph, Kept
from primepar.plan.search.segments import Choice, Vector

MOST_COLUMNS: Final = 1 << 20
"""Variables of the largest program that is tried, as the solver prepares it without a limit."""
OPTIMAL: Final = 0
INFEASIBLE: Final = 2
"""What `milp` says of how the solver ended."""


@dataclass(frozen=True)
class CostBound:
    """What is at most `most`: the sum of a graph's costs, and the largest of the chosen `peaks`.

    The graph has the nodes of the one whose cost is least, and none or all of its edges.
    """

    graph: Graph
    most: float
    peaks: Mapping[str, Vector] = field(default_factory=dict)

    def of(self, choices: Choices) -> float:
        """The sum and the largest peak of a choice."""
        peaks = (float(own[choices[name]]) for name, own in self.peaks.items())
        return self.graph.cost(choices) + max(peaks, default=0.0)

    def only(self, kept: Kept) -> CostBound:
        """The bound on some of the options."""
        peaks = {name: own[kept[name]] for name, own in self.peaks.items()}
        return CostBound(self.graph.only(kept), self.most, peaks)

    def holds(self, choices: Choices) -> bool:
        """Whether a choice is within the bound."""
        return self.of(choices) <= self.most


@dataclass(frozen=True)
class SolverResult:
    """What the solver says.

    `choices` is the best that it found, None if nothing; no choice costs less than `bound`. It is
    `proved` that this is the optimum, or without `choices` that there is none, if the solver
    finished by itself. `columns` is the number of variables.
    """

    choices: Choices | None
    cost: float
    bound: float
    proved: bool
    columns: int

    @classmethod
    def none(cls, columns: int) -> Self:
        """Of a program that is not tried."""
        return cls(None, inf, -inf, proved=False, columns=columns)


def solve(
    graph: Graph, bounds: Several[CostBound] = (), seconds: float = inf, unit: float = 1.0
) -> SolverResult:
    """The choice with the least cost within the bounds, for at most so many seconds.

    A program of more than `MOST_COLUMNS` variables is not tried. The solver stops at a choice
    within a millionth of `unit` of the optimum. It takes a sum for bounded that is more than its
    bound by a millionth or less; such a choice is ruled out, and the rest solved again.
    """
    size = sum(costs.size for costs in (*graph.nodes.values(), *graph.edges.values()))
    if size > MOST_COLUMNS:
        return SolverResult.none(size)
    program, end = _Program(graph, bounds, unit), monotonic() + seconds
    while True:
        found = program.solve(max(0.0, end - monotonic()))
        if found.choices is None or all(each.holds(found.choices) for each in bounds):
            return found
        program.rule_out(found.choices)


@dataclass
class _Rows:
    """Rows of the program: sums of columns, each between two numbers."""

    entries: list[tuple[Choice, Choice, Vector]] = field(default_factory=list)
    least: list[Vector] = field(default_factory=list)
    most: list[Vector] = field(default_factory=list)
    count: int = 0

    def add(self, parts: Iterable[tuple[Choice, Choice, Vector]], least: Vector,
            most: Vector) -> None:  # fmt: skip
        """Rows with these bounds; a part has rows from 0, columns and factors."""
        self.entries += [(rows + self.count, columns, factors) for rows, columns, factors in parts]
        self.least.append(least)
        self.most.append(most)
        self.count += len(least)


class _Program:
    def __init__(self, graph: Graph, bounds: Several[CostBound], unit: float) -> None:
        self.graph, self.unit = graph, unit
        self.nodes: dict[str, Choice] = {}
        self.edges: dict[tuple[str, str], Choice] = {}
        self.columns = 0
        for name, costs in graph.nodes.items():
            self.nodes[name] = self._new(len(costs))
        self.choosing = self.columns
        for ends, table in graph.edges.items():
            self.edges[ends] = self._new(table.size).reshape(table.shape)
        self.peaks = self._new(len(bounds))
        self.rows = _Rows()
        for own in self.nodes.values():
            self._add([(np.zeros_like(own), own, np.ones(len(own)))], 1, 1.0, 1.0)
        for (one, other), both in self.edges.items():
            for own, pairs in ((self.nodes[one], both), (self.nodes[other], both.T)):
                self._sums(own, pairs)
        for at, bound in enumerate(bounds):
            self._bound(bound, self.peaks[at])

    def _new(self, count: int) -> Choice:
        self.columns += count
        return np.arange(self.columns - count, self.columns)

    def _add(self, parts: Iterable[tuple[Choice, Choice, Vector]], count: int, least: float,
             most: float) -> None:  # fmt: skip
        self.rows.add(parts, np.full(count, least), np.full(count, most))

    def _sums(self, own: Choice, both_PQ: Choice) -> None:
        """The pairs with an option are chosen as often as the option."""
        places = np.arange(len(own))
        pairs = np.repeat(places, both_PQ.shape[1]), both_PQ.ravel(), np.ones(both_PQ.size)
        self._add([pairs, (places, own, -np.ones(len(own)))], len(own), 0.0, 0.0)

    def _bound(self, bound: CostBound, peak: int) -> None:
        """The sum and the largest peak; no node has a larger one than that column says."""
        scale = bound.most or 1.0
        columns, costs = self._costs(bound.graph)
        columns, costs = np.append(columns, peak), np.append(costs / scale, 1.0)
        self._add([(np.zeros_like(columns), columns, costs)], 1, -inf, bound.most / scale)
        for name, peaks in bound.peaks.items():
            own = self.nodes[name]
            chosen = np.zeros_like(own), own, peaks / scale
            self._add([chosen, (np.zeros(1, int), np.array([peak]), -np.ones(1))], 1, -inf, 0.0)

    def _costs(self, graph: Graph) -> tuple[Choice, Vector]:
        """Columns of nodes and edges, and their costs."""
        parts = [(self.nodes[name], costs) for name, costs in graph.nodes.items()]
        parts += [(self.edges[ends].ravel(), costs.ravel()) for ends, costs in graph.edges.items()]
        columns, costs = zip(*parts, strict=True)
        return np.concatenate(columns), np.concatenate(costs)

    def rule_out(self, choices: Choices) -> None:
        """Another choice for one node at least."""
        chosen = np.array([self.nodes[name][option] for name, option in choices.items()])
        part = np.zeros_like(chosen), chosen, np.ones(len(chosen))
        self._add([part], 1, -inf, len(chosen) - 1.0)

    def solve(self, seconds: float) -> SolverResult:
        """What HiGHS finds in so many seconds."""
        from scipy.optimize import Bounds, LinearConstraint, milp
        from scipy.sparse import csr_array

        at, costs = self._costs(self.graph)
        objective, whole = np.zeros(self.columns), np.zeros(self.columns)
        objective[at], whole[: self.choosing] = costs / self.unit, 1
        highest = np.ones(self.columns)
        highest[self.peaks] = inf
        rows, columns, factors = map(np.concatenate, zip(*self.rows.entries, strict=True))
        table = csr_array((factors, (rows, columns)), shape=(self.rows.count, self.columns))
        least, most = np.concatenate(self.rows.least), np.concatenate(self.rows.most)
        limit = {"time_limit": seconds} if seconds < inf else {}
        told = milp(
            objective, integrality=whole, bounds=Bounds(0, highest),
            constraints=LinearConstraint(table, least, most),
            options={"mip_rel_gap": 0.0} | limit,
        )  # fmt: skip
        return self._answer(told)

    def _answer(self, told: Any) -> SolverResult:
        bound = -inf if told.mip_dual_bound is None else told.mip_dual_bound * self.unit
        if told.x is None:
            infeasible = told.status == INFEASIBLE
            return SolverResult(None, inf, inf if infeasible else bound, infeasible, self.columns)
        choices = {name: int(told.x[own].argmax()) for name, own in self.nodes.items()}
        proved = told.status == OPTIMAL
        return SolverResult(choices, self.graph.cost(choices), bound, proved, self.columns)
