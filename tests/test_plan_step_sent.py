"""What the program of a step sends is what the emulated model sends; all is predicted."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from partitioned_cases import READY_PLANS, SHAPES, plan_apart, planned_steps
from step_cases import (
    BATCH,
    POSITIONS,
    SMALL,
    calls_of_model,
    calls_of_step,
    held_by,
    lowered,
    merged,
    sent_by,
)

from primepar.operators import lower_step
from primepar.plan import Plan, ready_plan
from primepar.plan.cost.traffic import traffic
from primepar.plan.memory.peak import peak
from primepar.verify import verify_program

RANDOM_PLANS = 6
PARTS = [
    ("data", 4, 1), ("data", 4, 2), ("megatron-sp", 4, 1), ("stationary", 4, 1), ("primepar", 4, 1),
    ("3d", 8, 1), ("M2,megatron", 8, 1),
]  # fmt: skip
"""Ready plans with so few sequences that ranks have parts of one in their attention."""


@pytest.mark.parametrize("family", SMALL)
@pytest.mark.parametrize(("name", "ranks"), READY_PLANS)
def test_a_step_sends_what_the_emulated_model_sends_in_its_order(
    family: str, name: str, ranks: int
) -> None:
    plan = ready_plan(name, SMALL[family], ranks)
    expected, counted = calls_of_model(plan, BATCH, POSITIONS)
    program = lowered(name, ranks, family)
    got = calls_of_step(program)
    assert got == expected
    assert sent_by(got) == counted == list(traffic(plan, BATCH, POSITIONS).total)
    assert held_by(program) == peak(plan, BATCH, POSITIONS).tolist()


@pytest.mark.parametrize(("name", "ranks", "batch"), PARTS)
def test_attention_on_parts_of_a_sequence_sends_the_same(name: str, ranks: int, batch: int) -> None:
    plan = ready_plan(name, SMALL["llama"], ranks)
    program = lower_step(plan, batch, POSITIONS)
    expected, counted = calls_of_model(plan, batch, POSITIONS)
    got = calls_of_step(program)
    assert got == expected
    assert sent_by(got) == counted == list(traffic(plan, batch, POSITIONS).total)
    assert held_by(program) == peak(plan, batch, POSITIONS).tolist()
    assert {"AllGather", "ReduceScatter"} <= {call.kind for own in got for call in own}
    assert verify_program(program).verdict == "proved"


def assert_same_together(plan: Plan, batch: int, positions: int) -> None:
    """The step is proved, and sends the same as the model, what is alike at once or not."""
    program = lower_step(plan, batch, positions)
    expected, counted = calls_of_model(plan, batch, positions)
    got = calls_of_step(program)
    assert merged(got) == merged(expected)
    assert sent_by(got) == counted == list(traffic(plan, batch, positions).total)
    assert held_by(program) == peak(plan, batch, positions).tolist()
    assert verify_program(program).verdict == "proved"


@pytest.mark.parametrize(("family", "ranks"), [("llama", 4), ("gpt2", 16)])
def test_linear_operators_that_leave_blocks_apart_send_the_same(family: str, ranks: int) -> None:
    plan = plan_apart(SHAPES[family], ranks)
    assert_same_together(plan, plan.row_cuts.smallest_batch(POSITIONS), POSITIONS)


@settings(max_examples=RANDOM_PLANS, suppress_health_check=list(HealthCheck))
@given(planned_steps())
def test_under_any_plan_a_step_is_proved_and_sends_the_same(planned: tuple[Plan, int, int]) -> None:
    assert_same_together(*planned)


def test_one_call_less_is_seen() -> None:
    plan = ready_plan("data", SMALL["gpt2"], 4)
    expected, counted = calls_of_model(plan, BATCH, POSITIONS)
    got = [own[:-1] for own in calls_of_step(lowered("data", 4, "gpt2"))]
    assert merged(got) != merged(expected)
    assert sent_by(got) != counted
