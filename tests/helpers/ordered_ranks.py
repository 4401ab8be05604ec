"""What the ranks of the tests of NCCL's rules do, in one world."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec
import torch
import torch.distributed as dist
import training_cases
from distributed_steps import run_ahead
from nccl_rules import restart

from primepar.distributed import Executor, Mesh
from primepar.distributed.runtime import executor
from primepar.errors import ProgramError
from primepar.partition import parse_sequence
from primepar.plan import Plan, save_plan
from primepar.schedule import Program


def outcomes(texts: list[bytes], checked: bool = False) -> list[str]:
    """Run programs one after another: "" or the error of each. Unless `checked`, any may hang."""
    if not checked:
        patch.object(executor, "check_order").start()
        patch.object(executor, "in_one_queue", lambda program: program).start()
    mesh = Mesh(parse_sequence(f"M{dist.get_world_size()}"), dtype=torch.float64)
    if mesh.is_ordered:
        run_ahead()
    return [_outcome(mesh, msgspec.json.decode(text, type=Program)) for text in texts]


def _outcome(mesh: Mesh, program: Program) -> str:
    try:
        execute = Executor(mesh, program)
        execute({name: torch.ones(2, dtype=torch.float64) for name in execute.initial})
    except (RuntimeError, ProgramError) as error:
        return str(error)
    finally:
        if mesh.is_ordered:
            restart()
    return ""


def trained(folder: Path, plans: dict[str, Plan]) -> dict[str, Any]:
    """Train each plan for 3 steps, every instruction compared; the last again from the second."""
    run_ahead()
    answers: dict[str, Any] = {}
    for name, plan in plans.items():
        file, saved, half = (folder / f"{name}-{part}" for part in ("plan.json", "saved", "half"))
        if dist.get_rank() == 0:
            save_plan(plan, file)
        dist.barrier()
        common: dict[str, Any] = {"plan": str(file), "steps": 3}
        answers[name] = training_cases.train(
            folder / name, checkpoint=str(saved), checkpoint_every=2, conform=True, **common
        )
    if dist.get_rank() == 0:
        training_cases.keep(saved, half, 2)
    dist.barrier()
    answers["resumed"] = training_cases.train(
        folder / "resumed", checkpoint=str(half), resume=True, **common
    )
    return answers
