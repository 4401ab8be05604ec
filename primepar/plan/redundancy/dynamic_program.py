"""The cheapest choice by the segmented dynamic program of `primepar.plan.search.segments`."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from primepar.plan.redundancy.option_graph import Choices, Graph
from primepar.plan.search.segments import ChainStep, Table, cheapest, stretch


def cheapest_choices(graph: Graph, tied: str | None = None) -> Choices:
    """The choice with the least cost.

    The graph is a chain of segments: every node but the first has an edge from the previous one,
    and possibly one from the first of its segment. The first node of all may also have an edge to
    `tied`, the last node of a segment; then every option of the first node is tried.
    """
    tables = _tables(graph, tied)
    names = list(graph.nodes)
    start = graph.nodes[names[0]]
    if tied is None:
        _, choices = cheapest(start, [table for _, table in tables])
        return dict(zip(names, choices, strict=True))
    table_costs = graph.edges[names[0], tied]
    best, best_choices = np.inf, list[int]()
    for option in range(len(start)):
        first_option = np.array([option])
        with_table = [
            table.plus(table_costs[option]) if end == tied else table for end, table in tables
        ]
        cost, (_, *others) = cheapest(
            start[first_option], [with_table[0].at(first_option), *with_table[1:]]
        )
        if cost < best:
            best, best_choices = cost, [option, *others]
    return dict(zip(names, best_choices, strict=True))


def _tables(graph: Graph, tied: str | None) -> list[tuple[str, Table]]:
    """The last node of every segment, and its table; equal segments share one table."""
    by_steps: dict[object, Table] = {}
    tables = []
    for names in _segments(graph, tied):
        steps = [ChainStep(graph.edges[before, name], graph.nodes[name],
                      graph.edges.get((names[0], name)) if before != names[0] else None)
                 for before, name in pairwise(names)]  # fmt: skip
        key = tuple(id(part) for step in steps for part in step)
        if key not in by_steps:
            by_steps[key] = stretch(steps)
        tables.append((names[-1], by_steps[key]))
    return tables


def _segments(graph: Graph, tied: str | None) -> Iterator[list[str]]:
    """The nodes, cut where no edge skips but the one to `tied`; segments share their ends."""
    names = list(graph.nodes)
    index = {name: place for place, name in enumerate(names)}
    spans = [
        (index[producer], index[consumer])
        for producer, consumer in graph.edges
        if (producer, consumer) != (names[0], tied)
    ]
    first = 0
    for place in range(1, len(names)):
        if not any(producer < place < consumer for producer, consumer in spans):
            yield names[first : place + 1]
            first = place
