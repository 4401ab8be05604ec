"""Speed, memory and MFU of a step, the log's curves, and the line that rank 0 prints."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import numpy as np
import pytest
import torch
import training_cases as cases
from command import run

from primepar.distributed.training.log import EvaluateRow, StartRow, StepRow, read_log
from primepar.distributed.training.progress import _used
from primepar.distributed.training.speed import (
    memory_of,
    peak_memory,
    peak_of,
)
from primepar.distributed.training.trainer import Trainer
from primepar.models import GPTConfig, ModelConfig
from primepar.models.config import flops_per_token

CPU = torch.device("cpu")


class Writer:
    """Takes the place of the class of the package tensorboard, which is not installed here."""

    made: list[Writer] = []

    def __init__(self, folder: str, purge_step: int) -> None:
        self.opened, self.scalars, self.closed = (folder, purge_step), list[Any](), False
        self.made.append(self)

    def add_scalar(self, name: str, value: float, step: int) -> None:
        self.scalars.append((name, value, step))

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def _other_writer(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("torch.utils.tensorboard")
    module.SummaryWriter = Writer  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    monkeypatch.setattr(Writer, "made", [])


def test_operations_of_a_token_are_those_of_every_product() -> None:
    """By hand: the shapes of the products of a layer and of the head, for one sequence."""
    model = GPTConfig(layers=2, hidden=8, heads=2, context=5, vocabulary=256)
    products = [
        *[(5, 8, 24), (5, 8, 8), (5, 8, 32), (5, 32, 8)] * 2,
        *[(5, 4, 5), (5, 5, 4)] * 2 * 2,  # scores, weighted sums: heads x layers
        (5, 8, 256),
    ]
    forward = sum(2 * M * N * K for M, N, K in products)
    assert flops_per_token(model) * 5 == 3 * forward


def test_a_gated_model_with_fewer_heads_of_keys() -> None:
    model = ModelConfig.of(
        "llama", layers=1, hidden=8, heads=4, kv_heads=2, ffn=16, context=3, vocabulary=32
    )
    products = [(3, 8, 16), (3, 8, 8), (3, 8, 32), (3, 16, 8), (3, 8, 32),
                *[(3, 2, 3), (3, 3, 2)] * 4]  # fmt: skip
    assert flops_per_token(model) * 3 == 3 * sum(2 * M * N * K for M, N, K in products)


def test_mfu_is_the_share_of_all_devices() -> None:
    trainer = SimpleNamespace(flops_per_token=1000, peak_tflops=0.25, world=SimpleNamespace(size=4))
    assert Trainer.mfu(cast(Trainer, trainer), 5e8) == pytest.approx(0.5)
    trainer.peak_tflops = None
    assert Trainer.mfu(cast(Trainer, trainer), 5e8) is None


@pytest.mark.parametrize(
    ("name", "dtype", "peak"),
    [
        ("NVIDIA H200", "bfloat16", 989),
        ("NVIDIA H100 PCIe", "float32", 51),
        ("NVIDIA A100-SXM4-80GB", "float16", 312),
        ("Tesla V100-SXM2-16GB", "bfloat16", None),
        ("NVIDIA H200", "float64", None),
        ("NVIDIA GeForce RTX 3090", "bfloat16", None),
    ],
)
def test_the_peak_of_a_gpu_is_known_by_its_name(name: str, dtype: str, peak: float | None) -> None:
    with patch.object(torch.cuda, "get_device_name", lambda device: name):
        assert peak_of(torch.device("cuda", 0), dtype) == peak
        assert peak_of(CPU, dtype) is None


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="Linux shows the peak there")
def test_memory_of_a_process_is_the_peak_that_the_kernel_has() -> None:
    assert memory_of(CPU) == "process"
    status = Path("/proc/self/status").read_text()
    (kernel,) = [line for line in status.splitlines() if line.startswith("VmHWM")]
    # The kernel adds up pages of threads now and then, so that two readings may differ a little.
    assert peak_memory(CPU) == pytest.approx(1024 * int(kernel.split()[1]), rel=0.02)


def test_memory_on_a_gpu_is_torch_s_peak() -> None:
    device = torch.device("cuda", 0)
    assert memory_of(device) == "device"
    with patch.object(torch.cuda, "max_memory_allocated", lambda asked: 77 * (asked == device)):
        assert peak_memory(device) == 77


def test_the_line_of_a_step_has_memory_and_where_it_is_known_mfu() -> None:
    row = StepRow(1, 2.0, 1.0, 0.1, 100.0, (0.0,), (0.0,), memory_bytes=300 * 2**20)
    assert _used(row) == "300 MiB"
    known = StepRow(1, 2.0, 1.0, 0.1, 100.0, (0.0,), (0.0,), memory_bytes=2**20, mfu=0.4321)
    assert _used(known) == "1 MiB, 43.2% MFU"


@pytest.mark.usefixtures("_other_writer")
def test_rows_of_a_run_have_them_and_curves_are_written(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    assert cases.train(folder, steps=17, peak_tflops=0.5, tensorboard="curves") == 0
    start, *rows, evaluated, _ = read_log(folder / "log.jsonl")
    steps = [row for row in rows if isinstance(row, StepRow)]
    assert isinstance(start, StartRow)
    assert isinstance(evaluated, EvaluateRow)
    assert start.flops_per_token == flops_per_token(cases.SMALL.model)
    assert (start.peak_tflops, start.memory_of) == (0.5, "process")
    for row in steps:
        assert row.mfu == pytest.approx(row.tokens_per_second * start.flops_per_token / 0.5e12)
    assert [row.samples for row in steps] == list(range(4, 69, 4))
    assert [row.epoch for row in steps] == [0] * 15 + [1] * 2
    assert steps[0].memory_bytes <= steps[-1].memory_bytes <= peak_memory(CPU)
    assert evaluated.bits_per_byte == pytest.approx(evaluated.loss / np.log(2))
    (writer,) = Writer.made
    assert (writer.opened, writer.closed) == (("curves", 1), True)
    assert [value for name, value, _ in writer.scalars if name == "train/loss"] == [
        row.loss for row in steps
    ]
    assert {name for name, _, step in writer.scalars if step == 17} == {
        "train/loss", "train/gradient_norm", "train/lr", "speed/tokens_per_second", "speed/mfu",
        "memory/bytes", "held_out/loss", "held_out/bits_per_byte",
    }  # fmt: skip


def test_without_the_package_the_setting_is_refused() -> None:
    done = run("train", "--set", "output.tensorboard=curves")
    assert done == (
        2,
        "",
        "primepar: error: output.tensorboard: expected the package tensorboard, found none: run "
        "pip install tensorboard, or leave the setting out\n",
    )
