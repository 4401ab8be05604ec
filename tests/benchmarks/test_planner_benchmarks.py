"""The benchmark of regret: what is compared, and that what is counted adds up."""

from __future__ import annotations

import pytest

from benchmarks.regret import RegretRow, SmallQuestion, methods, small_space
from primepar.models.config import ModelConfig

MODEL = ModelConfig.of("gpt2", layers=2, hidden=64, heads=8, context=32, vocabulary=96)


def test_the_small_space_has_pairs_of_methods_options_and_stages() -> None:
    assert [*methods(4)] == ["megatron", "megatron-sp", "primepar", "M2,megatron",
                             "M2,megatron-sp", "data"]  # fmt: skip
    plans = dict(small_space(MODEL, 4, 8))
    assert len(plans) == 6 * 5 + (6 + 6 + 3) * 4
    assert {plan.schedule.stages for plan in plans.values() if plan.schedule} == {1, 2}
    mixed = plans["data + primepar"].sequences
    assert (mixed["blocks.1.qkv"], mixed["blocks.1.fc2"]) == ("M4", "P2x2")
    assert SmallQuestion.drawn(3) == SmallQuestion.drawn(3) != SmallQuestion.drawn(4)


def test_a_plan_that_is_faster_than_the_small_space_has_no_regret() -> None:
    row = RegretRow("", "h100", 4, 8, None, 90, "data", 2.0, 1.5)
    assert (row.regret, row.code) == (0.0, 0)
    slower = RegretRow("", "h100", 4, 8, None, 90, "data", 2.0, 2.1)
    assert slower.regret == pytest.approx(0.05)
    assert slower.code == 1
