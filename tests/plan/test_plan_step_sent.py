"""What the program of a step sends and holds is what emulated devices do; all is predicted."""

from __future__ import annotations

from itertools import product
from math import ceil

import pytest
from hypothesis import HealthCheck, given, settings
from lowered_steps import lower_step
from partitioned_cases import (
    PRESET_MESHES,
    SHAPES,
    drawn_batch,
    drawn_parameters,
    plan_apart,
    planned_steps,
)
from profiles import IS_LONG, few
from step_cases import (
    BATCH,
    POSITIONS,
    SMALL,
    as_planned,
    calls_of_step,
    held_by,
    lowered,
    sent_by,
)

from primepar.plan import Plan, preset_plan
from primepar.plan.simulator.account import accounting
from primepar.reference.emulator.model import EmulatedModel
from primepar.verify import verify_program

RANDOM_PLANS = 6 if IS_LONG else 2
PARTS = [
    ("data", 4, 1), ("data", 4, 2), ("megatron-sp", 4, 1), ("stationary", 4, 1), ("primepar", 4, 1),
    ("3d", 8, 1), ("M2,megatron", 8, 1),
]  # fmt: skip
"""Presets with so few sequences that ranks have parts of one in their attention."""


def assert_counted_alike(plan: Plan, batch: int, positions: int) -> None:
    """What a step sends and holds: predicted, read from the program, counted by the emulator."""
    program, planned = lower_step(plan, batch, positions), as_planned(plan, batch, positions)
    model = EmulatedModel(plan.model, plan, drawn_parameters(plan.model))
    step = model.update(*drawn_batch(plan.model, batch, positions), 0.01)
    assert step.sent == sent_by(calls_of_step(program)) == sent_by(calls_of_step(planned))
    assert step.peak == held_by(program)
    account = accounting(plan, batch, positions, "float32")
    assert [4 * elements for elements in step.peak] == list(account.held)
    assert [ceil(4 * elements) for elements in step.sent] == list(account.sent)
    assert all(map(int.__le__, step.peak, held_by(planned)))


@few
@pytest.mark.parametrize(("mesh", "family"), list(product(PRESET_MESHES, SMALL)))
def test_a_step_sends_and_holds_what_is_predicted(mesh: tuple[str, int], family: str) -> None:
    name, ranks = mesh
    assert_counted_alike(preset_plan(name, SMALL[family], ranks), BATCH, POSITIONS)


@few
@pytest.mark.parametrize(("name", "ranks", "batch"), PARTS)
def test_attention_on_parts_of_a_sequence_sends_the_same(name: str, ranks: int, batch: int) -> None:
    plan = preset_plan(name, SMALL["llama"], ranks)
    assert_counted_alike(plan, batch, POSITIONS)
    before_passes = lower_step(plan, batch, POSITIONS, passes=())
    kinds = {call.kind for calls in calls_of_step(before_passes) for call in calls}
    assert {"AllGather", "ReduceScatter"} <= kinds
    assert verify_program(lower_step(plan, batch, POSITIONS)).verdict == "proved"


@pytest.mark.parametrize(("family", "ranks"), [("llama", 4), *([("gpt2", 16)] if IS_LONG else [])])
def test_linear_operators_that_leave_blocks_apart_send_the_same(family: str, ranks: int) -> None:
    plan = plan_apart(SHAPES[family], ranks)
    batch = plan.row_cuts.smallest_batch(POSITIONS)
    assert_counted_alike(plan, batch, POSITIONS)
    assert verify_program(lower_step(plan, batch, POSITIONS)).verdict == "proved"


@settings(max_examples=RANDOM_PLANS, suppress_health_check=list(HealthCheck))
@given(planned_steps())
def test_under_any_plan_a_step_is_proved_and_sends_the_same(planned: tuple[Plan, int, int]) -> None:
    assert_counted_alike(*planned)
    assert verify_program(lower_step(*planned)).verdict == "proved"


def test_one_call_less_is_seen() -> None:
    program = lowered("data", 4, "gpt2")
    everyone = calls_of_step(program)
    assert sent_by([calls[:-1] for calls in everyone]) != sent_by(everyone)
