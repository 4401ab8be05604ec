"""Redundant memory of known plans by hand, and the least of it by both solvers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from planner_cases import BLOOM, SMALL, TWO_LEVELS, UNTIED, cluster

from primepar.errors import PlanError
from primepar.models.config import ModelConfig
from primepar.models.sizes import MODELS
from primepar.partition.registry import parse_sequence
from primepar.plan.cluster import Link, load_cluster
from primepar.plan.cost.device_slices import Spread, element_spread
from primepar.plan.cost.layouts import Layouts
from primepar.plan.cost.links import ClusterLinks
from primepar.plan.cost.sweeps import moving
from primepar.plan.presets import preset_plan
from primepar.plan.redundancy.compare import Account, megatron
from primepar.plan.redundancy.cost import Redundancy, tick
from primepar.plan.redundancy.least_redundancy import (
    Least,
    Within,
    least,
    least_by_search,
    least_of_block,
)
from primepar.plan.redundancy.option_graph import Graph
from primepar.plan.search.given_plan import Given
from primepar.plan.search.options import Options
from primepar.plan.search.planner import Planner
from primepar.plan.search.sequence_space import SpaceName

ITEM, AT_REST = 4, 16
"""Bytes of a float32, and of a parameter with its gradient and the two moments of AdamW."""
ROWS = 8 * 32


def planner(model: ModelConfig, devices: int, space: SpaceName = "paper") -> Planner:
    return Planner.of(model, TWO_LEVELS, devices, 8, None, space, tradeoffs=True)


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
    return float(Redundancy(every).bytes.nodes[name][texts.index(text)])


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


def test_costs_are_multiples_of_a_tick() -> None:
    for costs, unit in (([0, 6, 4], 2), ([3.25], 0.25), ([2.0**33, 0], 2.0**33), ([0], 2.0**-16)):
        assert tick(Graph({"a": np.array(costs, float)}, {})) == unit


MODELS_HERE = {"tied": SMALL, "untied": UNTIED, "bloom": BLOOM}


@pytest.mark.parametrize("model", MODELS_HERE)
@pytest.mark.parametrize(("devices", "space"), [(2, "paper"), (4, "paper"), (4, "all")])
def test_both_solvers_find_the_same_of_a_model(model: str, devices: int, space: SpaceName) -> None:
    made = planner(MODELS_HERE[model], devices, space)
    programmed, searched = least(made), least_by_search(made)
    assert programmed.result is not None
    assert searched.result is not None
    assert programmed.redundant == programmed.bound == searched.redundant
    assert (programmed.proved, programmed.gap) == (True, 0)
    assert programmed.result.seconds == pytest.approx(searched.result.seconds, rel=1e-6)
    redundancy = Redundancy(made)
    assert redundancy.bytes_of(programmed.result.choices) == programmed.redundant
    assert programmed.result.plan.ranks == devices


@pytest.mark.parametrize("name", ["opt-6.7b", "llama-2-70b", "bloom-176b"])
@pytest.mark.parametrize("devices", [2, 8])
def test_both_solvers_find_the_same_of_a_block(name: str, devices: int) -> None:
    least_of = least_of_block(MODELS[name], load_cluster("v100-8x4"), devices, 8)
    assert least_of.result is not None
    assert least_of.proved
    assert least_by_search(least_of.result.planner).redundant == least_of.redundant > 0


class Few(Planner):
    """A planner with two options of every operator, drawn by its name."""

    def options(self, name: str) -> Options:
        all_options = super().options(name)
        random = np.random.default_rng(sum(map(ord, name)))
        return all_options.only(random.choice(len(all_options), 2, replace=False).tolist())


def every(graph: Graph) -> np.ndarray:
    """Costs of all choices: one array with an axis for every node."""
    names, shape = list(graph.nodes), [len(costs) for costs in graph.nodes.values()]
    sums = np.zeros(shape)
    terms = [((name,), costs) for name, costs in graph.nodes.items()]
    for ends, costs in (*terms, *graph.edges.items()):
        sums += costs.reshape([size if name in ends else 1
                                for name, size in zip(names, shape, strict=True)])  # fmt: skip
    return sums.ravel()


def test_the_least_within_bounds_is_that_of_trying_every_plan() -> None:
    model = replace(BLOOM, tied=False)
    few = Few.of(model, TWO_LEVELS, 8, 8, None, "paper", tradeoffs=True, part="blocks")
    redundancy = Redundancy(few)
    redundant, seconds = every(redundancy.bytes), every(redundancy.seconds)
    rest = np.zeros(redundant.shape)
    for name, running in redundancy.running.items():
        zeros = {option_name: np.zeros(2) for option_name in few.named}
        rest = np.maximum(rest, every(Graph(zeros | {name: running}, {})))
    memory = every(redundancy.kept) + rest
    assert len(redundant) == 2**11
    times, sizes = np.sort(seconds), np.sort(memory)
    bounds = [Within(seconds=times[inde]) for inde in (0, 3, 10, 30, 100, 300, 1000)]
    bounds += [Within(memory=sizes[inde]) for inde in (0, 3, 10, 30, 60, 100, 200, 300, 600, 1000)]
    bounds += [Within(times[inde], sizes[-inde - 1]) for inde in (100, 500, 1000)]
    some = set()
    for within in bounds:
        fitting = (seconds <= within.seconds + 1e-12) & (memory <= within.memory)
        solved = least(few, replace(within, seconds=within.seconds + 1e-12))
        assert solved.proved
        assert solved.redundant == redundant[fitting].min(initial=np.inf)
        some.add(solved.redundant)
    assert len(some) > 4
    nothing = least(few, Within(seconds=times[0] / 2))
    assert (nothing.result, nothing.proved) == (None, True)


def test_a_program_that_is_stopped_is_not_proved() -> None:
    stopped = least(planner(SMALL, 8), timeout=1e-3)
    assert not stopped.proved
    assert stopped.result is None or stopped.gap > 0


@pytest.mark.parametrize("solver", [least, least_by_search])
def test_more_devices_than_are_looked_at_are_refused(solver: Callable[[Planner], Least]) -> None:
    many = cluster(Link(128, 0.0, 1.0, False))
    with pytest.raises(PlanError) as refused:
        solver(Planner.of(SMALL, many, 128, 8, None, "paper", tradeoffs=True))
    assert str(refused.value) == (
        "expected at most 64 devices for a plan with the least redundancy, got 128: plan fewer, "
        "or for the least time"
    )


def test_the_account_of_a_plan_is_that_of_its_options() -> None:
    result = least_by_search(planner(UNTIED, 4)).result
    assert result is not None
    account = Account.of("this plan", result)
    redundancy = Redundancy(result.planner)
    kept = sum(result.planner.options(name).kept[number] for name, number in result.choices.items())
    alone = Redundancy(planner(UNTIED, 1)).kept
    whole = sum(float(costs[0]) for costs in alone.nodes.values())
    assert account.redundant == redundancy.bytes.cost(result.choices)
    assert account.kept == kept - whole / 4
    everything = redundancy.one_copy / 4 + account.redundant
    assert account.copies == pytest.approx(4 * everything / redundancy.one_copy)
    assert (account.seconds, account.memory) == (result.seconds, result.memory)


def test_megatron_has_the_degree_with_the_least_redundancy() -> None:
    made = planner(SMALL, 8)
    best = megatron(made)
    assert best is not None
    known = {}
    for name in ("megatron", "M2,megatron", "M4,megatron", "data"):
        result = Given.with_sequences(made, preset_plan(name, SMALL, 8, 8).sequences).result
        known[name] = Redundancy(result.planner).bytes.cost(result.choices)
    assert (best.plan, best.redundant) == min(known.items(), key=lambda item: item[1])
    searched = least_by_search(made)
    assert best.redundant > searched.redundant
