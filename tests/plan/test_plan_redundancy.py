"""Redundant memory of known plans by hand; the integer program, and trying every choice."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from command import example, run
from planner_cases import BLOOM, SMALL, TWO_LEVELS, UNTIED, cluster
from test_plan_search import random_chain

from primepar.commands import plan_objective
from primepar.errors import PlanError
from primepar.models.config import ModelConfig
from primepar.partition.registry import parse_sequence
from primepar.plan import cluster as cluster_module
from primepar.plan import load_plan, redundancy
from primepar.plan.cluster import Link
from primepar.plan.cost.candidate import Spread, element_spread
from primepar.plan.cost.layouts import Layouts
from primepar.plan.cost.links import ClusterLinks
from primepar.plan.cost.sweeps import moving
from primepar.plan.redundancy import Graph, Redundancy, Solution, least_redundancy, solve
from primepar.plan.search.options import Options
from primepar.plan.search.planner import Planner
from primepar.plan.search.sequence_space import SpaceName

ITEM, AT_REST = 4, 16
"""Bytes of a float32, and of a parameter with its gradient and the two moments of AdamW."""
ROWS = 8 * 32


class Every(Planner):
    """A planner that leaves no option out, so that every sequence of its space has its options."""

    def options(self, name: str) -> Options:
        return self.catalogue.options(self.named[name])


def node(
    model: ModelConfig, devices: int, name: str, text: str, space: SpaceName = "paper"
) -> float:
    """Redundant bytes of one operator under a sequence."""
    every = Every.of(model, TWO_LEVELS, devices, 8, None, space)
    texts = [option.text for option in every.options(name).candidates]
    return float(Redundancy(every).held(every.named[name])[texts.index(text)])


@pytest.mark.parametrize("devices", [2, 4, 8])
def test_data_parallelism_has_one_more_copy_of_the_weights_on_every_other_device(
    devices: int,
) -> None:
    for name, parameters in (("fc1", 64 * 256 + 256), ("fc2", 256 * 64 + 64), ("norm1", 2 * 64)):
        redundant = node(SMALL, devices, f"blocks.0.{name}", f"M{devices}")
        copies = devices * redundant / (AT_REST * parameters)
        assert copies == devices - 1
    assert node(SMALL, devices, "blocks.0.act", f"M{devices}") == 0
    assert node(SMALL, devices, "blocks.0.attention", f"M{devices}") == 0


def test_primepar_has_no_redundancy_but_that_of_the_bias() -> None:
    assert node(SMALL, 4, "head", "P2x2") == 0
    assert node(SMALL, 4, "blocks.0.fc1", "P2x2") == AT_REST * 256 * (1 / 2 - 1 / 4)


@pytest.mark.parametrize(
    ("name", "text", "space", "elements"),
    [
        # fc1 makes 256 columns of 64. K4 keeps all of I, and in backward has all of dI.
        ("fc1", "K4", "paper", 2 * 64 * ROWS * 3 / 4),
        # fc2 makes 64 of 256. N4 has all of dO, and keeps the whole bias: four numbers for each.
        ("fc2", "N4", "paper", 64 * ROWS * 3 / 4 + 4 * 64 * 3 / 4),
        # Ks4 keeps its part of I; it has all of dI in backward, as all of I in forward.
        ("fc1", "Ks4", "all", 64 * ROWS * 3 / 4),
        # S2x2 has a block of W besides its own, and of I in another phase; half of the bias.
        ("fc1", "S2x2", "all", 64 * 256 / 4 + 4 * 256 / 4),
    ],
)  # fmt: skip
def test_redundancy_of_one_operator_is_that_by_hand(
    name: str, text: str, space: SpaceName, elements: float
) -> None:
    assert node(SMALL, 4, f"blocks.0.{name}", text, space) == ITEM * elements


@pytest.mark.parametrize(
    ("source", "target", "share"),
    [("M4", "M4", 0), ("M4", "K4", 3 / 16), ("R4", "M4", 0), ("M4", "R4", 3 / 4),
     ("M2,K2", "M4", 1 / 8), ("M2,R2", "M4", 0)],
)  # fmt: skip
def test_a_device_receives_what_it_lacks(source: str, target: str, share: float) -> None:
    layouts = Layouts(ClusterLinks(TWO_LEVELS, 2))
    numbers = [layouts.number(spread(text)) for text in (source, target)]
    assert None not in numbers
    here, there = (int(number or 0) for number in numbers)
    assert layouts.received([here], [there]).tolist() == [[share]]


def spread(text: str) -> Spread:
    slices = Spread.whole()
    for element in parse_sequence(text, linear=False).elements:
        slices = slices.then(element_spread(element, "O"))
    return slices


@pytest.mark.parametrize(
    ("text", "shares"),
    [("P2x2", {"I": 1 / 4, "W": 1 / 4, "O": 1 / 4, "dO": 1 / 4, "dI": 1 / 4, "dW": 1 / 4}),
     ("S2x2", {"I": 1 / 2, "W": 1 / 2, "O": 1 / 4, "dO": 1 / 4, "dI": 1 / 4, "dW": 1 / 4}),
     ("Ks4", {"I": 1, "W": 1 / 4, "O": 1 / 4, "dO": 1 / 4, "dI": 1, "dW": 1 / 4}),
     ("Ns4", {"I": 1 / 4, "W": 1 / 4, "O": 1, "dO": 1, "dI": 1 / 4, "dW": 1 / 4})],
)  # fmt: skip
def test_what_a_device_works_on_is_its_blocks_and_those_of_others_that_it_uses(
    text: str, shares: dict[str, float]
) -> None:
    (element,) = parse_sequence(text).elements
    largest: dict[str, float] = {}
    for step in moving(element).working:
        for tensor, share in step:
            largest[tensor] = max(share, largest.get(tensor, 0.0))
    assert largest == shares


def random_graph(seed: int) -> Graph:
    """A random chain with three costs, and an edge from its first node to a late last one."""
    random = np.random.default_rng(seed)
    start, segments = random_chain(seed)

    def three(costs: np.ndarray) -> np.ndarray:
        drawn = (random.integers(0, 6, costs.shape).astype(float) for _ in range(2))
        return np.stack([costs, *drawn], axis=-1)

    nodes, edges, last = {"0": three(start)}, {}, "0"
    for steps in segments:
        first = last
        for edge, costs, passing in steps:
            before, last = last, str(len(nodes))
            nodes[last], edges[before, last] = three(costs), three(edge)
            if passing is not None:
                edges[first, last] = three(passing)
    if len(nodes) > 3:
        edges["0", last] = three(random.integers(0, 9, (len(start), len(nodes[last]))))
    peaks = {name: random.integers(0, 6, len(costs)).astype(float) for name, costs in nodes.items()}
    return Graph(nodes, edges, peaks)


def every_cost(graph: Graph) -> np.ndarray:
    """The costs of all choices."""
    options = product(*(range(len(costs)) for costs in graph.nodes.values()))
    return np.array([graph.costs(dict(zip(graph.nodes, choice, strict=True)))
                     for choice in options])  # fmt: skip


@pytest.mark.parametrize("bounds", [(), (1,), (2,), (1, 2)])
def test_the_program_finds_what_trying_every_choice_finds(bounds: tuple[int, ...]) -> None:
    fewer = some = 0
    for seed in range(12):
        graph = random_graph(seed)
        costs, most = every_cost(graph), np.full(3, np.inf)
        for cost in bounds:
            most[cost] = np.sort(costs[:, cost])[len(costs) // 3]
        within = (costs <= most).all(axis=1)
        answer = solve(graph, np.array([1.0, 0, 0]), most)
        assert answer.proved
        everything = sum(costs[..., 0].size for costs in (*graph.nodes.values(),
                                                          *graph.edges.values()))  # fmt: skip
        fewer += answer.columns < everything
        if not within.any():
            assert answer.choices is None
            continue
        some += 1
        assert answer.choices is not None
        sums = graph.costs(answer.choices)
        assert (sums <= most).all()
        assert sums[0] == costs[within, 0].min() == round(answer.bound, 6)
    assert some > 4
    assert fewer > 3


def test_a_sum_that_is_hardly_over_its_bound_is_over_it() -> None:
    costs = np.array([[0.0, 1 + 1e-9, 0], [1, 1, 0]])
    graph = Graph({"a": costs}, {}, {"a": np.zeros(2)})
    answer = solve(graph, np.array([1.0, 0, 0]), np.array([np.inf, 1, np.inf]))
    assert (answer.choices, answer.proved) == ({"a": 1}, True)


MODELS_HERE = {"tied": SMALL, "untied": UNTIED, "bloom": BLOOM}


@pytest.mark.parametrize("model", MODELS_HERE)
def test_no_plan_of_two_options_of_every_operator_has_less(model: str) -> None:
    class Few(Planner):
        def options(self, name: str) -> Options:
            options = super().options(name)
            random = np.random.default_rng(sum(map(ord, name)))
            return options.only(random.choice(len(options), 2, replace=False).tolist())

    block = replace(MODELS_HERE[model], layers=1)
    few = Few.of(block, TWO_LEVELS, 4, 8, None, "paper", tradeoffs=True, part="blocks")
    costs = every_cost(Redundancy(few).graph())
    for within in (np.inf, np.median(costs[:, 1])):
        for memory in (np.inf, np.median(costs[:, 2])):
            fits = (costs[:, 1] <= within) & (costs[:, 2] <= memory)
            result, solution = least_redundancy(few, memory, within)
            assert (result is not None, solution.proved) == (bool(fits.any()), True)
            if result is None:
                continue
            assert result.cost == solution.bound == costs[fits, 0].min()
            equal = fits & (costs[:, 0] == result.cost)
            assert result.seconds == pytest.approx(costs[equal, 1].min())


def test_more_devices_than_are_compared_are_refused() -> None:
    many = cluster(Link(64, 0.0, 1.0, False))
    with pytest.raises(PlanError) as refused:
        least_redundancy(Planner.of(SMALL, many, 64, 8, None, "paper", tradeoffs=True))
    assert str(refused.value) == (
        "expected at most 32 devices, among which all sequences are searched, got 64: take "
        "--devices 32, or ask for the least time, for which stages and replicas are tried too"
    )


MODEL = example(1)
LEAST = ("plan", MODEL, "--cluster", "v100-8x4", "--devices", "4", "--objective", "redundancy")


def test_plan_writes_the_plan_with_the_least_redundancy(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    done = run(*LEAST, "-o", str(path))
    end = (
        r"\n0\.2 MiB of a device are redundant: no plan of the space within the bounds has less, "
        r"proved by the integer program, 316 variables\nwrote .*\n$"
    )
    assert (done.code, bool(re.search(end, done.out))) == (0, True)
    free = json.loads(run(*LEAST, "--json").out)
    report = free["redundancy"]
    assert (report["redundant"], report["proved"]) == (report["bound"], True)
    sequences = {entry["operator"]: entry["sequence"] for entry in free["choices"]}
    assert load_plan(path).sequences["head"] == sequences["head"]
    within = json.loads(run(*LEAST, "--within", "0.0004", "--json").out)
    assert within["seconds"] <= 0.0004 < free["seconds"]
    assert within["redundancy"]["bound"] > report["bound"]


def test_what_was_stopped_is_not_called_proved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_objective, "SOLVER_SECONDS", 0.0001)
    assert run(*LEAST) == (
        3, "", "primepar: error: expected a plan within 0.0001 seconds, got none yet: plan fewer "
        "devices or layers, or leave --within out\n",
    )  # fmt: skip

    def stopped(*arguments: object) -> Solution:
        """The solution where a plan is known, with a lower bound of half of it."""
        solution: Solution = solve(*arguments)  # type: ignore[arg-type]
        return replace(solution, bound=solution.bound / 2, proved=False)

    monkeypatch.undo()
    monkeypatch.setattr(redundancy, "solve", stopped)
    done = run(*LEAST)
    assert done.code == 3
    assert done.out.endswith(
        "0.2 MiB of a device are redundant: not proved to be the least, stopped after 60 "
        "seconds, when none had less than 0.1 MiB\n"
    )


def test_a_program_that_is_too_large_is_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redundancy, "MOST_COLUMNS", 100)
    assert run(*LEAST) == (
        3, "", "primepar: error: expected an integer program of at most 100 variables, got 315: "
        "plan fewer devices or layers, or leave --within out\n",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (("--within", "0.0001"),
         "expected a plan with a step within the 0.0001 seconds of --within, got none: the "
         "shortest takes 0.000272527 seconds, 0.00017 too many"),
        (("--memory", "4e5"),
         "expected a plan within the 400,000 bytes of --memory, got none: the smallest takes "
         "840,448 bytes, 440,448 too many: take more --devices or a smaller --batch"),
        (("--memory", "860000", "--within", "0.0004"),
         "expected a plan with a step within the 0.0004 seconds of --within and within the memory "
         "of a device, got none: the fastest within the memory takes 0.000610869 seconds: give "
         "more of one"),
    ],
)  # fmt: skip
def test_what_cannot_be_planned_is_refused_in_one_line(
    options: tuple[str, ...], error: str
) -> None:
    assert run(*LEAST, *options) == (2, "", f"primepar: error: {error}\n")


def test_the_plan_fits_the_devices(tmp_path: Path) -> None:
    shipped = Path(cluster_module.__file__).parent / "clusters" / "v100-8x4.toml"
    small = tmp_path / "small.toml"
    small.write_text(re.sub(r"(?m)^memory = .*$", "memory = 8.6e5", shipped.read_text()))
    done = run("plan", MODEL, "--cluster", str(small), *LEAST[4:], "--json")
    assert json.loads(done.out)["memory"] <= 8.6e5
