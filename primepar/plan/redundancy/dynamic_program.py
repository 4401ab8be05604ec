"""The cheapest choice by the segmented dynamic program of `primepar.plan.search.segments`."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from primepar.plan.redundancy.option_graph import Choices, Graph
from primepar.plan.search.segments import ChainStep, Table, cheapest, stretch


def cheapest_choices(graph: Graph, tied: str | None = None) -> Choices:
    """The choice with the least cost.

    The graph is a chain of segments: every node but the first has an edge from the one before it,
    and maybe one from the first of its segment. The first node of all may have one to `tied` too,
    the last of a segment; then every option of the first is tried.
    """
    tables = _tables(graph, tied)
    names = list(graph.nodes)
    start = graph.nodes[names[0]]
    if tied is None:
        _, choices = cheapest(start, [table for _, table in tables])
        return dict(zip(names, choices, strict=True))
    way = graph.edges[names[0], tied]
    best, found = np.inf, list[int]()
    for option in range(len(start)):
        one = np.array([option])
        own = [table.plus(way[option]) if end == tied else table for end, table in tables]
        cost, (_, *others) = cheapest(start[one], [own[0].at(one), *own[1:]])
        if cost < best:
            best, found = cost, [option, *others]
    return dict(zip(names, found, strict=True))


def _tables(graph: Graph, tied: str | None) -> list[tuple[str, Table]]:
    """The last node of every segment, and its table; segments alike have the same one."""
    found: dict[object, Table] = {}
    tables = []
    for names in _segments(graph, tied):
        steps = [ChainStep(graph.edges[before, name], graph.nodes[name],
                      graph.edges.get((names[0], name)) if before != names[0] else None)
                 for before, name in pairwise(names)]  # fmt: skip
        key = tuple(id(part) for step in steps for part in step)
        if key not in found:
            found[key] = stretch(steps)
        tables.append((names[-1], found[key]))
    return tables


def _segments(graph: Graph, tied: str | None) -> Iterator[list[str]]:
    """The nodes, cut where no edge passes by but the one to `tied`; segments share their ends."""
    names = list(graph.nodes)
    at = {name: place for place, name in enumerate(names)}
    spans = [(at[one], at[other]) for one, other in graph.edges if (one, other) != (names[0], tied)]
    first = 0
    for place in range(1, len(names)):
        if not any(one < place < other for one, other in spans):
            yield names[first : place + 1]
            first = place
