"""Generated pipelines: orders of messages, and whole steps on integers against one device.

With HYPOTHESIS_PROFILE=ci 200 generated plans are emulated and proved.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from itertools import pairwise, product
from random import Random

import pytest
from partitioned_cases import SHAPES
from pipelined_plans import POSITIONS, SCHEDULES, SEVERAL_CHUNKS
from profiles import IS_LONG

from primepar.errors import PlanError
from primepar.operators import lower_step
from primepar.partition.pipeline.dependencies import PipelineOrders, placed_messages
from primepar.plan import Plan, preset_plan
from primepar.plan.pipeline_layout import PipelineLayout
from primepar.reference.check import check_program
from primepar.verify import verify_program

STAGE_PLANS = (
    ("data", 1), ("megatron", 2), ("megatron-sp", 2), ("data", 2), ("summa", 4), ("primepar", 4),
    ("stationary", 4), ("tesseract", 4), ("M2,megatron", 4), ("megatron-sp", 4),
)  # fmt: skip
COUNT = 200 if IS_LONG else 3


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_both_ends_of_a_pair_of_stages_have_one_order(schedule: str) -> None:
    for stages, micro_batches in product(range(1, 7), range(1, 9)):
        try:
            layout = PipelineLayout(
                schedule=schedule,  # type: ignore[arg-type]
                stages=stages,
                micro_batches=micro_batches,
            )
        except PlanError:  # interleaved: not a multiple of the stages
            continue
        assert_ordered(layout.pipeline_orders)
        assert_ordered(layout.pipeline_orders.forward_only)


def assert_ordered(pipeline: PipelineOrders) -> None:
    """Receives are posted in the order of sends, and no later than they are needed."""
    pairs = defaultdict(list)
    for placed in placed_messages(pipeline):
        source, destination = placed.message.source, placed.message.destination
        pairs[source.stage, destination.stage].append(placed)
        assert placed.posted <= destination.place
        assert source.place < placed.ended
    for messages in pairs.values():
        in_order = sorted(messages, key=lambda placed: placed.message.source.place)
        for before, after in pairwise(in_order):
            assert before.posted <= after.posted


def drawn_plan(random: Random) -> Plan | None:
    """A plan with a pipeline of random sizes; None where they do not fit."""
    schedule, (within, ranks) = random.choice(SCHEDULES), random.choice(STAGE_PLANS)
    stages, micro_batches = random.randint(1, 3), random.randint(1, 5)
    least = stages * (2 if schedule in SEVERAL_CHUNKS else 1)
    model = replace(SHAPES[random.choice(sorted(SHAPES))], layers=least + random.randint(0, 1))
    name = f"{schedule}:{stages}x{micro_batches},{within}"
    try:
        plan = preset_plan(name, model, stages * ranks)
    except PlanError:
        return None
    batch = plan.row_cuts.smallest_batch(POSITIONS, random.randint(1, 2 * micro_batches))
    return preset_plan(name, model, stages * ranks, batch)


@pytest.mark.parametrize("seed", range(COUNT))
def test_a_generated_pipeline_is_exact_and_proved(seed: int) -> None:
    random = Random(seed)
    plan = next(plan for plan in iter(lambda: drawn_plan(random), 0) if plan is not None)
    until = random.choice(["update", "gradients", "loss", "logits"])
    program = lower_step(plan, plan.batch or 0, POSITIONS, until)  # type: ignore[arg-type]
    report = check_program(program)
    assert report.equal, (plan.pipeline, report.message)
    assert verify_program(program).verdict == "proved", plan.pipeline
