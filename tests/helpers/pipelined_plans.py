"""Plans with a pipeline for tests, and their steps."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from lowered_steps import lower_step
from partitioned_cases import SHAPES

from primepar.plan import Plan, preset_plan
from primepar.schedule import Program

POSITIONS = 4
SCHEDULES = ("gpipe", "1f1b", "interleaved-1f1b", "zb-h1", "zbv")
SEVERAL_CHUNKS = ("interleaved-1f1b", "zbv")


def pipelined(
    schedule: str, within: str, ranks: int, family: str = "gpt2", sizes: str = ""
) -> Plan:
    """A plan whose chunks have one layer each; by default 2 stages and 2 micro-batches.

    `sizes` are stages and micro-batches, `3x4`.
    """
    stages, _ = map(int, (sizes or "2x2").split("x"))
    layers = stages * (2 if schedule in SEVERAL_CHUNKS else 1)
    model = replace(SHAPES[family], layers=layers)
    plan = preset_plan(f"{schedule}:{sizes or '2x2'},{within}", model, ranks)
    batch = plan.row_cuts.smallest_batch(POSITIONS)
    return preset_plan(f"{schedule}:{sizes or '2x2'},{within}", model, ranks, batch)


@cache
def smallest() -> Program:
    """The step of two stages of one device each, with two micro-batches under 1F1B."""
    plan = pipelined("1f1b", "data", 2)
    return lower_step(plan, plan.batch or 0, POSITIONS)
