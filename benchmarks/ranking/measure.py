"""Times of the steps of many plans: four processes that start once and alternate the plans."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import Struct

from benchmarks.ranking.draw import RANKS
from primepar.distributed.training.ranks import run_ranks
from primepar.files import replace
from primepar.plan import Plan, load_plan, save_plan

if TYPE_CHECKING:
    from primepar.distributed.runtime.mesh import Mesh
    from primepar.distributed.training.launch import World
    from primepar.distributed.training.trainer import Trainer

WARM: Final = 2
"""Steps of each plan before those that count."""


class StepTimes(Struct, frozen=True):
    """Every counted step of a plan: seconds of the slowest rank, CPU seconds of all ranks."""

    wall: list[float]
    cpu: list[float]


def profiled() -> str:
    """Measure this machine now; the text of its cluster file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "here.toml"
        words = ["-m", "primepar", "profile", "-o", str(path), "--device", "cpu"]
        subprocess.run([sys.executable, *words], check=True, stdout=subprocess.DEVNULL)
        return path.read_text(encoding="utf-8")


def measured(models: Sequence[Sequence[Plan]], rounds: int) -> list[list[StepTimes]]:
    """For every model the seconds of `rounds` steps of each of its plans, on the slowest rank."""
    with tempfile.TemporaryDirectory() as folder:
        for number, plans in enumerate(models):
            (Path(folder) / f"{number:02}").mkdir()
            for index, plan in enumerate(plans):
                save_plan(plan, Path(folder) / f"{number:02}" / f"{index:03}.json")
        code = run_ranks(RANKS, [folder, str(rounds)], ("-m", "benchmarks.ranking.rank"))
        assert code == 0, code
        return msgspec.json.decode(
            (Path(folder) / "times").read_bytes(), type=list[list[StepTimes]]
        )


def measure(folder: Path, rounds: int) -> None:
    """Measure the plans of a folder on this rank; rank 0 writes the times."""
    from primepar.distributed.training.launch import joined
    from primepar.distributed.training.launchers import Launch

    with joined(Launch.of(os.environ), "cpu") as world:
        models = sorted(path for path in folder.iterdir() if path.is_dir())
        plans = [[load_plan(path) for path in sorted(model.glob("*.json"))] for model in models]
        times = alternating_steps(world, plans, rounds)
        if world.rank == 0:
            replace(folder / "times", msgspec.json.encode(times))


def alternating_steps(
    world: World, models: Sequence[Sequence[Plan]], rounds: int
) -> list[list[StepTimes]]:
    """Measure plans model by model in an initialised world, on one mesh; a collective call."""
    from primepar.distributed import Mesh

    mesh, times = Mesh(models[0][0].sequence("head"), world.device), []
    for plans in models:
        times.append(_rounds([_trainer(world, mesh, plan) for plan in plans], rounds))
        gc.collect()
    return times


def _rounds(trainers: Sequence[Trainer], rounds: int) -> list[StepTimes]:
    """Every round makes one step of each plan, in an order of its own, the same on all ranks."""
    import torch
    from torch import distributed as dist

    from primepar.distributed.training.stopping import Stopping

    random, shape = Random(0), (len(trainers), WARM + rounds)
    wall, cpu = (torch.zeros(shape, dtype=torch.float64) for _ in range(2))
    with Stopping() as stopping:
        for number in range(WARM + rounds):
            for index in random.sample(range(len(trainers)), len(trainers)):
                dist.barrier()
                start, used = time.perf_counter(), time.process_time()
                if trainers[index].step(stopping):
                    raise SystemExit(1)
                wall[index, number] = time.perf_counter() - start
                cpu[index, number] = time.process_time() - used
    dist.all_reduce(wall, dist.ReduceOp.MAX)
    dist.all_reduce(cpu, dist.ReduceOp.SUM)
    return [StepTimes(*times) for times in
            zip(wall[:, WARM:].tolist(), cpu[:, WARM:].tolist(), strict=True)]  # fmt: skip


def _trainer(world: World, mesh: Mesh, plan: Plan) -> Trainer:
    """The trainer of `primepar train --plan`, without output, on a mesh that all plans share."""
    from primepar.distributed.runtime.training_state import TrainingState
    from primepar.distributed.training.data import load_text
    from primepar.distributed.training.launchers import Launch
    from primepar.distributed.training.log import Log
    from primepar.distributed.training.progress import Reporter
    from primepar.distributed.training.settings import Settings
    from primepar.distributed.training.trainer import Trainer

    assert plan.batch is not None, "a drawn plan has a batch"
    settings = Settings(plan="drawn")
    text = load_text(None, plan.batch, plan.model.context)
    state = TrainingState(plan, mesh, settings.seed)
    silent = Reporter(Launch("mpirun", rank=1, size=world.size), 0, settings.steps)
    return Trainer(settings, world, state, text, Log(None), silent)
