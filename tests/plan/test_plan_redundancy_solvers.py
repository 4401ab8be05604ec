"""The integer program, the dynamic program and trying every choice find the same optimum."""

from __future__ import annotations

from itertools import pairwise, product

import numpy as np
import pytest
from test_plan_search import random_chain

from primepar.plan.redundancy.dynamic_program import cheapest_choices
from primepar.plan.redundancy.integer_program import CostBound, solve
from primepar.plan.redundancy.option_graph import Choices, Graph, undominated


def random_graph(seed: int) -> Graph:
    """The random chain of that seed."""
    start, segments = random_chain(seed)
    nodes, edges, last = {"0": start}, {}, "0"
    for steps in segments:
        first = last
        for edge, node, passing in steps:
            before, last = last, str(len(nodes))
            nodes[last], edges[before, last] = node, edge
            if passing is not None:
                edges[first, last] = passing
    return Graph(nodes, edges)


def every(graph: Graph) -> list[Choices]:
    options = (range(len(costs)) for costs in graph.nodes.values())
    return [dict(zip(graph.nodes, choice, strict=True)) for choice in product(*options)]


def like(graph: Graph, seed: int) -> Graph:
    """Other costs of the same nodes and edges."""
    random = np.random.default_rng(seed)

    def drawn(costs: np.ndarray) -> np.ndarray:
        return random.integers(0, 6, costs.shape).astype(float)

    nodes = {name: drawn(costs) for name, costs in graph.nodes.items()}
    return Graph(nodes, {ends: drawn(costs) for ends, costs in graph.edges.items()})


def tied(graph: Graph, seed: int) -> Graph:
    """The graph with one more edge, from its first node to its last."""
    first, *_, last = graph.nodes
    shape = len(graph.nodes[first]), len(graph.nodes[last])
    way = np.random.default_rng(seed).integers(0, 9, shape).astype(float)
    return Graph(graph.nodes, dict(graph.edges) | {(first, last): way})


@pytest.mark.parametrize("first", range(0, 200, 20))
def test_three_solvers_find_the_same_optimum(first: int) -> None:
    for seed in range(first, first + 20):
        graph = random_graph(seed)
        least = min(map(graph.cost, every(graph)))
        answer = solve(graph)
        assert answer.choices is not None
        assert graph.cost(answer.choices) == answer.cost == least
        assert answer.proved
        assert round(answer.bound, 6) == least
        assert graph.cost(cheapest_choices(graph)) == least


@pytest.mark.parametrize("first", range(0, 60, 20))
def test_they_do_so_where_the_first_node_is_tied_to_a_late_one(first: int) -> None:
    for seed in range(first, first + 20):
        graph = random_graph(seed)
        if len(graph.nodes) < 4:
            continue
        last = list(graph.nodes)[-1]
        graph = tied(graph, seed)
        least = min(map(graph.cost, every(graph)))
        assert solve(graph).cost == graph.cost(cheapest_choices(graph, last)) == least


@pytest.mark.parametrize("first", range(0, 60, 20))
def test_no_optimum_is_lost_with_the_options_that_are_left_out(first: int) -> None:
    fewer = 0
    for seed in range(first, first + 20):
        graph = random_graph(seed)
        kept = undominated([graph])
        left = graph.only(kept)
        fewer += sum(map(len, graph.nodes.values())) - sum(map(len, left.nodes.values()))
        least = min(map(graph.cost, every(graph)))
        answer = solve(left)
        assert answer.choices is not None
        chosen = {name: int(kept[name][number]) for name, number in answer.choices.items()}
        assert graph.cost(chosen) == answer.cost == least
    assert fewer > 20


@pytest.mark.parametrize("first", range(0, 60, 20))
def test_the_best_within_bounds_is_that_of_trying_every_choice(first: int) -> None:
    some = 0
    for seed in range(first, first + 20):
        graph = random_graph(seed)
        time, kept = like(graph, 1000 + seed), Graph(like(graph, 2000 + seed).nodes, {})
        peaks = like(graph, 3000 + seed).nodes
        times = sorted(map(time.cost, every(graph)))
        bounds = [CostBound(time, times[len(times) // 3]), CostBound(kept, 0.0, peaks)]
        sizes = sorted(map(bounds[1].of, every(graph)))
        bounds[1] = CostBound(kept, sizes[len(sizes) // 3], peaks)
        left = undominated([graph, time, kept], peaks)
        fitting = [
            candidate
            for candidate in every(graph)
            if all(bound.holds(candidate) for bound in bounds)
        ]
        bounds = [CostBound(candidate.graph.only(left), candidate.most,
                        {name: values[left[name]] for name, values in candidate.peaks.items()})
                  for candidate in bounds]  # fmt: skip
        answer = solve(graph.only(left), bounds)
        assert answer.proved
        if fitting:
            assert answer.cost == min(map(graph.cost, fitting))
            some += 1
        else:
            assert answer.choices is None
    assert some > 5


def test_a_sum_that_is_hardly_over_its_bound_is_over_it() -> None:
    graph = Graph({"a": np.array([0.0, 1.0])}, {})
    bound = CostBound(Graph({"a": np.array([1 + 1e-9, 1.0])}, {}), 1.0)
    answer = solve(graph, [bound])
    assert (answer.choices, answer.cost, answer.proved) == ({"a": 1}, 1.0, True)


def test_options_that_dominate_each_other_do_not_all_go() -> None:
    graph = Graph({"a": np.zeros(3), "b": np.zeros(2)}, {("a", "b"): np.zeros((3, 2))})
    assert [options.tolist() for options in undominated([graph]).values()] == [[2], [1]]


def test_a_solver_that_stops_early_proves_nothing() -> None:
    random = np.random.default_rng(0)
    names = [str(number) for number in range(12)]
    nodes = {name: random.random(30) for name in names}
    edges = {(one, other): random.random((30, 30)) for one, other in pairwise(names)}
    further = zip(names, names[3:], strict=False)
    edges |= {ends: random.random((30, 30)) for ends in further}
    answer = solve(Graph(nodes, edges), seconds=1e-3)
    assert not answer.proved
    assert answer.choices is None or answer.cost > answer.bound
