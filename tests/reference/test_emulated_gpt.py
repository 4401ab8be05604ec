"""The byte-level GPT with one sequence for its linear operators, compared with one device."""

from __future__ import annotations

import pytest
from partitioned_cases import PRESET_MESHES, difference
from profiles import few

from primepar.models import GPTConfig, operators
from primepar.partition import parse_sequence
from primepar.plan import Plan, preset_plan

CONFIG = GPTConfig(layers=2, hidden=12, heads=2, context=6, vocabulary=24)
BATCH = 2
SEQUENCES = ["", "M2", "N2", "K2", "P1x1", "P2x2", "P3x3", "K2,P2x2", "M2,P2x2"]


def plan_of(text: str) -> Plan:
    """Every linear operator by a sequence, all else on every device."""
    ranks = parse_sequence(text).ranks
    sequences = {
        operator.name: text if operator.kind == "linear" else f"R{ranks}" * (ranks > 1)
        for operator in operators(CONFIG)
    }
    return Plan(model=CONFIG, ranks=ranks, sequences=sequences)


@few
@pytest.mark.parametrize("text", SEQUENCES)
def test_linear_operators_of_a_sequence_give_what_one_device_gives(text: str) -> None:
    assert difference(plan_of(text), BATCH, CONFIG.context) < 1e-12


@few
@pytest.mark.parametrize(("name", "ranks"), PRESET_MESHES)
def test_under_a_preset_a_gpt_of_bytes_has_the_gradients_of_one_device(
    name: str, ranks: int
) -> None:
    config = GPTConfig(layers=1, hidden=16, heads=8, context=4, vocabulary=256)
    assert difference(preset_plan(name, config, ranks), 8, 4) < 1e-10
