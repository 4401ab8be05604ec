"""A plan that is given costs what the search says of it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from planner_cases import SMALL, TWO_LEVELS, UNTIED

from benchmarks.paper.setting import megatron, megatron_sequences
from primepar.errors import PlanError
from primepar.plan.search.given_plan import Given
from primepar.plan.search.planner import Part, Planner
from primepar.plan.search.search import search
from primepar.plan.search.sequence_space import SpaceName


@pytest.mark.parametrize("part", ["model", "blocks"])
@pytest.mark.parametrize("space", ["paper", "all"])
def test_what_a_search_found_costs_the_same_where_it_is_given(space: SpaceName, part: Part) -> None:
    for model in (SMALL, UNTIED):
        planner = Planner.of(model, TWO_LEVELS, 4, 4, None, space, 1e-12, part=part)
        found = search(planner)
        given = Given.beside(planner, found.sequences).found
        assert given.cost == pytest.approx(found.cost)
        assert given.seconds == pytest.approx(found.seconds)
        assert given.memory == pytest.approx(found.memory)


def test_layers_may_have_other_sequences_than_one_another() -> None:
    planner = Planner.of(SMALL, TWO_LEVELS, 4, 4, None, "paper", part="blocks")
    plans = [megatron_sequences(planner, copies) for copies in (1, 4)]
    mixed = {name: plans[name.startswith("blocks.1")][name] for name in planner.named}
    seconds = [Given.beside(planner, each).found.seconds for each in (*plans, mixed)]
    inner = Given.beside(planner, mixed)
    assert sum(seconds[:2]) / 2 < seconds[2]
    assert float(inner.edge("blocks.0.add2", "blocks.1.norm1")[0, 0]) > 0
    assert float(inner.edge("blocks.0.norm1", "blocks.0.qkv")[0, 0]) == 0


def test_a_sequence_that_the_space_has_not_is_refused() -> None:
    planner = Planner.of(SMALL, TWO_LEVELS, 4, 4, None, "paper", part="blocks")
    sequences = megatron_sequences(planner, 1) | {"blocks.1.fc1": "Os2x2"}
    with pytest.raises(PlanError) as caught:
        _ = Given.beside(planner, sequences).found
    assert str(caught.value) == (
        "expected a sequence of blocks.1.fc1 on 4 devices in the space paper that its sizes "
        "allow, got Os2x2"
    )


def test_megatron_has_every_degree_that_the_sizes_allow() -> None:
    small = replace(SMALL, heads=2, kv_heads=2, head_dim=32)
    planner = Planner.of(small, TWO_LEVELS, 8, 4, None, "paper", part="blocks")
    assert list(megatron(planner)) == [4]  # 8 sequences would be wanted, and 4 heads
    found = megatron(planner)[4]
    assert found.sequences["blocks.0.qkv"] == "M4,K2"
    assert found.sequences["blocks.1.fc2"] == "M4,N2"
    assert found.sequences["blocks.0.norm1"] == "M4,R2"
    assert found.cost >= search(planner).cost
