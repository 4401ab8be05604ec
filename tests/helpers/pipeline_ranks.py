"""What the ranks of the tests of pipelines do, in one world."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import torch
import torch.distributed as dist
import training_cases
from distributed_steps import BATCH, POSITIONS, initial, program_of
from partitioned_cases import DRAW, drawn_batch, drawn_parameters

from primepar.distributed import Executor, Mesh, PartitionedModel
from primepar.distributed.modules.model import (
    full_gradient,
    full_logits,
    full_parameter,
    load_parameter,
)
from primepar.distributed.runtime.step_programs import lowered_by_first_rank
from primepar.operators import StepInputs, StepSettings
from primepar.plan import Plan, save_plan


class Watched(NamedTuple):
    """What a rank did in a step that was compared with its program."""

    peak: int
    """Elements of the memory of all blocks, each piece once, at most at once."""
    sent: Fraction
    instructions: int


class Answers(NamedTuple):
    """What one rank has after all runs."""

    program: bytes
    """What was watched, from rank 0 alone."""
    watched: Watched
    trained: Any
    resumed: Any
    module: dict[str, Any]


def watched_step(plan: Plan) -> tuple[bytes, Watched]:
    """One step with the check of every instruction; its program, from rank 0 alone."""
    mesh = Mesh(plan.mesh, dtype=torch.float64)
    program = lowered_by_first_rank(mesh, lambda: program_of(plan, "gradients", passes=True))
    settings = StepSettings(plan.model, BATCH, POSITIONS)
    execute = Executor(mesh, program, settings, proved=program)
    execute(initial(plan.model, program, mesh.rank), StepInputs(DRAW))
    watch = execute.watch
    assert watch is not None
    sent = sum((elements for _, elements, _ in execute.sent), Fraction(0))
    text = b"" if mesh.rank else msgspec.json.encode(program)
    return text, Watched(watch.peak, sent, watch.instructions)


def module(plan: Plan) -> dict[str, Any]:
    """What rank 0 gathers of a module in a loop of a user's own."""
    mesh = Mesh(plan.mesh, dtype=torch.float64)
    model = PartitionedModel(plan, mesh)
    for name, value in drawn_parameters(plan.model).items():
        load_parameter(model, name, value)
    tokens, targets = map(torch.from_numpy, drawn_batch(plan.model, BATCH, POSITIONS))
    loss = model.loss(tokens, targets)
    loss.backward()  # type: ignore[no-untyped-call]
    names = plan.model.parameter_shapes
    return {
        "loss": loss.item(),
        "logits": full_logits(model, tokens),
        "parameters": {name: full_parameter(model, name) for name in names},
        "gradients": {name: full_gradient(model, name) for name in names},
        "held": [name for name, _ in model.named_parameters()],
    }


def trained(folder: Path, plan: Plan, steps: int) -> Any:
    """Train a plan, with a checkpoint of the last step; the exit code."""
    file = folder / "plan.json"
    if dist.get_rank() == 0:
        save_plan(plan, file)
    dist.barrier()
    changes: dict[str, Any] = {"plan": str(file), "steps": steps}
    return training_cases.train(folder / "trained", checkpoint=str(folder / "saved"), **changes)


def runs(folder: Path, watched: Plan, held: Plan, trained: Plan) -> Answers:
    """Training of one plan, and the same from its first checkpoint on; a step, and a module."""
    file, saved = folder / "plan.json", folder / "saved"
    if dist.get_rank() == 0:
        save_plan(trained, file)
    dist.barrier()
    common: dict[str, Any] = {"plan": str(file), "steps": 3}
    answer = training_cases.train(
        folder / "trained", checkpoint=str(saved), checkpoint_every=2, conform=True, **common
    )
    if dist.get_rank() == 0:
        training_cases.keep(saved, folder / "half", 2)
    dist.barrier()
    resumed = training_cases.train(
        folder / "resumed", checkpoint=str(folder / "half"), resume=True, **common
    )
    return Answers(*watched_step(watched), answer, resumed, module(held))
