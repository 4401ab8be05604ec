"""What the program of a step sends and holds on every rank is what the planner predicts."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from partitioned_cases import READY_PLANS, SHAPES, plan_apart, planned_steps
from step_cases import (
    BATCH,
    POSITIONS,
    SMALL,
    calls_of_step,
    held_by,
    lowered,
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
def test_a_step_sends_and_holds_what_is_predicted(family: str, name: str, ranks: int) -> None:
    plan = ready_plan(name, SMALL[family], ranks)
    program = lowered(name, ranks, family)
    got = calls_of_step(program)
    assert sent_by(got) == list(traffic(plan, BATCH, POSITIONS).total)
    assert held_by(program) == peak(plan, BATCH, POSITIONS).tolist()


@pytest.mark.parametrize(("name", "ranks", "batch"), PARTS)
def test_attention_on_parts_of_a_sequence_is_as_predicted(
    name: str, ranks: int, batch: int
) -> None:
    plan = ready_plan(name, SMALL["llama"], ranks)
    program = lower_step(plan, batch, POSITIONS)
    got = calls_of_step(program)
    assert sent_by(got) == list(traffic(plan, batch, POSITIONS).total)
    assert held_by(program) == peak(plan, batch, POSITIONS).tolist()
    assert {"AllGather", "ReduceScatter"} <= {call.kind for own in got for call in own}
    assert verify_program(program).verdict == "proved"


def assert_as_predicted(plan: Plan, batch: int, positions: int) -> None:
    """The step is proved, and sends and holds what is predicted."""
    program = lower_step(plan, batch, positions)
    got = calls_of_step(program)
    assert sent_by(got) == list(traffic(plan, batch, positions).total)
    assert held_by(program) == peak(plan, batch, positions).tolist()
    assert verify_program(program).verdict == "proved"


@pytest.mark.parametrize(("family", "ranks"), [("llama", 4), ("gpt2", 16)])
def test_linear_operators_that_leave_blocks_apart_are_as_predicted(family: str, ranks: int) -> None:
    plan = plan_apart(SHAPES[family], ranks)
    assert_as_predicted(plan, plan.row_cuts.smallest_batch(POSITIONS), POSITIONS)


@settings(max_examples=RANDOM_PLANS, suppress_health_check=list(HealthCheck))
@given(planned_steps())
def test_under_any_plan_a_step_is_proved_and_as_predicted(
    planned: tuple[Plan, int, int],
) -> None:
    assert_as_predicted(*planned)


def test_one_call_less_is_seen() -> None:
    plan = ready_plan("data", SMALL["gpt2"], 4)
    got = [own[:-1] for own in calls_of_step(lowered("data", 4, "gpt2"))]
    assert sent_by(got) != list(traffic(plan, BATCH, POSITIONS).total)
