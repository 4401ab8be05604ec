"""What the ranks do in the tests of training in less memory, in one world."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch.distributed as dist
import training_cases

from primepar.plan import Plan, save_plan

STEPS = 3
RUNS: dict[str, dict[str, Any]] = {
    "plain": {},
    "accumulated": {"accumulate": 4},
    "sharded": {"sharded": True},
    "selective": {"recompute": "selective"},
    "full": {"recompute": "full"},
    "all": {"accumulate": 4, "sharded": True, "recompute": "full", "conform": True},
}
"""Name of a run -> its settings."""


def trained(folder: Path, plans: dict[str, Plan]) -> dict[str, Any]:
    """Train every plan in every way; the exit codes, or the errors' texts."""
    answers: dict[str, Any] = {}
    for name, plan in plans.items():
        file = folder / f"{name}.json"
        if dist.get_rank() == 0:
            save_plan(plan, file)
        dist.barrier()
        for way, changes in RUNS.items():
            run = folder / f"{name} {way}"
            answers[run.name] = training_cases.train(
                run, plan=str(file), steps=STEPS, clip=0.5, checkpoint=str(run / "saved"), **changes
            )
    return answers
