"""A training step leaves its numbers on the device: the CPU waits for them once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from backends import gpu
from distributed_step_cases import drawn
from torch.utils._python_dispatch import TorchDispatchMode

from primepar.distributed import Mesh
from primepar.distributed.runtime.step_programs import StepPrograms, update_on_device
from primepar.distributed.runtime.training_state import TrainingState
from primepar.models import ModelConfig
from primepar.models.dropout import Draw
from primepar.operators import StepInputs, StepOptions
from primepar.plan import Plan, preset_plan

BATCH = 2
WAITING = {
    "aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select", "aten::equal",
    "aten::is_nonzero", "aten::_unique2", "aten::repeat_interleave",
}  # fmt: skip
"""Operations whose result the CPU reads: on a GPU it waits for all work before them."""


class Waits(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the operations that the CPU would wait for."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        name = func._schema.name
        if name in WAITING:
            self.names.append(name)
        return func(*args, **(kwargs or {}))


@contextmanager
def errors_for_waits() -> Iterator[None]:
    """Let torch raise where the CPU waits for the GPU."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def plan_of(family: str) -> Plan:
    sizes: dict[str, Any] = {
        "layers": 2, "hidden": 16, "heads": 4, "context": 4, "vocabulary": 32,
        "dropout": 0.1, "attention_dropout": 0.1,
    }  # fmt: skip
    config = ModelConfig.of(family, **sizes)  # type: ignore[arg-type]
    return preset_plan("data", config, 1, BATCH)


def second_step(plan: Plan, device: str, around: Any) -> torch.Tensor:
    """Two steps with clipping; the second, after the caches are filled, is `around`'s."""
    mesh = Mesh(plan.mesh, device)
    state = TrainingState(plan, mesh)
    programs = StepPrograms(plan, mesh, StepOptions(clip=0.5))
    run = programs.program(BATCH, plan.model.context, "update")
    for step in (1, 2):
        tokens, targets = (
            torch.from_numpy(part).to(device) for part in drawn(plan.model, BATCH, step)
        )
        inputs = StepInputs(Draw(1, step), 0.1, step)
        if step == 2:
            with around:
                numbers_2 = update_on_device(run, state, tokens, targets, inputs)
        else:
            numbers_2 = update_on_device(run, state, tokens, targets, inputs)
    return numbers_2


@pytest.mark.parametrize("family", ["gpt2", "opt", "llama", "bloom"])
def test_a_step_has_no_operation_that_the_cpu_waits_for(family: str) -> None:
    waits = Waits()
    numbers_2 = second_step(plan_of(family), "cpu", waits)
    assert (numbers_2.shape, numbers_2.dtype) == ((2,), torch.float64)
    assert waits.names == []


def test_a_wait_is_noted() -> None:
    with Waits() as waits:
        torch.ones(1).item()
    assert waits.names == ["aten::_local_scalar_dense"]


@gpu
@pytest.mark.parametrize("family", ["gpt2", "opt", "llama", "bloom"])
def test_a_step_on_a_gpu_does_not_wait(family: str) -> None:
    second_step(plan_of(family), "cuda", errors_for_waits())
