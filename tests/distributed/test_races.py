"""No compiled list races on CUDA's streams; lists that are made wrong do, and it is seen."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, partial
from itertools import cycle
from math import prod
from typing import Any, NamedTuple, TypeVar

import offload_cases
import pytest
import torch
from lowered_steps import lower_step
from partitioned_cases import ON_FOUR
from pipelined_plans import POSITIONS as STAGE_POSITIONS
from pipelined_plans import SCHEDULES, pipelined
from profiles import IS_LONG
from races import RaceRun
from step_cases import BATCH, POSITIONS, SMALL, passed

from primepar.distributed.runtime.memory import Allocate
from primepar.distributed.runtime.running import Action, CompiledStep
from primepar.operators import StepSettings
from primepar.schedule import Program
from primepar.schedule.effects import effects
from primepar.schedule.one_queue import in_one_queue
from primepar.schedule.program import Compute

T = TypeVar("T")
Made = tuple[Program, StepSettings]


def preset(name: str, family: str) -> Made:
    return passed(name, 4, family), StepSettings(SMALL[family], BATCH, POSITIONS)


def pipeline(schedule: str) -> Made:
    plan = pipelined(schedule, "data", 2)
    batch = plan.batch or 0
    program = lower_step(plan, batch, STAGE_POSITIONS)
    return program, StepSettings(plan.model, batch, STAGE_POSITIONS)


def limited() -> Made:
    return offload_cases.limited("K2"), StepSettings(offload_cases.SMALL, 2, 4, 1.0)


CASES: dict[str, Callable[[], Made]] = {
    **{name: partial(preset, name, family)
       for name, family in zip(ON_FOUR, cycle(SMALL), strict=False)},
    **{schedule: partial(pipeline, schedule) for schedule in SCHEDULES},
    "limited": limited,
}  # fmt: skip
ATTACKED = ("primepar", "summa", "1f1b", "limited")


@cache
def ordered(case: str) -> Made:
    program, settings = CASES[case]()
    return in_one_queue(program), settings


@cache
def compiled(case: str, rank: int) -> RaceRun:
    program, settings = ordered(case)
    return RaceRun(program, rank, settings)


@pytest.mark.parametrize("case", CASES)
def test_no_list_races(case: str) -> None:
    """Of all ranks; in the short profile of the first and last stages, and of one rank."""
    last = ordered(case)[0].ranks - 1
    some = [0, last] if case in SCHEDULES else [0]
    for rank in range(last + 1) if IS_LONG else some:
        assert compiled(case, rank).faults() == []


# Lists that are made wrong


class Operation(NamedTuple):
    """One communication of a list: the step that posts it, and its waits, with their steps."""

    posted: int
    waits: list[tuple[int, Action]]


def operations(run: RaceRun) -> list[Operation]:
    made: dict[int, Operation] = {}
    for number, step in enumerate(run.list.steps):
        for action in step.actions:
            kind, work = getattr(action, "__qualname__", ""), captured(action).get("work")
            if kind.startswith("posting."):
                made[id(work)] = Operation(number, [])
            elif kind.startswith("waiting.") and id(work) in made:
                made[id(work)].waits.append((number, action))
    return list(made.values())


def captured(action: Any) -> dict[str, Any]:
    """What a closure has of the function that made it."""
    cells = getattr(action, "__closure__", None) or ()
    names = action.__code__.co_freevars if cells else ()
    return {name: cell.cell_contents for name, cell in zip(names, cells, strict=True)}


def without_waits(run: RaceRun, operation: Operation) -> list[CompiledStep]:
    gone = {id(action) for _, action in operation.waits}
    return [
        CompiledStep(step.instructions, [one for one in step.actions if id(one) not in gone])
        for step in run.list.steps
    ]


def few_of(values: list[T]) -> list[T]:
    """Some of many, from all of the list; in the long profile all."""
    return values[:: 1 if IS_LONG else 1 + len(values) // 3]


@pytest.mark.parametrize("case", ATTACKED)
def test_a_missing_wait_is_seen(case: str) -> None:
    run = compiled(case, 0)
    for operation in few_of(operations(run)):
        faults = run.faults(without_waits(run, operation))
        assert any(fault.endswith("is never waited for") for fault in faults)


def communicators(step: CompiledStep) -> set[str]:
    return {getattr(node, "communicator", "") for node in step.instructions}


def is_used(run: RaceRun, operation: Operation) -> bool:
    """Whether a product reads what was received, before a wait for a later operation may end it.

    By the names of blocks in the instructions, not by memory.
    """
    steps, rank = run.list.steps, run.list.mesh.rank
    received = {
        name for node in steps[operation.posted].instructions for name in effects(node, rank).writes
    }
    ends = {
        number
        for other in operations(run)
        if other.posted > operation.posted
        and communicators(steps[other.posted]) & communicators(steps[operation.posted])
        for number, _ in other.waits
    }
    for number in range(operation.posted, len(steps)):
        if number in ends:
            return False
        products = [node for node in steps[number].instructions if isinstance(node, Compute)]
        if any(received & set(node.reads) for node in products):
            return True
    return False


@pytest.mark.parametrize("case", ATTACKED)
def test_a_wait_after_the_use_of_its_block_is_seen(case: str) -> None:
    run = compiled(case, 0)
    moved = few_of([operation for operation in operations(run) if is_used(run, operation)])
    assert moved
    for operation in moved:
        *steps, last = without_waits(run, operation)
        late = CompiledStep((), [action for _, action in operation.waits])
        assert any(" races with " in fault for fault in run.faults([*steps, late, last]))


@pytest.mark.parametrize("case", ATTACKED)
def test_two_blocks_in_one_place_are_seen(case: str) -> None:
    run = compiled(case, 0)
    allocations = [
        action for step in run.list.steps for action in step.actions if isinstance(action, Allocate)
    ]
    shared = [is_seen for one in few_of(allocations) for is_seen in in_memory_in_use(run, one)]
    assert shared
    assert all(shared)


def in_memory_in_use(run: RaceRun, allocate: Allocate) -> Iterator[bool]:
    """Whether it is seen that a buffer has the memory of another one, if one is large enough."""
    new, taken = allocate.new, list[torch.Tensor]()

    def shared(shape: tuple[int, ...]) -> torch.Tensor:
        taken.extend(
            memory.view(-1)[: prod(shape)].view(shape)
            for memory, _ in (slot[0] for slot in run.live.values() if slot[0] is not None)
            if (memory.dtype, memory.is_contiguous()) == (allocate.buffer.dtype, True)
            and memory.numel() >= prod(shape) > 0
        )
        return taken[0] if taken else new(shape)

    allocate.new = shared
    try:
        faults = run.faults()
    finally:
        allocate.new = new
    if taken:
        yield any(fault.endswith("gets memory that is in use") for fault in faults)
