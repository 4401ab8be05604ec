"""What the program of a step sends is what the emulated model and the processes send."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from partitioned_cases import READY_PLANS, plans
from step_cases import (
    BATCH,
    POSITIONS,
    SMALL,
    calls_of_model,
    calls_of_step,
    lowered,
    sent_by,
)

from primepar.plan import Plan, lower_step, ready_plan
from primepar.schedule import Program
from primepar.verify import verify_program

RANDOM_PLANS = 10


def assert_same(plan: Plan, program: Program, batch: int, positions: int) -> None:
    expected, counted = calls_of_model(plan, batch, positions)
    got = calls_of_step(program)
    assert got == expected
    assert sent_by(got) == counted


@pytest.mark.parametrize("family", SMALL)
@pytest.mark.parametrize(("name", "ranks"), READY_PLANS)
def test_a_step_sends_what_the_emulated_model_sends_in_its_order(
    family: str, name: str, ranks: int
) -> None:
    plan = ready_plan(name, SMALL[family], ranks)
    assert_same(plan, lowered(name, ranks, family), BATCH, POSITIONS)


@settings(max_examples=RANDOM_PLANS, suppress_health_check=list(HealthCheck))
@given(plans())
def test_under_any_plan_a_step_is_proved_and_sends_what_the_emulated_model_sends(
    plan: Plan,
) -> None:
    program = lower_step(plan, plan.batch_multiple, 3)
    assert_same(plan, program, plan.batch_multiple, 3)
    assert verify_program(program).verdict == "proved"


def test_one_message_less_is_seen() -> None:
    plan = ready_plan("data", SMALL["gpt2"], 4)
    expected, counted = calls_of_model(plan, BATCH, POSITIONS)
    got = [own[:-1] for own in calls_of_step(lowered("data", 4, "gpt2"))]
    assert got != expected
    assert sent_by(got) != counted
