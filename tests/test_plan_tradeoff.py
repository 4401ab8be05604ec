"""Plans by time and memory are those of trying every plan of a model with few options."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

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
        found = super().options(name)
        if name == "embedding" or len(found) < 3:
            return found
        key = name.rpartition(".")[2]
        if key not in self.drawn:
            at = np.random.default_rng(sum(map(ord, key))).choice(len(found), 2, replace=False)
            self.drawn[key] = found.only(at.tolist())
        return self.drawn[key]

    @property
    def drawn(self) -> dict[str, Options]:
        found: dict[str, Options] = self.__dict__.setdefault("_drawn", {})
        return found


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


def numbers(found: SearchResult | None) -> tuple[float, float]:
    assert found is not None
    return found.seconds, found.memory


CASES = [(model, devices) for model in MODELS for devices in (2, 4)]


@pytest.mark.parametrize(("model", "devices"), CASES)
def test_the_best_within_a_bound_is_that_of_trying_every_plan(model: str, devices: int) -> None:
    seconds, memory = every(model, devices)
    tradeoff = Tradeoff(few(model, devices))
    assert tradeoff.least_memory() == memory.min()
    for share in (0.0, 0.1, 0.4, 0.8, 1.0):
        bound = memory.min() + share * (memory.max() - memory.min())
        found = numbers(tradeoff.fastest(bound))
        assert found[1] <= bound
        assert found[0] == pytest.approx(seconds[memory <= bound].min(), abs=1e-10)
        longest = seconds.min() * (1 + share + 1e-6)
        found = numbers(tradeoff.smallest(longest))
        assert found[0] <= longest + 1e-10
        assert found[1] == memory[seconds <= longest].min()
    assert tradeoff.fastest(memory.min() - 1) is None
    assert tradeoff.smallest(seconds.min() * 0.99) is None


@pytest.mark.parametrize(("model", "devices"), CASES)
def test_the_front_is_that_of_trying_every_plan(model: str, devices: int) -> None:
    seconds, memory = every(model, devices)
    front = [numbers(each) for each in Tradeoff(few(model, devices)).front()]
    assert front == sorted(front)
    least = {size: float(seconds[memory == size].min()) for size in np.unique(memory).tolist()}
    expected: list[tuple[float, float]] = []
    for size in sorted(least):
        if not expected or least[size] < expected[-1][0] - 1e-10:
            expected.append((least[size], size))
    assert [size for _, size in front] == [size for _, size in reversed(expected)]
    assert [time for time, _ in front] == pytest.approx([time for time, _ in reversed(expected)])


def test_with_all_options_the_fastest_is_that_of_the_search() -> None:
    for model in MODELS.values():
        planner = Planner.of(model, TWO_LEVELS, 4, 4, None, "all", tradeoffs=True)
        fastest = search(Planner.of(model, TWO_LEVELS, 4, 4, None, "all"))
        found = numbers(Tradeoff(planner).fastest(1e12))
        assert found[0] == pytest.approx(fastest.seconds, abs=1e-10)
        assert found[1] <= fastest.memory


def test_what_costs_more_and_takes_less_stays_among_the_options() -> None:
    for name in ("embedding", "blocks.0.fc1", "loss"):
        planner = Planner.of(BLOOM, TWO_LEVELS, 4, 4, None, "all", tradeoffs=True)
        whole = planner.catalogue.options(planner.named[name])
        kept = planner.options(name)
        rows = [np.stack([each.takes, each.leaves, each.leaves_gradient, each.weights,
                          each.seconds, each.kept, each.running], axis=1)
                for each in (whole, kept)]  # fmt: skip
        for row in rows[0]:
            alike = rows[1][(rows[1][:, :4] == row[:4]).all(axis=1)]
            assert (alike[:, 4:] <= row[4:]).all(axis=1).any()
        for at, row in enumerate(rows[1]):
            others = np.delete(rows[1], at, axis=0)
            alike = others[(others[:, :4] == row[:4]).all(axis=1)]
            assert not (alike[:, 4:] <= row[4:]).all(axis=1).any()
