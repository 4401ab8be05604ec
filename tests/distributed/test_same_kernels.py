"""Every mode of a run calls the same kernels, on operands of the same strides and alignment.

So all modes give the same bits on any processor, whatever order of summation its libraries choose
for operands of these shapes, strides and alignment. No number is compared here.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.distributed as dist
from msgspec.structs import replace
from profiles import IS_LONG
from step_cases import BATCH, POSITIONS, SMALL
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode

from primepar.distributed import Mesh
from primepar.distributed.runtime.memory import ALIGNMENT
from primepar.distributed.runtime.step_programs import StepProgram, update
from primepar.distributed.runtime.training_state import TrainingState
from primepar.models.dropout import Draw
from primepar.operators import StepInputs, StepOptions, StepSettings, lower_step
from primepar.passes import PASSES
from primepar.passes.offload import least_limit, with_copies
from primepar.plan import Plan, preset_plan
from primepar.schedule import Program
from primepar.schedule.effects import effects
from primepar.schedule.program import Collective, Compute, Instruction

PLANS = {"data": 1, "1f1b:2x4,data": 4, "primepar": 4} | ({"3d": 8} if IS_LONG else {})
"""Preset -> ranks; only the first of them is there, and torch answers for the others at once."""
MOVES = ("copy_", "zero_", "fill_", "_to_copy", "empty", "clone", "new_", "arange", "full")
"""Starts of the names of what sets or moves numbers and computes none."""
VIEWS = ("view", "slice", "select", "unsqueeze", "t", "transpose", "expand", "split", "unbind")
Call = tuple[str, str]


class Trace(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records every torch function that computes, with the memory layout of its tensors."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[Call] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        space, name = func._schema.name.split("::")
        if space == "aten" and name not in VIEWS and not name.startswith(MOVES):
            self.calls.append((name, str(layout([*args, *(kwargs or {}).values()]))))
        return func(*args, **(kwargs or {}))


def layout(argument: Any) -> Any:
    """The memory layout of the tensors of an argument; any other argument as it is."""
    if isinstance(argument, torch.Tensor):
        return *argument.shape, argument.stride(), argument.dtype, argument.data_ptr() % ALIGNMENT
    if isinstance(argument, list | tuple):
        return [layout(one) for one in argument]
    return argument


@contextmanager
def first_of(ranks: int) -> Iterator[None]:
    """Rank 0 of a world whose other ranks are not there."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
    try:
        yield
    finally:
        dist.destroy_process_group()


def small_plan(name: str) -> Plan:
    model = dataclasses.replace(SMALL["gpt2"], layers=2) if ":" in name else SMALL["gpt2"]
    return preset_plan(name, model, PLANS[name])


def limit_of(plan: Plan) -> int:
    """The least limit under which the step runs."""
    passes = [name for name in PASSES if name != "overlap"]
    step = lower_step(plan, BATCH, POSITIONS, options=StepOptions(1.0), passes=passes)
    return least_limit(with_copies(step))


def step_of(plan: Plan, limit: int | None = None) -> Program:
    return lower_step(plan, BATCH, POSITIONS, options=StepOptions(1.0, device_elements=limit))


def calls(plan: Plan, limit: int | None = None, conform: bool = False) -> list[Call]:
    """What a training step calls, the second one: in the first one kernels fill their caches."""
    mesh = Mesh(plan.mesh, device_memory=None if limit is None else 4 * limit)
    settings = StepSettings(plan.model, BATCH, POSITIONS, 1.0)
    run = StepProgram(step_of(plan, mesh.limit), mesh, settings, conform)
    state, tokens = TrainingState(plan, mesh), torch.zeros((BATCH, POSITIONS), dtype=torch.int64)
    update(run, state, tokens, tokens, StepInputs(Draw(0, 1), 1e-3, 1))
    trace = Trace()
    with trace:
        update(run, state, tokens, tokens, StepInputs(Draw(0, 2), 1e-3, 2))
    return trace.calls


@pytest.mark.parametrize("name", PLANS)
def test_all_modes_call_the_same_kernels_on_the_same_operands(name: str) -> None:
    plan = small_plan(name)
    with first_of(plan.ranks):
        plain = calls(plan)
        assert len(plain) > 100
        assert calls(plan, conform=True) == plain
        # Nothing is posted early under a limit, so other instructions may run in between.
        assert sorted(calls(plan, limit_of(plan))) == sorted(plain)


@pytest.mark.parametrize("name", [name for name, ranks in PLANS.items() if ranks > 1])
def test_a_limit_changes_no_order_of_what_is_added_to_a_block(name: str) -> None:
    plan = small_plan(name)
    plain, limited = makers(step_of(plan)), makers(step_of(plan, limit_of(plan)))
    assert max(map(len, plain.values())) > 1
    assert limited == plain


def makers(program: Program) -> dict[tuple[int, str], list[Instruction]]:
    """(rank, block) -> the computes and collectives that write it, in order."""
    made: dict[tuple[int, str], list[Instruction]] = defaultdict(list)
    for rank, nodes in enumerate(program.programs):
        for node in nodes:
            if isinstance(node, Collective):
                node = replace(node, request=None)  # under a limit nothing is posted early
            for name in (
                effects(node, rank).writes if isinstance(node, Compute | Collective) else ()
            ):
                made[rank, name].append(node)
    return made


def test_the_trace_shows_strides_and_alignment() -> None:
    numbers, traces = torch.zeros(4 * ALIGNMENT), [Trace() for _ in range(3)]
    adjacent, strided, elsewhere = numbers[:16], numbers[:32:2], numbers[1:17]
    for trace, operand in zip(traces, (adjacent, strided, elsewhere), strict=True):
        with trace:
            torch.add(operand, 1)
    assert len({tuple(trace.calls) for trace in traces}) == 3
