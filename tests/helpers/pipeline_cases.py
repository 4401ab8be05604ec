"""Pipelines for tests: of generated sizes, and small ones."""

from __future__ import annotations

from random import Random
from typing import get_args

from primepar.partition.pipeline.actions import ScheduleName, chunks_of
from primepar.partition.pipeline.dependencies import PipelineOrders
from primepar.partition.pipeline.program import pipeline_program
from primepar.schedule.program import Program

SCHEDULES: tuple[ScheduleName, ...] = get_args(ScheduleName)


def generated(seed: int) -> Program:
    """A program of a schedule and of sizes that a seed gives."""
    random = Random(seed)
    schedule = SCHEDULES[seed % len(SCHEDULES)]
    stages, micro_batches = random.randint(1, 5), random.randint(1, 9)
    chunks = chunks_of(schedule)
    if schedule == "interleaved-1f1b":
        chunks, micro_batches = random.randint(2, 3), stages * random.randint(1, 3)
    pipeline = PipelineOrders.of(schedule, stages, micro_batches, chunks)
    return pipeline_program(pipeline, random.randint(1, 3), random.randint(1, 4))


def small(schedule: ScheduleName, stages: int = 2, micro_batches: int = 4) -> Program:
    """A small program of a schedule."""
    return pipeline_program(PipelineOrders.of(schedule, stages, micro_batches), 1, 2)
