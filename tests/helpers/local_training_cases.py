"""What the ranks of the tests of local SGD do: each function runs on every rank of one world."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import training_cases as cases
from local_sgd_cases import SETTINGS, drawn
from numpy.typing import NDArray

from primepar.distributed import Executor, Mesh
from primepar.operators import StepInputs
from primepar.partition import parse_sequence
from primepar.partition.local_sgd import LocalSGD
from primepar.reference.emulator.tensors import spread_tensors
from primepar.schedule.meaning import Meaning

PLAN = "M2,K2"
RATE, STEPS = 0.05, 4
SGD: dict[str, Any] = {
    "plan": PLAN,
    "optimizer": "sgd",
    "lr": RATE,
    "warmup": 0,
    "steps": STEPS,
    "layers": 1,
}
PERIOD: dict[str, Any] = {
    "plan": PLAN,
    "steps": 8,
    "layers": 1,
    "average_every": 3,
    "average_after": 2,
}
"""AdamW: steps 1 and 2 together, then averages after steps 5 and 8."""
MIDDLE = 4
"""A step between two averages."""
METHOD = LocalSGD(workers=4, period=2, steps=5, warm_up=1)


def run_method() -> NDArray[Any]:
    """The last model of the method's own program, on this rank."""
    program, rank = METHOD.program(), dist.get_rank()
    memory = spread_tensors(Meaning(program), drawn(METHOD, 0))[rank]
    blocks = {name: torch.from_numpy(block) for name, block in memory.items()}
    mesh = Mesh(parse_sequence("M4"), dtype=torch.float64)
    executor = Executor(mesh, program, SETTINGS, proved=program)
    return executor(blocks, StepInputs(rate=4.0))["model.5[0,0]"].numpy().copy()


def four_ranks(folder: Path) -> dict[str, Any]:
    """Every run that the tests ask of four processes, one after another."""
    weights = {name: str(folder / f"{name}.safetensors") for name in ("together", "one", "once")}
    answers: dict[str, Any] = {
        "method": run_method(),
        "together": cases.train(
            folder / "together", save_weights=weights["together"],
            checkpoint=str(folder / "no-replicas"), **SGD,
        ),
        "one": cases.train(
            folder / "one", save_weights=weights["one"], average_every=1, conform=True, **SGD
        ),
        "once": cases.train(
            folder / "once", save_weights=weights["once"], average_every=9, **SGD
        ),
        "straight": cases.train(
            folder / "straight", checkpoint=str(folder / "whole"), checkpoint_every=MIDDLE,
            trace=str(folder / "trace.json"), evaluate_every=MIDDLE, **PERIOD,
        ),
    }  # fmt: skip
    if dist.get_rank() == 0:
        for name in ("half", "other"):
            cases.keep(folder / "whole", folder / name, MIDDLE)
    dist.barrier()
    half, other = str(folder / "half"), str(folder / "other")
    answers["resumed"] = cases.train(folder / "resumed", checkpoint=half, resume=True, **PERIOD)
    asked = {"checkpoint": other, "resume": True, "plan": PLAN, "layers": 1}
    answers["refused"] = cases.train(folder / "refused", **asked)
    answers["later"] = cases.train(
        folder / "later", **{**SGD, "checkpoint": str(folder / "no-replicas"), "resume": True,
                             "steps": 6, "average_every": 2, "override": True},
    )  # fmt: skip
    if dist.get_rank() == 0:
        shutil.rmtree(folder / "other")
    return answers
