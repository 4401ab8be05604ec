"""Graphs with one option to choose per node: their costs, and the removal of dominated options.

Legend: P, Q options of the two ends of an edge; B, A options of one node, B instead of A.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Several
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from primepar.plan.search.segments import Choice, Matrix, Vector

Ends = tuple[str, str]
Choices = dict[str, int]
Kept = dict[str, Choice]
CELLS: Final = 1 << 20
"""Maximum number of costs that are compared in one array."""


@dataclass(frozen=True, eq=False)
class Graph:
    """Costs of the options of nodes, and of edges by the options of both ends.

    An edge goes from a node to a later one. Equal arrays should be one object: each is used once.
    """

    nodes: Mapping[str, Vector]
    edges: Mapping[Ends, Matrix]

    def cost(self, choices: Mapping[str, int]) -> float:
        """The cost of a choice of one option for every node."""
        nodes = sum(float(costs[choices[name]]) for name, costs in self.nodes.items())
        between = sum(float(costs[choices[producer], choices[consumer]])
                      for (producer, consumer), costs in self.edges.items())  # fmt: skip
        return nodes + between

    def only(self, kept: Mapping[str, Choice]) -> Graph:
        """The graph with some of the options."""
        seen = _Seen()
        nodes = {name: seen.at(costs, kept[name]) for name, costs in self.nodes.items()}
        edges = {ends: seen.at(costs, *(kept[end] for end in ends))
                 for ends, costs in self.edges.items()}  # fmt: skip
        return Graph(nodes, edges)

    def plus(self, weight: float, other: Graph) -> Graph:
        """The costs plus `weight` times those of another graph with the same nodes and edges."""
        seen = _Seen()
        nodes = {name: seen.sum(costs, weight, other.nodes[name])
                 for name, costs in self.nodes.items()}  # fmt: skip
        edges = {ends: seen.sum(costs, weight, other.edges[ends])
                 for ends, costs in self.edges.items()}  # fmt: skip
        return Graph(nodes, edges)

    def arrays(self) -> list[Matrix]:
        """Costs of all nodes and edges, each array once."""
        all_costs = (*self.nodes.values(), *self.edges.values())
        return list({id(costs): costs for costs in all_costs}.values())


@dataclass
class _Seen:
    """Cached arrays, so that equal nodes keep sharing one array."""

    _tables: dict[object, Matrix] = field(default_factory=dict)

    def at(self, costs: Matrix, *kept: Choice) -> Matrix:
        key = (id(costs), *(options.tobytes() for options in kept))
        if key not in self._tables:
            self._tables[key] = costs[np.ix_(*kept)]
        return self._tables[key]

    def sum(self, costs: Matrix, weight: float, other: Matrix) -> Matrix:
        key = id(costs), id(other)
        if key not in self._tables:
            self._tables[key] = costs + weight * other
        return self._tables[key]


def undominated(graphs: Several[Graph], peaks: Mapping[str, Vector] | None = None) -> Kept:
    """The options of every node without the dominated ones.

    One option dominates another if it costs no more in every graph, whatever the neighbours choose,
    and has no larger peak. Then it can replace the other in any plan. So no optimum of one graph is
    lost, whatever the bounds of the others and of the peaks. Of options that dominate each other
    one stays. Example: A costs 2 more than B at its node. A dominates B only if, for every choice
    of the neighbours, its edges cost at least 2 less.
    """
    kept: Kept = {name: np.arange(len(costs)) for name, costs in graphs[0].nodes.items()}
    seen: dict[object, Choice] = {}
    size, names = -1, list(kept)
    while size != (size := sum(map(len, kept.values()))):
        for name in names:
            around = [(graph.nodes[name], _edges(graph, name, kept)) for graph in graphs]
            peak = None if peaks is None else peaks[name]
            key = (
                id(peak),
                kept[name].tobytes(),
                *(
                    (
                        id(costs_of_node),
                        *((id(costs), side, other.tobytes()) for costs, side, other in edges),
                    )
                    for costs_of_node, edges in around
                ),
            )
            if key not in seen:
                seen[key] = kept[name][_needed(around, peak, kept[name])]
            kept[name] = seen[key]
        names.reverse()
    return kept


Edge = tuple[Matrix, int, Choice]
"""Costs of an edge, the index of the node among its ends, and the options of the other end."""


def _edges(graph: Graph, name: str, kept: Kept) -> list[Edge]:
    return [(costs, ends.index(name), kept[ends[1 - ends.index(name)]])
            for ends, costs in graph.edges.items() if name in ends]  # fmt: skip


def _needed(
    around: Iterable[tuple[Vector, list[Edge]]], peak: Vector | None, options: Choice
) -> Choice:
    """Indices of the options of a node that no other dominates."""
    count = len(options)
    instead_BA = ~np.eye(count, dtype=bool)
    if peak is not None:
        instead_BA &= peak[options][:, None] <= peak[options]
    for costs, edges in around:
        node_BA = costs[options][:, None] - costs[options]
        rows = [
            matrix[np.ix_(options, neighbours)]
            if side == 0
            else matrix[np.ix_(neighbours, options)].T
            for matrix, side, neighbours in edges
        ]
        instead_BA &= sum(map(_at_least_more, rows), node_BA) <= 0
        B, A = np.nonzero(instead_BA)
        instead_BA[B, A] = node_BA[B, A] + _most_more(rows, B, A) <= 0
    needed = np.ones(count, bool)
    for option in range(count):
        needed[option] = not (instead_BA[:, option] & needed).any()
    return np.flatnonzero(needed)


def _at_least_more(costs_PQ: Matrix) -> Matrix:
    """A lower bound of the largest extra cost of each row over each other, from two columns.

    The columns are those in which the one row is dearest, and the other cheapest, against medians.
    """
    beyond = costs_PQ - np.median(costs_PQ, axis=0)
    places, dear, cheap = np.arange(len(costs_PQ)), beyond.argmax(axis=1), beyond.argmin(axis=1)
    least: Matrix = np.maximum(
        costs_PQ[places, dear][:, None] - costs_PQ[:, dear].T,
        costs_PQ[:, cheap] - costs_PQ[places, cheap],
    )
    return least


def _most_more(rows: Iterable[Matrix], B: Choice, A: Choice) -> Vector:
    """The largest extra cost of the first row of each pair over the second, summed over edges."""
    worst = np.zeros(len(B))
    for costs_PQ in rows:
        for pairs in np.array_split(np.arange(len(B)), len(B) * costs_PQ.shape[1] // CELLS + 1):
            worst[pairs] += (costs_PQ[B[pairs]] - costs_PQ[A[pairs]]).max(axis=1)
    return worst
