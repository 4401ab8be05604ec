"""What the ranks of the tests on GPUs do: each function runs on every rank of one world."""

from __future__ import annotations

import gc
from typing import NamedTuple

import torch
from distributed_ranks import device_of_rank, sums_in_one_order
from distributed_step_cases import drawn

from primepar.distributed import Mesh
from primepar.distributed.runtime.step_programs import StepPrograms, update
from primepar.distributed.runtime.training_state import TrainingState
from primepar.models import GPTConfig
from primepar.models.dropout import Draw
from primepar.operators import StepInputs, StepOptions
from primepar.partition import parse_sequence
from primepar.plan.presets import uniform_plan

MODEL = GPTConfig(layers=2, hidden=32, heads=4, context=8, vocabulary=64)
BATCH = 4
FIRST = 5
"""Steps before memory is measured: buffers and caches exist then."""
RATE = 0.01


class Trained(NamedTuple):
    """Losses and norms of all steps, and bytes in use after each step from the `FIRST` on."""

    losses: list[float]
    norms: list[float]
    used: list[int]
    pinned: list[bool]
    """Whether the blocks in host memory are pinned."""


def trained(sequence: str, dtype: torch.dtype, steps: int, limit: int | None = None) -> Trained:
    """Train under a sequence; `limit` are bytes of device memory."""
    plan, device = uniform_plan(MODEL, parse_sequence(sequence)), device_of_rank()
    sums_in_one_order(device)
    mesh = Mesh(plan.mesh, device, dtype, device_memory=limit)
    state = TrainingState(plan, mesh)
    programs = StepPrograms(plan, mesh, StepOptions(clip=1.0, device_elements=mesh.limit))
    run = programs.program(BATCH, MODEL.context, "update")
    numbers, used = [], []
    for step in range(1, steps + 1):
        tokens, targets = (torch.from_numpy(part).to(device) for part in drawn(MODEL, BATCH, 1))
        numbers.append(update(run, state, tokens, targets, StepInputs(Draw(0, 1), RATE, step)))
        if step >= FIRST:
            used.append(bytes_in_use(device))
    losses, norms = (list(values) for values in zip(*numbers, strict=True))
    return Trained(losses, norms, used, [block.is_pinned() for block in state.host.values()])


def bytes_in_use(device: torch.device) -> int:
    """Bytes of tensors on a device: torch's count on a GPU, our count of live tensors on a CPU."""
    gc.collect()
    if device.type == "cuda":
        return torch.cuda.memory_allocated(device)
    storages = {}
    for thing in gc.get_objects():
        if type(thing) in (torch.Tensor, torch.nn.Parameter) and thing.device.type == "cpu":
            storage = thing.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


def long_runs(sequence: str, steps: int, limit: int) -> list[Trained]:
    """A long run, and one under a limit of device memory."""
    return [trained(sequence, torch.float32, steps, given) for given in (None, limit)]


def short_runs(sequence: str) -> list[Trained]:
    """The first steps in double precision, and in half precision."""
    return [trained(sequence, dtype, FIRST) for dtype in (torch.float64, torch.bfloat16)]


def mesh_backend() -> str:
    """The backend of a mesh on this rank's device."""
    return Mesh(parse_sequence(""), device_of_rank()).backend
