"""The search finds what trying every plan finds."""

from __future__ import annotations

from itertools import groupby, pairwise, product

import numpy as np
import pytest
from planner_cases import BLOOM, SMALL, TWO_LEVELS, UNTIED

from primepar.models.config import ModelConfig
from primepar.models.graph import operators
from primepar.plan.cost.candidate import Candidate
from primepar.plan.cost.sweeps import moving
from primepar.plan.search.options import Numbers, kind_of
from primepar.plan.search.planner import Planner
from primepar.plan.search.search import (
    ChainStep,
    Exact,
    Table,
    cheapest,
    search,
    stretch,
)
from primepar.plan.search.sequence_space import SequenceSpace, SpaceName
from primepar.schedule.sequence import Element

Chain = list[tuple[ChainStep, int]]


def random_chain(seed: int) -> tuple[np.ndarray, list[list[ChainStep]]]:
    """Segments of one to four nodes with up to four options, and costs that may be equal."""
    random = np.random.default_rng(seed)

    def costs(*shape: int) -> np.ndarray:
        return random.integers(0, 6, shape).astype(float)

    sizes = int(random.integers(1, 5))
    start, segments = costs(sizes), []
    for _ in range(int(random.integers(1, 4))):
        first, steps = sizes, []
        for number in range(int(random.integers(1, 4))):
            options = int(random.integers(1, 4))
            passes = number > 0 and random.random() < 0.6
            steps.append(
                ChainStep(
                    costs(sizes, options), costs(options), costs(first, options) if passes else None
                )
            )
            sizes = options
        segments.append(steps)
    return start, segments


def cost_of(choice: tuple[int, ...], start: np.ndarray, segments: list[list[ChainStep]]) -> float:
    total, index = start[choice[0]], 0
    for steps in segments:
        first = choice[index]
        for edge, node, passing in steps:
            total += edge[choice[index], choice[index + 1]] + node[choice[index + 1]]
            if passing is not None:
                total += passing[first, choice[index + 1]]
            index += 1
    return float(total)


def every(start: np.ndarray, segments: list[list[ChainStep]]) -> list[tuple[int, ...]]:
    sizes = [len(start), *(len(step.node) for steps in segments for step in steps)]
    return list(product(*map(range, sizes)))


@pytest.mark.parametrize("first", range(0, 200, 20))
def test_the_least_cost_is_that_of_trying_every_choice(first: int) -> None:
    for seed in range(first, first + 20):
        start, segments = random_chain(seed)
        cost, choice = cheapest(start, [stretch(steps) for steps in segments])
        assert cost == min(
            cost_of(candidate, start, segments) for candidate in every(start, segments)
        )
        assert cost == cost_of(choice, start, segments)


def test_stretches_join_to_one_with_the_same_costs() -> None:
    for seed in range(20):
        start, segments = random_chain(seed)
        first, *others = [stretch(steps) for steps in segments]
        whole = first
        for other in others:
            whole = whole.then(other)
        assert cheapest(start, [whole]) == cheapest(start, [first, *others])


def test_a_table_from_some_choices_of_its_start_is_the_rows_of_these() -> None:
    start, segments = random_chain(5)
    (table, *_) = [stretch(steps) for steps in segments]
    rows = np.array([len(start) - 1, 0, 0])
    some = table.at(rows)
    assert (some.costs == table.costs[rows]).all()
    assert [some.within(1, 0), some.within(2, 0)] == [table.within(0, 0)] * 2


def test_what_is_impossible_costs_infinity() -> None:
    none = Table(np.full((1, 1), np.inf))
    assert cheapest(np.zeros(1), [none])[0] == np.inf


def test_the_blocks_alone_are_planned_after_an_addition_that_leaves_the_stream() -> None:
    planner = Planner.of(BLOOM, TWO_LEVELS, 2, 4, None, "paper", part="blocks")
    assert [operator.name for operator in planner.operators] == ["stream"] + [
        operator.name for operator in operators(BLOOM) if operator.name.startswith("blocks")
    ]
    result = search(planner)
    assert result.cost == pytest.approx(by_elimination(planner), rel=1e-12)
    assert improved(planner, result.choices) >= result.cost * (1 - 1e-12)


def improved(planner: Planner, choices: dict[str, int]) -> float:
    """The least cost after any change of the choices of two operators that are neighbours."""
    least = np.inf
    names = list(choices)
    for one, other in pairwise(names):
        pairs = product(range(len(planner.options(one))), range(len(planner.options(other))))
        for a, b in pairs:
            least = min(least, planner.cost(choices | {one: a, other: b}))
    return least


@pytest.mark.parametrize("model", [SMALL, UNTIED, BLOOM], ids=["tied", "untied", "one layer"])
def test_a_found_plan_has_its_cost_and_no_change_of_two_neighbours_is_better(
    model: ModelConfig,
) -> None:
    result = search(Planner.of(model, TWO_LEVELS, 2, 4, None, "paper"))
    planner = result.planner
    assert planner.cost(result.choices) == pytest.approx(result.cost, rel=1e-12)
    assert result.seconds == pytest.approx(result.cost, rel=1e-12)
    assert improved(planner, result.choices) >= result.cost * (1 - 1e-12)
    assert result.plan.ranks == 2


def by_elimination(planner: Planner) -> float:
    """The least cost with every node kept that a later edge needs: one array, node by node."""
    names = list(planner.named)
    last = {producer: place for place, name in enumerate(names)
            for producer, _ in planner.edges_into(name)}  # fmt: skip
    remaining, costs = [names[0]], planner.objective(names[0])
    for index, name in enumerate(names[1:], 1):
        remaining, costs = [*remaining, name], costs[..., None] + planner.objective(name)
        for producer, edge in planner.edges_into(name):
            shape = [1] * costs.ndim
            shape[remaining.index(producer)], shape[-1] = edge.shape
            costs = costs + edge.reshape(shape)
        for gone in [one for one in remaining if one != name and last.get(one, 0) <= index]:
            costs = costs.min(axis=remaining.index(gone))
            remaining.remove(gone)
    return float(costs.min())


@pytest.mark.parametrize(
    ("model", "devices", "space"),
    [(SMALL, 1, "paper"), (SMALL, 2, "all"), (UNTIED, 2, "all"), (BLOOM, 4, "paper")],
)
def test_the_best_plan_is_that_of_eliminating_node_by_node(
    model: ModelConfig, devices: int, space: SpaceName
) -> None:
    planner = Planner.of(model, TWO_LEVELS, devices, 4, None, space)
    assert search(planner).cost == pytest.approx(by_elimination(planner), rel=1e-12)


def class_of(candidate: Candidate, levels: tuple[int, ...]) -> tuple[object, ...]:
    """Elements of a sequence, those of cuts by level of bits in any order."""

    def run_of(place: tuple[Element, tuple[int, ...]]) -> object:
        element, bits = place
        return levels[bits[0]] if moving(element).is_cut else None

    runs = ([element for element, _ in run] for _, run in groupby(candidate.places, key=run_of))
    return tuple(tuple(sorted(run, key=repr)) for run in runs)


@pytest.mark.parametrize("levels", [(1, 1, 0, 0), (2, 2, 1, 0), (0, 0, 0, 0)])
def test_every_sequence_is_of_the_class_of_one(levels: tuple[int, ...]) -> None:
    every = {class_of(sequence, levels) for sequence in SequenceSpace.whole("all", 4).linear}
    ones = [class_of(sequence, levels) for sequence in SequenceSpace("all", levels).linear]
    assert len(ones) == len(set(ones))
    assert set(ones) == every


def test_operators_cost_the_same_under_all_sequences_of_a_class() -> None:
    planner = Planner.of(SMALL, TWO_LEVELS, 16, 4, None, "paper")
    levels = planner.training.links.levels
    ones = Planner.like(planner, candidates=SequenceSpace("paper", levels).of)
    for name in ("embedding", "blocks.0.norm1", "blocks.0.qkv", "blocks.0.attention", "loss"):
        every, few = (item.catalogue.options(item.named[name]) for item in (planner, ones))
        costs = {
            class_of(item, levels): cost
            for item, cost in zip(
                few.candidates, zip(few.seconds, few.kept, few.running, strict=True), strict=True
            )
        }
        for index, item in enumerate(every.candidates):
            cost = every.seconds[index], every.kept[index], every.running[index]
            assert cost == pytest.approx(costs[class_of(item, levels)], rel=1e-12)


def test_a_search_that_leaves_out_options_finds_what_all_of_them_have() -> None:
    planner = Planner.of(SMALL, TWO_LEVELS, 8, 4, None, "paper")
    every: dict[object, Numbers] = {
        kind_of(planner.named[name]): np.arange(len(planner.options(name)))
        for name in planner.named
    }
    whole = Exact(planner, every)
    few = Exact.of(planner)
    assert sum(map(len, few.among.values())) < sum(map(len, every.values()))
    assert few.best[0] == pytest.approx(whole.best[0], rel=1e-12)
