"""Plans by time and memory are those of trying every plan of a model with few options."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from planner_cases import BLOOM, TWO_LEVELS

from primepar.plan.search.options import Options
from primepar.plan.search.planner import Planner
from primepar.plan.search.result import SearchResult
from primepar.plan.search.search import search
from primepar.plan.search.tradeoff import Tradeoff

MODELS = {"tied": BLOOM, "untied": replace(BLOOM, tied=False)}


class Few(Planner):
    """A planner with two options of every operator but the embedding, drawn by its name."""

    def options(self, name: str) -> Options:
        all_options = super().options(name)
        if name == "embedding" or len(all_options) < 3:
            return all_options
        key = name.rpartition(".")[2]
        if key not in self.drawn:
            numbers = np.random.default_rng(sum(map(ord, key))).choice(
                len(all_options), 2, replace=False
            )
            self.drawn[key] = all_options.only(numbers.tolist())
        return self.drawn[key]

    @property
    def drawn(self) -> dict[str, Options]:
        drawn_options: dict[str, Options] = self.__dict__.setdefault("_drawn", {})
        return drawn_options


@cache
def few(model: str, devices: int) -> Few:
    return Few.of(MODELS[model], TWO_LEVELS, devices, 4, None, "paper", tradeoffs=True)


@cache
def every(model: str, devices: int) -> tuple[np.ndarray, np.ndarray]:
    """Seconds and bytes of all plans, summed up over one array with an axis for every operator."""
    planner = few(model, devices)
    names = list(planner.named)
    sizes = [len(planner.options(name)) for name in names]

    def along(values: np.ndarray, *axes: str) -> np.ndarray:
        return values.reshape(
            [size if name in axes else 1 for name, size in zip(names, sizes, strict=True)]
        )

    seconds, kept, rest = (np.zeros(sizes) for _ in range(3))
    for name in names:
        options = planner.options(name)
        seconds += along(options.seconds, name)
        kept += along(options.kept, name)
        rest = np.maximum(rest, along(options.running, name))
        for producer in planner.named[name].inputs:
            seconds += along(planner.edge(producer, name), producer, name)
    if planner.model.tied:
        seconds += along(planner.tie(), "embedding", "head")
    return seconds.ravel(), (kept + rest).ravel()


def numbers(result: SearchResult | None) -> tuple[float, float]:
    assert result is not None
    return result.seconds, result.memory


CASES = [(model, devices) for model in MODELS for devices in (2, 4)]


@pytest.mark.parametrize(("model", "devices"), CASES)
def test_the_best_within_a_bound_is_that_of_trying_every_plan(model: str, devices: int) -> None:
    seconds, memory = every(model, devices)
    tradeoff = Tradeoff(few(model, devices))
    assert tradeoff.least_memory() == memory.min()
    for share in (0.0, 0.1, 0.4, 0.8, 1.0):
        bound = memory.min() + share * (memory.max() - memory.min())
        best = numbers(tradeoff.fastest(bound))
        assert best[1] <= bound
        assert best[0] == pytest.approx(seconds[memory <= bound].min(), abs=1e-10)
        longest = seconds.min() * (1 + share + 1e-6)
        best = numbers(tradeoff.smallest(longest))
        assert best[0] <= longest + 1e-10
        assert best[1] == memory[seconds <= longest].min()
    assert tradeoff.fastest(memory.min() - 1) is None
    assert tradeoff.smallest(seconds.min() * 0.99) is None


@pytest.mark.parametrize(("model", "devices"), CASES)
def test_every_plan_of_the_exact_front_has_one_near_it_in_the_list(
    model: str, devices: int
) -> None:
    seconds, memory = every(model, devices)
    front = Tradeoff(few(model, devices)).front()
    assert front.tolerance == 0.005
    assert [name for name, _ in front.plans] == [
        f"front-{number:02}" for number in range(1, len(front.plans) + 1)
    ]
    listed = [numbers(plan) for _, plan in front.plans]
    assert all(a[0] < b[0] and a[1] > b[1] for a, b in pairwise(listed))
    for size in np.unique(memory).tolist():
        least = float(seconds[memory <= size].min())
        assert any(time <= least * 1.005 + 1e-10 and held <= size * 1.005 for time, held in listed)
    assert listed[0][0] == pytest.approx(seconds.min())
    assert listed[-1][1] == memory.min()


def test_with_all_options_the_fastest_is_that_of_the_search() -> None:
    for model in MODELS.values():
        planner = Planner.of(model, TWO_LEVELS, 4, 4, None, "all", tradeoffs=True)
        fastest = search(Planner.of(model, TWO_LEVELS, 4, 4, None, "all"))
        numbers_found = numbers(Tradeoff(planner).fastest(1e12))
        assert numbers_found[0] == pytest.approx(fastest.seconds, abs=1e-10)
        assert numbers_found[1] <= fastest.memory


def test_what_costs_more_and_takes_less_stays_among_the_options() -> None:
    for name in ("embedding", "blocks.0.fc1", "loss"):
        planner = Planner.of(BLOOM, TWO_LEVELS, 4, 4, None, "all", tradeoffs=True)
        whole = planner.catalogue.options(planner.named[name])
        kept = planner.options(name)
        rows = [np.stack([options.takes, options.leaves, options.leaves_gradient, options.weights,
                          options.seconds, options.kept, options.running], axis=1)
                for options in (whole, kept)]  # fmt: skip
        for row in rows[0]:
            alike = rows[1][(rows[1][:, :4] == row[:4]).all(axis=1)]
            assert (alike[:, 4:] <= row[4:]).all(axis=1).any()
        for number, row in enumerate(rows[1]):
            others = np.delete(rows[1], number, axis=0)
            alike = others[(others[:, :4] == row[:4]).all(axis=1)]
            assert not (alike[:, 4:] <= row[4:]).all(axis=1).any()
