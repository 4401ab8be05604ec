"""Training under a limit of device memory, next to the same run without one."""

from __future__ import annotations

from fractions import Fraction
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from distributed_ranks import sums_in_one_order

from primepar.distributed import Mesh
from primepar.distributed.runtime.step_programs import StepPrograms, update
from primepar.distributed.runtime.training_state import TrainingState
from primepar.models import GPTConfig
from primepar.models.dropout import Draw
from primepar.operators import StepInputs, StepOptions
from primepar.partition import parse_sequence
from primepar.plan import preset_plan
from primepar.plan.presets import uniform_plan

MODEL = GPTConfig(layers=2, hidden=16, heads=2, context=4, vocabulary=32)
BATCH, STEPS, STATES = 2, 6, 4
"""Parameters, gradients and two moments."""


class Ended(NamedTuple):
    """Losses and norms of all steps, the parameters, and the elements of a rank's states."""

    numbers: list[tuple[float, float]]
    parameters: list[float]
    states: int
    measured: int
    """Most elements on the device."""
    limit: int | None


def trained(sequence: str, share: Fraction | None, device: str = "cpu") -> Ended:
    """Train in float32; the limit is a share of the states' size. A pipeline is of two ranks."""
    pipeline = "," in sequence
    plan = (
        preset_plan(sequence, MODEL, 2) if pipeline
        else uniform_plan(MODEL, parse_sequence(sequence))
    )  # fmt: skip
    held = TrainingState(plan, Mesh(plan.mesh, device))
    names = [name + part.index for name, parts in held.places.items() for part in parts]
    states = STATES * _fewest(sum(held.blocks[name].numel() for name in names), held.mesh.device)
    limit = None if share is None else int(states * share)
    mesh = Mesh(plan.mesh, device, device_memory=None if limit is None else 4 * limit)
    options = StepOptions(clip=1.0, device_elements=mesh.limit)
    state, programs = TrainingState(plan, mesh), StepPrograms(plan, mesh, options)
    run, numbers = programs.program(BATCH, MODEL.context, "update"), []
    for step in range(1, STEPS + 1):
        generator = torch.Generator().manual_seed(step)
        batch = torch.randint(0, MODEL.vocabulary, (2, BATCH, MODEL.context), generator=generator)
        tokens, targets = batch.to(mesh.device)
        numbers.append(update(run, state, tokens, targets, StepInputs(Draw(0, step), 0.01, step)))
    ends = torch.cat([state.block(name, part).flatten().cpu()
                      for name, parts in state.places.items() for part in parts])  # fmt: skip
    return Ended(numbers, ends.tolist(), states, run.executor.measured, mesh.limit)


def _fewest(elements: int, device: torch.device) -> int:
    """The least of all ranks: the limit is one number for all, and stages differ."""
    least = torch.tensor(elements, device=device)
    if dist.is_initialized():
        dist.all_reduce(least, dist.ReduceOp.MIN)
    return int(least)


def pairs(sequence: str, device: str = "cpu") -> Any:
    """Without a limit, and with limits of a half and a third of the states."""
    sums_in_one_order(torch.device(device))
    shares = (None, Fraction(1, 2), Fraction(1, 3))
    return [trained(sequence, share, device) for share in shares]
