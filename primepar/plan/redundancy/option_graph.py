"""One option for every node of a graph: what all nodes and edges cost, and what never is cheapest.

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
"""Costs that are compared at once."""


@dataclass(frozen=True, eq=False)
class Graph:
    """Costs of the options of nodes, and of edges by the options of both ends.

    An edge goes from a node to a later one. Arrays that are one object are looked at once.
    """

    nodes: Mapping[str, Vector]
    edges: Mapping[Ends, Matrix]

    def cost(self, choices: Mapping[str, int]) -> float:
        """The cost of a choice of one option for every node."""
        own = sum(float(costs[choices[name]]) for name, costs in self.nodes.items())
        between = sum(float(costs[choices[one], choices[other]])
                      for (one, other), costs in self.edges.items())  # fmt: skip
        return own + between

    def only(self, kept: Mapping[str, Choice]) -> Graph:
        """The graph with some of the options."""
        seen = _Seen()
        nodes = {name: seen.at(costs, kept[name]) for name, costs in self.nodes.items()}
        edges = {ends: seen.at(costs, *(kept[end] for end in ends))
                 for ends, costs in self.edges.items()}  # fmt: skip
        return Graph(nodes, edges)

    def plus(self, weight: float, other: Graph) -> Graph:
        """The costs and so many times those of another graph of the same nodes and edges."""
        seen = _Seen()
        nodes = {name: seen.sum(costs, weight, other.nodes[name])
                 for name, costs in self.nodes.items()}  # fmt: skip
        edges = {ends: seen.sum(costs, weight, other.edges[ends])
                 for ends, costs in self.edges.items()}  # fmt: skip
        return Graph(nodes, edges)

    def arrays(self) -> list[Matrix]:
        """Costs of all nodes and edges, each array once."""
        every = (*self.nodes.values(), *self.edges.values())
        return list({id(costs): costs for costs in every}.values())


@dataclass
class _Seen:
    """Arrays that were made already, so that nodes alike stay alike."""

    found: dict[object, Matrix] = field(default_factory=dict)

    def at(self, costs: Matrix, *kept: Choice) -> Matrix:
        key = (id(costs), *(each.tobytes() for each in kept))
        if key not in self.found:
            self.found[key] = costs[np.ix_(*kept)]
        return self.found[key]

    def sum(self, costs: Matrix, weight: float, other: Matrix) -> Matrix:
        key = id(costs), id(other)
        if key not in self.found:
            self.found[key] = costs + weight * other
        return self.found[key]


def undominated(graphs: Several[Graph], peaks: Mapping[str, Vector] | None = None) -> Kept:
    """Options of every node without those that another makes needless.

    One option makes another needless if in every one of the graphs it costs no more, whatever the
    neighbours choose, and has no larger peak: in any plan it may take the other's place. So no
    optimum of one graph is lost, whatever bounds the others and the peaks have. Of options that
    make one another needless one stays.
    """
    kept: Kept = {name: np.arange(len(costs)) for name, costs in graphs[0].nodes.items()}
    seen: dict[object, Choice] = {}
    size, names = -1, list(kept)
    while size != (size := sum(map(len, kept.values()))):
        for name in names:
            around = [(graph.nodes[name], _edges(graph, name, kept)) for graph in graphs]
            peak = None if peaks is None else peaks[name]
            key = (id(peak), kept[name].tobytes(), *(
                (id(own), *((id(costs), side, other.tobytes()) for costs, side, other in edges))
                for own, edges in around
            ))  # fmt: skip
            if key not in seen:
                seen[key] = kept[name][_needed(around, peak, kept[name])]
            kept[name] = seen[key]
        names.reverse()
    return kept


Edge = tuple[Matrix, int, Choice]
"""Costs of an edge, the place of a node among its ends, and the options of the other end."""


def _edges(graph: Graph, name: str, kept: Kept) -> list[Edge]:
    return [(costs, ends.index(name), kept[ends[1 - ends.index(name)]])
            for ends, costs in graph.edges.items() if name in ends]  # fmt: skip


def _needed(
    around: Iterable[tuple[Vector, list[Edge]]], peak: Vector | None, own: Choice
) -> Choice:
    """Places of the options of a node that no other makes needless."""
    count = len(own)
    instead_BA = ~np.eye(count, dtype=bool)
    if peak is not None:
        instead_BA &= peak[own][:, None] <= peak[own]
    for costs, edges in around:
        own_BA = costs[own][:, None] - costs[own]
        rows = [matrix[np.ix_(own, other)] if side == 0 else matrix[np.ix_(other, own)].T
                for matrix, side, other in edges]  # fmt: skip
        instead_BA &= sum(map(_at_least_more, rows), own_BA) <= 0
        B, A = np.nonzero(instead_BA)
        instead_BA[B, A] = own_BA[B, A] + _most_more(rows, B, A) <= 0
    needed = np.ones(count, bool)
    for option in range(count):
        needed[option] = not (instead_BA[:, option] & needed).any()
    return np.flatnonzero(needed)


def _at_least_more(costs_PQ: Matrix) -> Matrix:
    """What each row costs more than each other one, where the one or the other is far from most."""
    beyond = costs_PQ - np.median(costs_PQ, axis=0)
    places, dear, cheap = np.arange(len(costs_PQ)), beyond.argmax(axis=1), beyond.argmin(axis=1)
    found: Matrix = np.maximum(
        costs_PQ[places, dear][:, None] - costs_PQ[:, dear].T,
        costs_PQ[:, cheap] - costs_PQ[places, cheap],
    )
    return found


def _most_more(rows: Iterable[Matrix], B: Choice, A: Choice) -> Vector:
    """What one of each pair of rows costs more than the other, at most, on all edges together."""
    worst = np.zeros(len(B))
    for costs_PQ in rows:
        for pairs in np.array_split(np.arange(len(B)), len(B) * costs_PQ.shape[1] // CELLS + 1):
            worst[pairs] += (costs_PQ[B[pairs]] - costs_PQ[A[pairs]]).max(axis=1)
    return worst
