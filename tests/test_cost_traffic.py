"""The bytes that the planner predicts of every device are those that the step's program sends."""

from __future__ import annotations

from fractions import Fraction
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planner_cases import TWO_LEVELS
from step_cases import calls_of_step, sent_by

from primepar.errors import PlanError
from primepar.models.config import ModelConfig
from primepar.plan import lower_step, ready_plan
from primepar.plan.cost.traffic import Traffic, traffic
from primepar.plan.search.planner import Found, Planner
from primepar.plan.search.space import SpaceName
from primepar.reference.check import memories
from primepar.reference.executor import emulate

SIZES = {"layers": 1, "hidden": 16, "heads": 8, "context": 4}
MODELS = {
    "gpt2": ModelConfig.of("gpt2", **SIZES, vocabulary=21),
    "opt": ModelConfig.of("opt", **SIZES, vocabulary=24, tied=False),
    "llama": ModelConfig.of("llama", **SIZES, vocabulary=13, kv_heads=4, ffn=24),
    "bloom": ModelConfig.of("bloom", **SIZES, vocabulary=32),
}
"""Tied and not, with a vocabulary that 8 devices divide and one that they do not."""
PLANS = 20


@cache
def planner(family: str, devices: int, batch: int, space: SpaceName) -> Planner:
    return Planner.of(MODELS[family], TWO_LEVELS, devices, batch, "float32", space)


@st.composite
def chosen(draw: st.DrawFn, space: SpaceName) -> Found:
    """Any choice that a search over a space may make."""
    family, devices = draw(st.sampled_from(list(MODELS))), draw(st.sampled_from([2, 4, 8]))
    found = planner(family, devices, draw(st.sampled_from([2, 8])), space)
    choices = {name: draw(st.integers(0, len(found.options(name)) - 1)) for name in found.named}
    return Found(found, 0.0, choices)


@pytest.mark.parametrize("space", ["paper", "all"])
def test_any_plan_of_a_space_sends_what_is_predicted(space: SpaceName) -> None:
    """Instruction by instruction; ready plans and any others are in `test_plan_step_sent`."""

    @settings(max_examples=PLANS)
    @given(chosen(space))
    def sends(found: Found) -> None:
        training = found.planner.training
        program = lower_step(found.plan, training.batch, training.positions)
        predicted = traffic(found.plan, training.batch, training.positions)
        assert list(predicted.total) == sent_by(calls_of_step(program))

    sends()


def test_emulated_devices_send_it() -> None:
    plan = ready_plan("primepar", MODELS["llama"], 4)
    program = lower_step(plan, 2, 4)
    assert list(traffic(plan, 2, 4).total) == emulate(program, memories(program)).sent


def test_what_operators_and_edges_send_is_told_apart() -> None:
    """Two ranks share columns under Megatron: O and dI of its rows, and 3 numbers of each row."""
    found = traffic(ready_plan("megatron", MODELS["opt"], 2), 2, 4)
    one, rows, hidden = Fraction(1), 8, 16
    assert found.operators["blocks.0.proj"] == (rows * hidden * one,) * 2
    assert found.operators["blocks.0.qkv"] == (rows * hidden * one,) * 2
    assert not any(found.operators["blocks.0.norm1"])
    assert found.operators["loss"] == (3 * rows * one,) * 2
    assert not any(map(any, found.edges.values()))


def test_bytes_are_whole_and_of_the_data_type() -> None:
    found = Traffic({"a": (Fraction(1, 3), Fraction(5))}, {("a", "b"): (Fraction(0), Fraction(1))})
    assert found.bytes("float32") == (2, 24)
    assert found.bytes("bfloat16") == (1, 12)


def test_a_batch_that_the_plan_does_not_divide_is_refused() -> None:
    with pytest.raises(PlanError) as caught:
        traffic(ready_plan("data", MODELS["opt"], 8), 3, 4)
    assert str(caught.value) == (
        "batch: expected a multiple or a divisor of the 8 slices of the rows in "
        "blocks.0.attention, got 3: take 4"
    )
