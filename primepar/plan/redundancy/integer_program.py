"""The cheapest choice as an integer linear program, solved by HiGHS through SciPy.

For every node v and option p there is x[v, p], 0 or 1; one of them is 1 at each node. For every
edge and pair of options there is y[p, q] >= 0, the linearized product of the x of both ends. For
each p the sum of y over q is x[p] of one end; for each q the sum over p is x[q] of the other.
Minimized is the sum of node costs times x and edge costs times y. Sums of other costs, plus a
largest peak, may be bounded.

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
"""Variables of the largest program that is solved: the solver's setup obeys no time limit."""
OPTIMAL: Final = 0
INFEASIBLE: Final = 2
"""Status codes of `scipy.optimize.milp`."""


@dataclass(frozen=True)
class CostBound:
    """A bound: a graph's sum of costs, plus the largest of the chosen `peaks`, is at most `most`.

    The graph has the nodes of the minimized one, and none or all of its edges.
    """

    graph: Graph
    most: float
    peaks: Mapping[str, Vector] = field(default_factory=dict)

    def of(self, choices: Choices) -> float:
        """The sum of costs plus the largest peak of a choice."""
        peaks = (float(peaks_of_node[choices[name]]) for name, peaks_of_node in self.peaks.items())
        return self.graph.cost(choices) + max(peaks, default=0.0)

    def only(self, kept: Kept) -> CostBound:
        """The bound on some of the options."""
        peaks = {name: peaks_of_node[kept[name]] for name, peaks_of_node in self.peaks.items()}
        return CostBound(self.graph.only(kept), self.most, peaks)

    def holds(self, choices: Choices) -> bool:
        """Whether a choice is within the bound."""
        return self.of(choices) <= self.most


@dataclass(frozen=True)
class SolverResult:
    """What the solver returns.

    `choices` is the best choice, None if none was found; no choice costs less than `bound`. With
    `proved` the solver has finished: `choices` is the optimum, or, if None, no choice is feasible.
    `columns` is the number of variables.
    """

    choices: Choices | None
    cost: float
    bound: float
    proved: bool
    columns: int

    @classmethod
    def none(cls, columns: int) -> Self:
        """The result for a program that is too large to solve."""
        return cls(None, inf, -inf, proved=False, columns=columns)


def solve(
    graph: Graph, bounds: Several[CostBound] = (), seconds: float = inf, unit: float = 1.0
) -> SolverResult:
    """The choice with the least cost within the bounds, found in at most `seconds` seconds.

    A program of more than `MOST_COLUMNS` variables is not solved. The solver stops at a choice
    within a millionth of `unit` of the optimum. It accepts sums that exceed their bounds by up to a
    millionth. Such a choice is ruled out, and the program is solved again.
    """
    size = sum(costs.size for costs in (*graph.nodes.values(), *graph.edges.values()))
    if size > MOST_COLUMNS:
        return SolverResult.none(size)
    program, end = _Program(graph, bounds, unit), monotonic() + seconds
    while True:
        result = program.solve(max(0.0, end - monotonic()))
        if result.choices is None or all(bound.holds(result.choices) for bound in bounds):
            return result
        program.rule_out(result.choices)


@dataclass
class _Rows:
    """Rows of the program: sums of columns, each between two numbers."""

    entries: list[tuple[Choice, Choice, Vector]] = field(default_factory=list)
    least: list[Vector] = field(default_factory=list)
    most: list[Vector] = field(default_factory=list)
    count: int = 0

    def add(self, parts: Iterable[tuple[Choice, Choice, Vector]], least: Vector,
            most: Vector) -> None:  # fmt: skip
        """Add rows with these bounds; a part has rows counted from 0, columns and factors."""
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
        for option_columns in self.nodes.values():
            factors = np.ones(len(option_columns))
            self._add([(np.zeros_like(option_columns), option_columns, factors)], 1, 1.0, 1.0)
        for (producer, consumer), pairs in self.edges.items():
            self._sums(self.nodes[producer], pairs)
            self._sums(self.nodes[consumer], pairs.T)
        for number, bound in enumerate(bounds):
            self._bound(bound, self.peaks[number])

    def _new(self, count: int) -> Choice:
        self.columns += count
        return np.arange(self.columns - count, self.columns)

    def _add(self, parts: Iterable[tuple[Choice, Choice, Vector]], count: int, least: float,
             most: float) -> None:  # fmt: skip
        self.rows.add(parts, np.full(count, least), np.full(count, most))

    def _sums(self, option_columns: Choice, both_PQ: Choice) -> None:
        """For each option: the sum of y over its pairs is its x."""
        places = np.arange(len(option_columns))
        pairs = np.repeat(places, both_PQ.shape[1]), both_PQ.ravel(), np.ones(both_PQ.size)
        self._add(
            [pairs, (places, option_columns, -np.ones(len(option_columns)))],
            len(option_columns),
            0.0,
            0.0,
        )

    def _bound(self, bound: CostBound, peak: int) -> None:
        """Bound the sum plus the column `peak`, which is at least the chosen peak of every node."""
        scale = bound.most or 1.0
        columns, costs = self._costs(bound.graph)
        columns, costs = np.append(columns, peak), np.append(costs / scale, 1.0)
        self._add([(np.zeros_like(columns), columns, costs)], 1, -inf, bound.most / scale)
        for name, peaks in bound.peaks.items():
            option_columns = self.nodes[name]
            chosen = np.zeros_like(option_columns), option_columns, peaks / scale
            self._add([chosen, (np.zeros(1, int), np.array([peak]), -np.ones(1))], 1, -inf, 0.0)

    def _costs(self, graph: Graph) -> tuple[Choice, Vector]:
        """Columns of nodes and edges, and their costs."""
        parts = [(self.nodes[name], costs) for name, costs in graph.nodes.items()]
        parts += [(self.edges[ends].ravel(), costs.ravel()) for ends, costs in graph.edges.items()]
        columns, costs = zip(*parts, strict=True)
        return np.concatenate(columns), np.concatenate(costs)

    def rule_out(self, choices: Choices) -> None:
        """Exclude one choice: at least one node must choose another option."""
        chosen = np.array([self.nodes[name][option] for name, option in choices.items()])
        part = np.zeros_like(chosen), chosen, np.ones(len(chosen))
        self._add([part], 1, -inf, len(chosen) - 1.0)

    def solve(self, seconds: float) -> SolverResult:
        """Run HiGHS for at most `seconds` seconds."""
        from scipy.optimize import Bounds, LinearConstraint, milp
        from scipy.sparse import csr_array

        cost_columns, costs = self._costs(self.graph)
        objective, whole = np.zeros(self.columns), np.zeros(self.columns)
        objective[cost_columns], whole[: self.choosing] = costs / self.unit, 1
        highest = np.ones(self.columns)
        highest[self.peaks] = inf
        rows, columns, factors = map(np.concatenate, zip(*self.rows.entries, strict=True))
        table = csr_array((factors, (rows, columns)), shape=(self.rows.count, self.columns))
        least, most = np.concatenate(self.rows.least), np.concatenate(self.rows.most)
        limit = {"time_limit": seconds} if seconds < inf else {}
        solution = milp(
            objective, integrality=whole, bounds=Bounds(0, highest),
            constraints=LinearConstraint(table, least, most),
            options={"mip_rel_gap": 0.0} | limit,
        )  # fmt: skip
        return self._answer(solution)

    def _answer(self, solution: Any) -> SolverResult:
        bound = -inf if solution.mip_dual_bound is None else solution.mip_dual_bound * self.unit
        if solution.x is None:
            infeasible = solution.status == INFEASIBLE
            return SolverResult(None, inf, inf if infeasible else bound, infeasible, self.columns)
        choices = {
            name: int(solution.x[option_columns].argmax())
            for name, option_columns in self.nodes.items()
        }
        proved = solution.status == OPTIMAL
        return SolverResult(choices, self.graph.cost(choices), bound, proved, self.columns)
