"""Plans within a limit are those of trying every plan, up to the gap that is certified.

What does not fit is refused by a bound in closed form, which is never wrong.

A given plan costs the same as in the search.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from random import Random

import numpy as np
import pytest
from msgspec.structs import replace as changed
from planner_cases import BLOOM, SMALL, TWO_LEVELS, UNTIED, cluster
from profiles import IS_LONG

from benchmarks.paper import megatron, megatron_sequences
from primepar.errors import PlanError
from primepar.models.config import Experts, Family, ModelConfig, PricedParts
from primepar.plan import PRESETS, preset_plan
from primepar.plan.cluster import Link
from primepar.plan.search.options import Options
from primepar.plan.search.planner import Part, Planner
from primepar.plan.search.result import Given, SearchResult
from primepar.plan.search.search import search
from primepar.plan.search.sequence_space import SpaceName
from primepar.plan.search.splits import Splits
from primepar.plan.search.within import WithinLimits, least_at_once

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
            assert best * (1 - 1e-9) <= plan.cost <= best * (1 + (plan.gap or 0)) * (1 + 1e-9)
            longest = cost.min() * (1 + 1e-9) + share * (cost.max() - cost.min()) / 4
            plan, size = within.smallest(longest), memory[cost <= longest].min()
            assert plan is not None
            assert plan.cost <= longest
            assert size * (1 - 1e-9) <= plan.memory <= size * (1 + (plan.gap or 0)) * (1 + 1e-9)


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
        gaps += [small.gap or 0, again.gap or 0]
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


def test_limits_take_no_more_devices_than_are_searched_exactly() -> None:
    planner = Planner.of(SMALL, cluster(Link(64, 0.0, 1.0, False)), 64, 4, None, "paper")
    for searched in (WithinLimits, search):
        with pytest.raises(PlanError) as caught:
            searched(planner)
        assert str(caught.value) == (
            "expected at most 32 devices, among which all sequences are searched, got 64: take "
            "--devices 32, or ask for the least time, for which stages and replicas are tried too"
        )


FAMILIES: tuple[Family, ...] = ("gpt", "opt", "bloom", "llama")


def random_planner(random: Random) -> Planner:
    """A small model on up to eight devices, with sizes that are drawn."""
    heads = random.choice((2, 4, 8))
    model = ModelConfig.of(
        random.choice(FAMILIES), hidden=heads * random.choice((4, 8)), heads=heads,
        layers=random.choice((1, 2, 5)), context=random.choice((8, 32)),
        vocabulary=random.choice((24, 97, 512)), tied=random.random() < 0.5,
    )  # fmt: skip
    devices, batch = random.choice((1, 2, 4, 8)), random.choice((1, 2, 8))
    spaces: tuple[SpaceName, ...] = ("paper", "paper", "all")
    space = random.choice(spaces) if devices < 8 else "paper"
    return Planner.of(model, TWO_LEVELS, devices, batch, None, space, tradeoffs=True)


def test_no_plan_holds_less_at_once_than_the_bound() -> None:
    for seed in range(12 if IS_LONG else 2):
        random = Random(seed)
        planner = random_planner(random)
        least = least_at_once(planner)
        for _ in range(3):
            numbers = [random.randrange(len(planner.options(name))) for name in planner.named]
            assert least <= max(SearchResult.of(planner, numbers).held)


def test_what_cannot_fit_in_any_plan_is_refused_before_a_search() -> None:
    """Experts too, which stages divide where the devices of one stage do not."""
    routed = PricedParts(experts=Experts(count=2, chosen=1, ffn=64))
    for model in (SMALL, replace(UNTIED, priced=routed)):
        whole = 16 * model.parameters
        for devices, least, instead in (
            (1, 2, "take --devices 2, or more"),
            (4, 17, "no number of the cluster's 16 devices is enough"),
        ):
            bound = whole // (least - 1) - 1 if least > 2 else whole - 1
            small = changed(TWO_LEVELS, memory=float(bound))
            splits = Splits(model, small, devices, 4, "float32", "paper")
            with pytest.raises(PlanError) as caught:
                splits.refuse_what_cannot_fit()
            assert str(caught.value) == (
                f"expected a plan within the {bound:,} bytes of a device, got none: parameters "
                f"with gradients and optimizer states alone take {-(-whole // devices):,} bytes of "
                f"each of {devices} devices: {instead}, at least {least} are needed"
            )
            fits = changed(TWO_LEVELS, memory=whole / devices)
            Splits(model, fits, devices, 4, "float32", "paper").refuse_what_cannot_fit()


@pytest.mark.parametrize("part", ["model", "blocks"])
@pytest.mark.parametrize("space", ["paper", "all"])
def test_what_a_search_found_costs_the_same_where_it_is_given(space: SpaceName, part: Part) -> None:
    for model in (SMALL, UNTIED):
        planner = Planner.of(model, TWO_LEVELS, 4, 4, None, space, part=part)
        result = search(planner)
        given = Given.with_sequences(planner, result.sequences).result
        assert given.cost == pytest.approx(result.cost)
        assert given.seconds == pytest.approx(result.seconds)
        assert given.memory == pytest.approx(result.memory)


def test_layers_may_have_other_sequences_than_one_another() -> None:
    planner = Planner.of(SMALL, TWO_LEVELS, 4, 4, None, "paper", part="blocks")
    plans = [megatron_sequences(planner, copies) for copies in (1, 4)]
    mixed = {name: plans[name.startswith("blocks.1")][name] for name in planner.named}
    seconds = [
        Given.with_sequences(planner, sequences).result.seconds for sequences in (*plans, mixed)
    ]
    inner = Given.with_sequences(planner, mixed)
    assert sum(seconds[:2]) / 2 < seconds[2]
    assert float(inner.edge("blocks.0.add2", "blocks.1.norm1")[0, 0]) > 0
    assert float(inner.edge("blocks.0.norm1", "blocks.0.qkv")[0, 0]) == 0


@pytest.mark.parametrize("devices", [2, 4, 8])
@pytest.mark.parametrize("family", ["opt", "llama"])
def test_every_preset_has_a_price_which_no_plan_of_the_space_all_exceeds(
    family: Family, devices: int
) -> None:
    model = ModelConfig.of(family, layers=1, hidden=64, heads=8, context=32, vocabulary=96)
    planner = Planner.of(model, TWO_LEVELS, devices, 8, None, "all")
    best = search(planner).seconds
    seconds = {}
    for preset in PRESETS:
        with suppress(PlanError):
            plan = preset_plan(preset, model, devices)
            seconds[preset] = Given.with_sequences(planner, plan.sequences).result.seconds
    assert (
        set(seconds)
        == {
            2: {"megatron", "megatron-sp", "data"},
            4: set(PRESETS) - {"3d"},
            8: {"megatron", "megatron-sp", "data", "tesseract", "3d"},
        }[devices]
    )
    assert min(seconds.values()) >= best * (1 - 1e-9)


@pytest.mark.parametrize(
    ("one", "same"),
    [("M2,M2", "M4"), ("K4", "K2,K2")],
)
def test_a_sequence_spelt_otherwise_has_the_same_price(one: str, same: str) -> None:
    planner = Planner.of(SMALL, TWO_LEVELS, 4, 4, None, "all", part="blocks")
    plans = [megatron_sequences(planner, 1) | {"blocks.0.qkv": text} for text in (one, same)]
    first, second = (Given.with_sequences(planner, plan).result for plan in plans)
    assert first.seconds == second.seconds
    assert first.memory == second.memory


@pytest.mark.parametrize(
    ("wrong", "refusal"),
    [
        ("Os2x2,M2", "expected a sequence of blocks.1.fc1 on 4 devices, got Os2x2,M2 on 8: "
         "take --devices 8"),
        ("K4", "expected a sequence of blocks.1.fc1 on 4 devices that divides its sizes and 4 "
         "sequences of 31 tokens, got K4: take another --batch"),
    ],
)  # fmt: skip
def test_a_sequence_that_does_not_fit_is_refused(wrong: str, refusal: str) -> None:
    model = replace(SMALL, ffn=66, context=31)
    planner = Planner.of(model, TWO_LEVELS, 4, 4, None, "paper", part="blocks")
    sequences = megatron_sequences(planner, 4) | {"blocks.1.fc1": wrong}
    with pytest.raises(PlanError) as caught:
        _ = Given.with_sequences(planner, sequences).result
    assert str(caught.value) == refusal


def test_megatron_has_every_degree_that_the_sizes_allow() -> None:
    small = replace(SMALL, heads=2, kv_heads=2, head_dim=32)
    planner = Planner.of(small, TWO_LEVELS, 8, 4, None, "paper", part="blocks")
    assert list(megatron(planner)) == [4]  # 8 sequences would be wanted, and 4 heads
    result = megatron(planner)[4]
    assert result.sequences["blocks.0.qkv"] == "M4,K2"
    assert result.sequences["blocks.1.fc2"] == "M4,N2"
    assert result.sequences["blocks.0.norm1"] == "M4,R2"
    assert result.cost >= search(planner).cost
