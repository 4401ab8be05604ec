"""What the ranks do in the tests of training in less memory, in one world."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch.distributed as dist
import training_cases

from primepar.plan import Plan, save_plan

STEPS = 3
WAYS: dict[str, dict[str, Any]] = {
    "accumulated": {"accumulate": 4},
    "sharded": {"sharded": True},
    "selective": {"recompute": "selective"},
    "full": {"recompute": "full"},
    "all": {"accumulate": 4, "sharded": True, "recompute": "full"},
}
"""Name -> settings of a run that differs from a plain one only in them."""


def trained(folder: Path, plans: dict[str, tuple[Plan, list[str]]]) -> dict[str, Any]:
    """Train every plan plainly and in some ways; the exit codes, or the errors' texts.

    The last run of a plan writes a checkpoint one step before its end, from which a plain run goes
    on. With all ways at once every rank is compared with the program.
    """
    answers: dict[str, Any] = {}
    for name, (plan, ways) in plans.items():
        file = folder / f"{name}.json"
        if dist.get_rank() == 0:
            save_plan(plan, file)
        dist.barrier()
        for way in ("plain", *ways):
            changes = {"conform": way == "all", **WAYS.get(way, {})}
            answers[f"{name} {way}"] = _run(folder / f"{name} {way}", file, STEPS, **changes)
        saved = str(folder / f"{name} saved")
        begun = _run(folder / f"{name} begun", file, STEPS - 1, checkpoint=saved, **WAYS[ways[-1]])
        resumed = _run(folder / f"{name} resumed", file, STEPS, checkpoint=saved, resume=True)
        answers |= {f"{name} begun": begun, f"{name} resumed": resumed}
    return answers


def _run(folder: Path, plan: Path, steps: int, **changes: Any) -> Any:
    return training_cases.train(
        folder, plan=str(plan), steps=steps, clip=0.5, verify=False, **changes
    )
