"""Training on CUDA goes as on the CPU, and its checkpoints load there."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from command import run

from primepar.distributed.training.log import StepRow, read_log

SMALL = ["--dtype", "float64", "--layers", "1", "--hidden", "32", "--context", "16", "--batch", "4"]

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def losses(folder: Path, device: str, *arguments: str) -> dict[int, float]:
    """Step -> loss of a run in `folder`."""
    log = folder / f"{device}.jsonl"
    done = run("train", *SMALL, "--device", device, "--log", str(log), *arguments)
    assert (done.code, done.err) == (0, "")
    return {row.step: row.loss for row in read_log(log) if isinstance(row, StepRow)}


def test_losses_on_a_gpu_are_those_on_the_cpu(tmp_path: Path) -> None:
    cpu, gpu = (losses(tmp_path, device, "--steps", "10") for device in ("cpu", "cuda"))
    assert gpu == pytest.approx(cpu, rel=1e-9, abs=0)


def test_a_run_goes_on_from_the_gpu_to_the_cpu(tmp_path: Path) -> None:
    whole = losses(tmp_path, "cuda", "--steps", "10")
    saved = ["--checkpoint", str(tmp_path / "saved")]
    losses(tmp_path, "cuda", "--steps", "5", *saved)
    rest = losses(tmp_path, "cpu", "--steps", "10", "--resume", *saved)
    assert rest == pytest.approx({step: whole[step] for step in range(6, 11)}, rel=1e-9, abs=0)
