"""A limit of device memory changes no number: states of three times the limit train as without."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from command import run
from distributed_ranks import on_ranks
from limited_training import Ended, pairs
from offload_cases import SMALL as MODEL
from offload_cases import resident
from profiles import long

from primepar.distributed import Mesh
from primepar.distributed.runtime.host_memory import DeviceCount
from primepar.distributed.runtime.step_programs import StepProgram
from primepar.distributed.runtime.training_state import TrainingState
from primepar.distributed.training.log import StepRow, read_log
from primepar.errors import MemoryLimitError
from primepar.operators import StepInputs, StepSettings
from primepar.partition import parse_sequence
from primepar.passes.liveness import peaks
from primepar.plan.presets import uniform_plan

SMALL = [
    "--set", "training.batch=2", "--steps", "4", "--set", "model.layers=1",
    "--set", "model.hidden=16",
    "--set", "model.heads=2", "--set", "model.context=8", "--set", "evaluation.every=2",
]  # fmt: skip

HELPERS = Path(__file__).resolve().parents[1] / "helpers"


def same_within_the_limit(runs: list[Ended]) -> None:
    free, *limited = runs
    assert free.limit is None
    assert len(set(free.numbers)) == len(free.numbers)
    for known in limited:
        assert known.limit is not None
        assert 0 < known.measured <= known.limit < known.states
        assert known.numbers == free.numbers  # bit for bit
        assert known.parameters == free.parameters
    assert limited[-1].limit == free.states // 3


@long  # two ranks do the same, and all_modes_agree trains one under a limit
def test_one_rank_with_a_third_of_its_states_on_the_device() -> None:
    same_within_the_limit(pairs(""))


@pytest.mark.parametrize("sequence", [pytest.param("M2", marks=long), "K2", "1f1b:2x2,megatron"])
def test_two_ranks_with_a_third_of_their_states_on_the_device(sequence: str) -> None:
    for runs in on_ranks(2, pairs, sequence):
        same_within_the_limit(runs)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_with_a_third_of_its_states_on_the_device() -> None:
    """States are in pinned host memory, and copies run on a stream of their own."""
    same_within_the_limit(pairs("", "cuda"))


def test_blocks_are_counted_and_memory_that_is_shared_counts_once() -> None:
    whole = torch.zeros(6)
    count = DeviceCount(10, rank=3)
    count.start({"a": torch.zeros(2)})
    count.made("b", whole[:2])
    count.made("c", whole[2:])
    assert (count.elements, count.peak) == (8, 8)
    count.gone("b", whole[:2])
    assert count.elements == 8
    count.gone("c", whole[2:])
    count.made("c", torch.zeros(1))
    assert (count.elements, count.peak) == (3, 8)
    with pytest.raises(MemoryLimitError) as caught:
        count.made("d", torch.zeros(8))
    assert str(caught.value) == (
        "rank 3: expected at most 10 elements on the device, got 11 with d: "
        "allow more device memory"
    )


def losses(path: Path, *arguments: str) -> list[float]:
    done = run("train", *SMALL, "--set", f"output.log={path}", *arguments)
    assert (done.code, done.err) == (0, "")
    return [row.loss for row in read_log(path) if isinstance(row, StepRow)]


@long
@pytest.mark.parametrize("capability", ["default", "avx2"])
def test_a_limit_and_conformance_change_no_bit_on_other_processors(
    capability: str, tmp_path: Path
) -> None:
    """With kernels of torch for other instructions, which sum in another order."""
    if capability == "avx2" and torch.backends.cpu.get_cpu_capability() not in ("AVX2", "AVX512"):
        pytest.skip("needs a processor with AVX2")
    code = f"import test_limited_training as t; t.all_modes_agree(t.Path({str(tmp_path)!r}))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parent,
        env=os.environ | {"ATEN_CPU_CAPABILITY": capability, "PYTHONPATH": str(HELPERS)},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_the_command_trains_under_a_limit_and_resumes_from_its_checkpoint(tmp_path: Path) -> None:
    all_modes_agree(tmp_path)


def all_modes_agree(folder: Path) -> None:
    """Train plainly, under a limit, and observed under it in two runs: one list of losses."""
    free = losses(folder / "free.jsonl")
    assert len(set(free)) == len(free) == 4
    observed = ["--set", "checks.conform=true"]
    limit, saved = ["--set", "executor.device_memory=72KiB"], ["--checkpoint", str(folder / "less")]
    assert losses(folder / "limited.jsonl", *limit) == free
    assert losses(folder / "first.jsonl", *limit, *observed, *saved, "--steps", "2") == free[:2]
    assert losses(folder / "last.jsonl", *limit, *observed, *saved, "--resume") == free[2:]


def test_a_trace_of_one_process_has_no_communication(tmp_path: Path) -> None:
    done = run("train", *SMALL, "--set", f"output.trace={tmp_path / 'step.svg'}")
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines()[-1] == "traced step: no communication"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["executor.device_memory=1KiB"],
         "executor.device_memory: expected at least 65536 bytes, which one instruction needs "
         "together with what cannot move, got 1KiB: write 65536"),
        (["executor.device_memory=64 kilo"],
         "--set executor.device_memory=64 kilo: expected bytes above 0, as a number or like "
         "512MiB, 64KiB or 2GB, got '64 kilo'"),
        (["executor.device_memory=1MiB", "training.dtype=bfloat16"],
         "executor.device_memory: expected none with training.dtype bfloat16, whose sums have "
         "wider elements, got 1MiB: take float32"),
    ],
)  # fmt: skip
def test_limits_that_are_refused(arguments: list[str], message: str) -> None:
    changes = [word for argument in arguments for word in ("--set", argument)]
    done = run("train", *SMALL, *changes)
    assert (done.code, done.err) == (2, f"primepar: error: {message}\n")


@pytest.mark.parametrize("conform", [False, True])
def test_a_program_that_takes_more_than_the_limit_does_not_run(conform: bool) -> None:
    """A step without transfers, on a mesh whose limit is less than it needs."""
    step = resident("")
    mesh = Mesh(parse_sequence(""), device_memory=4 * (max(peaks(step)) - 1))
    run = StepProgram(step, mesh, StepSettings(MODEL, 2, MODEL.context, 1.0), conform)
    free = TrainingState(uniform_plan(MODEL, parse_sequence("")), Mesh(parse_sequence("")))
    tokens = torch.zeros((2, MODEL.context), dtype=torch.int64)
    with pytest.raises(MemoryLimitError, match=r"^rank 0: expected at most \d+ elements on the "):
        run(free.blocks, tokens, tokens, StepInputs(None, 0.1, 1))
