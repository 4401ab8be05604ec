"""A given plan costs the same as in the search."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import pytest
from planner_cases import SMALL, TWO_LEVELS, UNTIED

from benchmarks.paper.setting import megatron, megatron_sequences
from primepar.errors import PlanError
from primepar.models.config import Family, ModelConfig
from primepar.plan import PRESETS, preset_plan
from primepar.plan.search.planner import Part, Planner
from primepar.plan.search.result import Given
from primepar.plan.search.search import search
from primepar.plan.search.sequence_space import SpaceName


@pytest.mark.parametrize("part", ["model", "blocks"])
@pytest.mark.parametrize("space", ["paper", "all"])
def test_what_a_search_found_costs_the_same_where_it_is_given(space: SpaceName, part: Part) -> None:
    for model in (SMALL, UNTIED):
        planner = Planner.of(model, TWO_LEVELS, 4, 4, None, space, 1e-12, part=part)
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
