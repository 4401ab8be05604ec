"""The front of cost and memory is that of trying every choice."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from primepar.plan.search.pareto_front import Box, Chain, ChainNode, pareto_front, point


def random_nodes(seed: int) -> list[ChainNode]:
    """Up to seven nodes of up to four choices, with small whole numbers."""
    random = np.random.default_rng(seed)
    before, first, nodes, length = 1, 1, [], 0
    count = int(random.integers(1, 8))
    for place in range(count):
        options = int(random.integers(1, 5))

        def some(*shape: int) -> np.ndarray:
            return random.integers(0, 9, shape).astype(float)

        ends = place in (0, count - 1) or random.random() < 0.3
        passing = some(first, options) if length > 1 and random.random() < 0.6 else None
        nodes.append(
            ChainNode(
                some(options), some(options), some(options), some(before, options), passing, ends
            )
        )
        before, length = options, 0 if ends else length
        first, length = (options, 1) if ends else (first, length + 1)
    return nodes


def every(nodes: list[ChainNode]) -> list[tuple[float, float]]:
    """Cost and memory of all choices, summed up here."""
    plans = []
    for choices in product(*(range(len(node.cost)) for node in nodes)):
        cost = kept = rest = 0.0
        first = last = 0
        for node, choice in zip(nodes, choices, strict=True):
            cost += node.edge[last, choice] + node.cost[choice]
            cost += 0 if node.first is None else node.first[first, choice]
            kept, rest, last = kept + node.kept[choice], max(rest, node.rest[choice]), choice
            first = choice if node.ends else first
        plans.append((float(cost), float(kept + rest)))
    return plans


def front(plans: list[tuple[float, float]]) -> list[tuple[float, float]]:
    points: list[tuple[float, float]] = []
    for cost, memory in sorted(set(plans)):
        if not points or memory < points[-1][1]:
            points.append((cost, memory))
    return points


@pytest.mark.parametrize("first", range(0, 200, 20))
def test_the_front_is_that_of_trying_every_choice(first: int) -> None:
    for seed in range(first, first + 20):
        nodes = random_nodes(seed)
        points = Chain.of(nodes).within(Box(1e9, 1e9))
        assert [(candidate.cost, candidate.memory) for candidate in points] == front(every(nodes))
        assert all(point(nodes, candidate.choices) == candidate for candidate in points)


@pytest.mark.parametrize("first", range(0, 60, 20))
def test_within_a_box_are_all_points_of_the_front_inside_it(first: int) -> None:
    for seed in range(first, first + 20):
        nodes = random_nodes(seed)
        whole = front(plans := every(nodes))
        costs, sizes = zip(*whole, strict=True)
        random = np.random.default_rng(seed)
        box = Box(float(random.choice(costs)), float(random.choice(sizes)))
        inside = {
            candidate for candidate in whole if candidate[0] <= box[0] and candidate[1] <= box[1]
        }
        for chain in (Chain.of(nodes), Chain.of(nodes, box)):
            points = {(candidate.cost, candidate.memory) for candidate in chain.within(box)}
            assert inside <= points <= set(plans)


def test_what_is_near_is_among_the_plans() -> None:
    for seed in range(50):
        nodes = random_nodes(seed)
        plans = every(nodes)
        near = Chain.of(nodes).near
        assert {(candidate.cost, candidate.memory) for candidate in near} <= set(plans)
        assert min(candidate.cost for candidate in near) == min(plans)[0]


def test_of_equal_points_one_is_unbeaten() -> None:
    cost, memory = np.array([2.0, 1.0, 1.0, 3.0]), np.array([2.0, 5.0, 4.0, 2.0])
    assert pareto_front(cost, memory).tolist() == [2, 0]
