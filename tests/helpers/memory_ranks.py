"""What the ranks do in the tests of training in less memory, in one world."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch.distributed as dist
import training_cases
from msgspec.structs import replace

from primepar.plan import Plan, save_plan

STEPS = 3
WAYS: dict[str, dict[str, Any]] = {
    "accumulated": {"accumulate": 4},
    "sharded": {"sharded": True},
    "selective": {"recompute": "selective"},
    "full": {"recompute": "full"},
    "operators": {"conform": True},
    "all": {"accumulate": 4, "sharded": True, "recompute": "full"},
}
"""Name -> settings of a run that differs from a plain one only in them."""
OPERATORS = ("qkv", "attention", "norm2", "act")
"""Operators of a layer that run again under the way of this name, by the plan file."""


def trained(folder: Path, plans: dict[str, tuple[Plan, list[str]]]) -> dict[str, Any]:
    """Train every plan plainly and in some ways; the exit codes, or the errors' texts.

    The last run of a plan writes a checkpoint one step before its end too, from which a plain run
    goes on. With all ways at once every rank is compared with the program.
    """
    answers: dict[str, Any] = {}
    for name, (plan, ways) in plans.items():
        file, chosen = folder / f"{name}.json", folder / f"{name} operators.json"
        if dist.get_rank() == 0:
            save_plan(plan, file)
            save_plan(replace(plan, recompute=OPERATORS), chosen)
        dist.barrier()
        files = {"operators": chosen}
        saved, half, last = folder / f"{name} saved", folder / f"{name} half", ways[-1]
        for way in ("plain", *ways):
            changes: dict[str, Any] = {"conform": way == "all", **WAYS.get(way, {})}
            if way == last:
                changes |= {"checkpoint": str(saved), "checkpoint_every": STEPS - 1}
            answers[f"{name} {way}"] = _run(
                folder / f"{name} {way}", files.get(way, file), STEPS, **changes
            )
        if dist.get_rank() == 0:
            training_cases.keep(saved, half, STEPS - 1)
        dist.barrier()
        answers[f"{name} resumed"] = _run(
            folder / f"{name} resumed", file, STEPS, checkpoint=str(half), resume=True
        )
    return answers


def _run(folder: Path, plan: Path, steps: int, **changes: Any) -> Any:
    return training_cases.train(
        folder, plan=str(plan), steps=steps, clip=0.5, verify=False, **changes
    )
