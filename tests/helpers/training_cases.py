"""What the ranks of the training tests do: each function runs on every rank of one world."""

from __future__ import annotations

import errno
import os
import shutil
import signal
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch.distributed as dist
from torch import device
from torch.distributed import FileStore  # type: ignore[attr-defined]

from primepar.distributed.training.data import Text
from primepar.distributed.training.launch import World
from primepar.distributed.training.launchers import Launch
from primepar.distributed.training.log import StepRow, read_log
from primepar.distributed.training.run import train_here
from primepar.distributed.training.run_programs import Prove
from primepar.distributed.training.settings import Settings
from primepar.distributed.training.settings_plan import plan_of
from primepar.distributed.training.stopping import Stopping
from primepar.errors import PrimeParError

BATCH = 4
SMALL = Settings(
    dtype="float64", batch=BATCH, layers=1, hidden=32, heads=4, context=16, steps=20, warmup=5,
    evaluate_batches=2,
)  # fmt: skip
COUNTING = b" ".join(b"%d" % n for n in range(300))
"""An epoch has 61 samples: with batches of 4, step 16 begins another one."""
OWN = """from primepar.partition import PrimePar


class Mine(PrimePar):
    label = ""
"""
TEXT = Text.of("counting", COUNTING, BATCH, SMALL.model.context)


def train(folder: Path, **changes: Any) -> Any:
    """Train on this rank: the exit code, or the error's text where there is one.

    `prove` among the changes is what proves the programs.
    """
    prove: Prove | None = changes.pop("prove", None)
    in_file = str(changes.get("plan", "")).endswith(".json")
    sizes = ("batch", "layers", "hidden", "heads", "context") if in_file else ()
    given = {name: getattr(SMALL, name) for name in SMALL.__struct_fields__ if name not in sizes}
    settings = Settings(**{**given, "log": str(folder / "log.jsonl"), **changes})
    rank, size = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    folder.mkdir(exist_ok=True)
    world = World(rank, size, device("cpu"), FileStore(str(folder / "store"), size))
    launch = Launch("torchrun", rank, size)
    with Stopping() as stopping:
        if "asked" in folder.name and rank == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        try:
            plan = plan_of(settings, size)
            return train_here(settings, launch, world, plan, TEXT, stopping, prove)
        except (PrimeParError, SystemExit) as error:
            return f"{type(error).__name__}: {error}"


def train_plan(folder: Path, file: Path, changes: dict[str, Any]) -> Any:
    """Train under a plan file on this rank."""
    return train(folder, plan=str(file), **changes)


def four_ranks(folder: Path) -> dict[str, Any]:
    """Every run that the tests ask of four processes, one after another."""
    whole, half = str(folder / "whole"), str(folder / "half")
    trace = str(folder / "trace.json")
    answers = {
        "straight": train(folder / "straight", checkpoint=whole, checkpoint_every=10, trace=trace),
    }
    if dist.get_rank() == 0:
        keep(Path(whole), Path(half), 10)
        (folder / "mine.py").write_text(OWN)
        for name in ("torn", "own"):
            shutil.copytree(half, folder / f"half-{name}")
        torn = folder / "half-torn" / "step-00000010" / "rank-00002.safetensors"
        torn.write_bytes(torn.read_bytes()[:-1000])
    dist.barrier()
    torn_folder = str(folder / "half-torn")
    answers["resumed"] = train(folder / "resumed", checkpoint=half, resume=True)
    own = {"checkpoint": str(folder / "half-own"), "plan": f"{folder}/mine.py:Mine2x2"}
    answers["own"] = train(folder / "own", **own, resume=True)
    answers["torn"] = train(folder / "torn", checkpoint=torn_folder, resume=True)
    with patch.object(os, "posix_fallocate", full if dist.get_rank() == 2 else os.posix_fallocate):
        answers["full"] = train(folder / "full", steps=1, checkpoint=str(folder / "full-saved"))
    answers["asked"] = train(folder / "asked", checkpoint=str(folder / "stopped"))
    return answers


def full(*_: int) -> None:
    """A disk without room."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def keep(source: Path, target: Path, step: int) -> None:
    """Copy one checkpoint into a folder of its own."""
    name = f"step-{step:08d}"
    shutil.copytree(source / name, target / name)


def losses(folder: Path) -> dict[int, float]:
    """Step -> loss, from the log of a run."""
    rows = read_log(folder / "log.jsonl")
    return {row.step: row.loss for row in rows if isinstance(row, StepRow)}
