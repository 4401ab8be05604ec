"""The frontier's bounds are below every plan, its plans are real, and what it states holds.

Models of several layers have too many plans to try each. The exact search by labels, which is
compared with trying every plan elsewhere, is the oracle here.
"""

from __future__ import annotations

import os
from dataclasses import replace
from random import Random

import numpy as np
import pytest
from planner_cases import SMALL, TWO_LEVELS

from primepar.plan.search import tradeoff as tradeoff_module
from primepar.plan.search.few_layers import FewLayers
from primepar.plan.search.options import Options
from primepar.plan.search.planner import Planner
from primepar.plan.search.tradeoff import Tradeoff

CASES = 200 if os.environ.get("HYPOTHESIS_PROFILE") == "ci" else 12
LAYERS = (1, 2, 3, 4, 7)


class Drawn(Planner):
    """A planner with a few options of every operator, drawn from those of the space."""

    random: Random

    def options(self, name: str) -> Options:
        key = self.key(name)
        if key not in self.known:
            options = super().options(name)
            count = min(len(options), self.random.choice((2, 3, 4)))
            numbers = self.random.sample(range(len(options)), count)
            self.known[key] = options.only(numbers)
        return self.known[key]


def drawn(seed: int) -> Drawn:
    random = Random(seed)
    model = replace(SMALL, layers=random.choice(LAYERS), tied=random.random() < 0.5)
    devices = random.choice((2, 4))
    planner = Drawn.of(model, TWO_LEVELS, devices, 4, None, "paper", tradeoffs=True)
    planner.random = random
    return planner


@pytest.mark.parametrize("first", range(0, CASES, 12))
def test_what_a_bounded_search_states_is_true(monkeypatch: pytest.MonkeyPatch, first: int) -> None:
    monkeypatch.setattr(tradeoff_module, "FEW_LAYERS", 0)
    for seed in range(first, first + 12):
        planner = drawn(seed)
        tradeoff = Tradeoff(planner)
        least = tradeoff.least_memory()
        oracle = FewLayers(planner, least)
        for share in (1.0, 1.05, 1.3):
            best, plan = oracle.fastest(least * share), tradeoff.fastest(least * share)
            assert plan is not None
            assert plan.memory <= least * share * (1 + 1e-12)
            assert planner.cost(plan.choices) == pytest.approx(plan.cost, rel=1e-9)
            assert best.cost * (1 - 1e-8) <= plan.cost <= best.cost * (1 + plan.gap) * (1 + 1e-8)
            assert tradeoff.frontier.least_cost(least * share) <= best.cost * (1 + 1e-8)
            longest = best.cost * (1 + 1e-9)
            exact, small = oracle.smallest(longest), tradeoff.smallest(longest)
            assert exact is not None
            assert small is not None
            assert small.cost <= longest
            assert exact.memory * (1 - 1e-12) <= small.memory
            assert small.memory <= exact.memory * (1 + small.gap) * (1 + 1e-12)


@pytest.mark.parametrize("first", range(0, CASES // 2, 6))
def test_every_plan_of_an_exact_front_has_one_near_it(
    monkeypatch: pytest.MonkeyPatch, first: int
) -> None:
    for seed in range(first, first + 6):
        planner = drawn(seed)
        exact = FewLayers(planner, Tradeoff(planner).least_memory()).front()
        monkeypatch.setattr(tradeoff_module, "FEW_LAYERS", 0)
        front = Tradeoff(planner).front()
        monkeypatch.undo()
        listed = np.array([(plan.cost, plan.memory) for _, plan in front.plans])
        assert len(listed) <= 50
        assert (np.diff(listed[:, 0]) > 0).all()
        assert (np.diff(listed[:, 1]) < 0).all()
        for plan in exact:
            near = listed <= np.array([plan.cost, plan.memory]) * (1 + front.tolerance + 1e-8)
            assert near.all(axis=1).any()
