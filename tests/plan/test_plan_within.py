"""Plans within a limit are those of trying every plan, up to the gap that is certified."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from random import Random

import numpy as np
import pytest
from planner_cases import BLOOM, SMALL, TWO_LEVELS, UNTIED, cluster
from profiles import IS_LONG

from primepar.errors import PlanError
from primepar.models.config import ModelConfig
from primepar.plan.cluster import Link
from primepar.plan.search import within as within_module
from primepar.plan.search.options import Options
from primepar.plan.search.planner import Planner
from primepar.plan.search.search import search
from primepar.plan.search.within import WithinLimits

CASES = 200 if IS_LONG else 16


@dataclass
class Drawn(Planner):
    """A planner with one or two options of every operator, drawn from those of the space.

    Of several layers few operators have two, so that every plan can be tried.
    """

    seed: int = 0

    def options(self, name: str) -> Options:
        key = self.key(name)
        if key not in self.known:
            random, options = Random(f"{self.seed} {key}"), super().options(name)
            count = 1 + (random.random() < 1 / self.model.layers**1.5)
            numbers = random.sample(range(len(options)), min(count, len(options)))
            self.known[key] = options.only(sorted(numbers))
        return self.known[key]


@cache
def drawn(seed: int) -> WithinLimits:
    """Plans of a drawn model within limits."""
    random = Random(seed)
    model = replace(BLOOM, layers=random.choice((1, 1, 2, 3)), tied=random.random() < 0.5)
    planner = Planner.of(model, TWO_LEVELS, random.choice((2, 4)), 4, None, "paper")
    return WithinLimits(Drawn.like(planner, seed=seed))


@cache
def every(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Cost and bytes of all plans, summed up over one array with an axis for every operator."""
    planner = drawn(seed).planner
    names = list(planner.named)
    sizes = [len(planner.options(name)) for name in names]

    def along(values: np.ndarray, *axes: str) -> np.ndarray:
        shape = [size if name in axes else 1 for name, size in zip(names, sizes, strict=True)]
        return values.reshape(shape)

    cost, kept, rest = (np.zeros(sizes) for _ in range(3))
    for name in names:
        options = planner.options(name)
        cost += along(planner.objective(name), name)
        kept += along(options.kept, name)
        rest = np.maximum(rest, along(options.running, name))
        for producer, edge in planner.edges_into(name):
            cost += along(edge, producer, name)
    return cost.ravel(), (kept + rest).ravel()


@pytest.mark.parametrize("first", range(0, CASES, 8))
def test_what_is_stated_within_a_limit_is_true_of_every_plan(first: int) -> None:
    for seed in range(first, first + 8):
        within, (cost, memory) = drawn(seed), every(seed)
        planner, least = within.planner, memory.min()
        assert within.least_memory == pytest.approx(least, rel=1e-12)
        assert within.fastest(least * (1 - 1e-9)) is None
        assert within.smallest(cost.min() * (1 - 1e-9)) is None
        for share in (0.0, 0.1, 0.4, 1.0):
            most = least * (1 + 1e-12) + share * (memory.max() - least)
            plan, best = within.fastest(most), cost[memory <= most].min()
            assert plan is not None
            assert plan.memory <= most
            assert planner.cost(plan.choices) == pytest.approx(plan.cost, rel=1e-9)
            assert best * (1 - 1e-9) <= plan.cost <= best * (1 + plan.gap) * (1 + 1e-9)
            longest = cost.min() * (1 + 1e-9) + share * (cost.max() - cost.min()) / 4
            plan, size = within.smallest(longest), memory[cost <= longest].min()
            assert plan is not None
            assert plan.cost <= longest
            assert size * (1 - 1e-9) <= plan.memory <= size * (1 + plan.gap) * (1 + 1e-9)


@pytest.mark.parametrize("layers", [2, 24])
def test_plans_of_many_layers_are_near_the_bound(layers: int) -> None:
    planner = Planner.of(replace(SMALL, layers=layers), TWO_LEVELS, 4, 4, None, "all")
    within, fastest = WithinLimits(planner), search(planner)
    plan = within.fastest(1e12)
    assert plan is not None
    assert plan.cost == pytest.approx(fastest.cost, rel=1e-9)
    gaps = []
    for share in (1.0, 1.1, 1.3):
        small = within.fastest(within.least_memory * share)
        assert small is not None
        again = within.smallest(small.cost)
        assert again is not None
        gaps += [small.gap, again.gap]
    assert max(gaps) < {2: 0.2, 24: 0.01}[layers]


def test_what_costs_more_and_takes_less_stays_among_the_options() -> None:
    planner = Planner.of(BLOOM, TWO_LEVELS, 4, 4, None, "all", tradeoffs=True)
    for name in ("embedding", "blocks.0.fc1", "loss"):
        whole, kept = planner.catalogue.options(planner.named[name]), planner.options(name)
        every_row, rows = [
            np.stack([options.takes, options.leaves, options.leaves_gradient, options.weights,
                      options.seconds, options.kept, options.running], axis=1)
            for options in (whole, kept)
        ]  # fmt: skip
        for row in every_row:
            alike = rows[(rows[:, :4] == row[:4]).all(axis=1)]
            assert (alike[:, 4:] <= row[4:]).all(axis=1).any()
        for number, row in enumerate(rows):
            others = np.delete(rows, number, axis=0)
            alike = others[(others[:, :4] == row[:4]).all(axis=1)]
            assert not (alike[:, 4:] <= row[4:]).all(axis=1).any()


@pytest.mark.parametrize("model", [SMALL, UNTIED], ids=["tied", "untied"])
def test_a_plan_of_classes_is_above_the_best_by_no_more_than_its_gap(
    monkeypatch: pytest.MonkeyPatch, model: ModelConfig
) -> None:
    planner = Planner.of(model, TWO_LEVELS, 4, 4, None, "paper")
    exact = WithinLimits(planner)
    limits = [exact.least_memory * share for share in (1.0, 1.1, 1.4)]
    best = [exact.fastest(limit) for limit in limits]
    monkeypatch.setattr(within_module, "EXACT", 2)
    coarse = WithinLimits(planner)
    assert coarse.least_memory == exact.least_memory
    assert coarse.fastest(limits[0] - 1) is None
    for limit, plan in zip(limits, best, strict=True):
        near = coarse.fastest(limit)
        assert plan is not None
        assert near is not None
        assert near.memory <= limit
        assert plan.cost * (1 - 1e-9) / (1 + plan.gap) <= near.cost
        assert near.cost <= plan.cost * (1 + near.gap) * (1 + 1e-9)


def test_the_least_memory_within_a_time_takes_few_devices() -> None:
    within = WithinLimits(
        Planner.of(SMALL, cluster(Link(64, 0.0, 1.0, False)), 64, 4, None, "paper")
    )

    with pytest.raises(PlanError) as caught:
        within.smallest(1.0)
    assert str(caught.value) == (
        "expected at most 32 devices for least memory within --within, got 64: take --devices 32, "
        "or the least time in --memory"
    )
