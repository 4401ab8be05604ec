"""The Triton kernel of Stream-K: interpreted on the CPU where Triton is installed, or on CUDA."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from random import Random

import pytest
import torch
from command import run

from primepar.distributed.kernels import stream_k
from primepar.errors import KernelError, ShapeError
from primepar.partition.stream_k import StreamK
from primepar.partition.work_ranges import VARIANTS

ROOT = Path(__file__).resolve().parents[2]
FITTING = "stream-k:M=40,K=50,N=64,tile_m=16,tile_n=16,tile_k=16"
needs_triton = pytest.mark.skipif(
    find_spec("triton") is None, reason="needs Triton, which is not pinned: pip install triton"
)


def generated(count: int, tile: int, most: int) -> list[StreamK]:
    """Sizes that the tiles do not divide, and every variant in turn."""
    random, longest = Random(count), 6 * tile
    return [
        StreamK(
            workers=random.randint(1, most),
            M=random.randint(tile, longest), N=random.randint(tile, 2 * longest),
            K=random.randint(tile, longest), tile_m=tile, tile_n=tile, tile_k=tile,
            variant=VARIANTS[number % len(VARIANTS)],
        )
        for number in range(count)
    ]  # fmt: skip


@needs_triton
def test_interpreted_kernel_is_exact() -> None:
    methods = generated(24, 16, 9)
    assert [m.text for m in methods if not stream_k.check_kernel(m, m.text).equal] == []
    assert sum(method.facts()["partial tiles"] != "0" for method in methods) > 8


@needs_triton
@pytest.mark.parametrize("capability", [80, 90])
def test_the_kernel_compiles_for_cuda_without_a_device(capability: int) -> None:
    """In a process of its own, as the interpreter is chosen when the kernel is imported."""
    script = ROOT / "tests" / "helpers" / "compile_stream_k.py"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TRITON_INTERPRET": "0"}
    done = subprocess.run([sys.executable, script, str(capability)], env=environment,
                          capture_output=True, text=True)  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "float16 float32 bfloat16\n"), done.stderr


@needs_triton
def test_the_command_checks_the_kernel() -> None:
    done = run("check", FITTING, "--triton")
    assert done.code == 0
    assert done.out.endswith(" by its Triton kernel, interpreted on the CPU\n  O    equal\n")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_compiled_kernel_is_exact() -> None:
    workers = torch.cuda.get_device_properties(0).multi_processor_count
    for method in [*generated(40, 32, workers), *generated(20, 64, 4 * workers)]:
        assert stream_k.check_kernel(method, method.text).equal, method.text


def test_the_kernel_follows_the_parts_of_the_program() -> None:
    method = StreamK(workers=5, M=3, N=4, K=2, tile_m=1, tile_n=1, tile_k=1)
    parts, first = stream_k.table(method)
    rows = [
        (worker, row) for worker in range(5) for row in parts[first[worker] : first[worker + 1]]
    ]
    assert [(worker, *row.tolist()) for worker, row in rows] == [
        (worker, part.tile, part.start, part.stop, part.owner == worker, len(part.senders))
        for worker, parts_of_worker in enumerate(method.split.parts)
        for part in parts_of_worker
    ]


def test_without_triton_it_ends_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_k, "find_spec", lambda name: None)
    done = run("check", FITTING, "--triton")
    assert (done.code, done.out, done.err) == (
        2,
        "",
        "primepar: error: expected Triton for its kernel, got none: write pip install triton "
        "(Linux), or use the emulator\n",
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("stream-k",),
            "stream-k: expected tile_m to be a power of 2 of 16 or more for Triton, got 2: "
            "write M=16,tile_m=16",
        ),
        (
            ("stream-k:M=90,N=90,K=90,tile_m=16,tile_n=16,tile_k=48",),
            "stream-k: expected tile_k to be a power of 2 of 16 or more for Triton, got 48: "
            "write tile_k=32",
        ),
        (
            ("stream-k:N=2000000",),
            "stream-k: expected N below 1048576, so that sums are exact in float32, got 2000000: "
            "write a smaller N",
        ),
        (
            ("summa",),
            "--triton: expected stream-k, whose kernel is in Triton, got summa: leave it out",
        ),
        (
            (FITTING, "--side", "2"),
            f"{FITTING}: expected no --side, as a method has its own sizes, got --side 2: "
            "leave it out",
        ),
    ],
)
def test_what_the_kernel_does_not_take_is_refused(arguments: tuple[str, ...], message: str) -> None:
    done = run("check", *arguments, "--triton")
    assert (done.code, done.err) == (2, f"primepar: error: {message}\n")


def test_operands_of_another_size_or_dtype_are_refused() -> None:
    method = StreamK(M=16, N=16, K=16, tile_m=16, tile_n=16, tile_k=16)
    square = torch.zeros(16, 16)
    with pytest.raises(ShapeError) as shape:
        stream_k.stream_k_product(method, square, torch.zeros(16, 8))
    assert str(shape.value) == (
        "expected I and W of (16, 16) and (16, 16), got (16, 16) and (16, 8): give the method "
        "their sizes"
    )
    with pytest.raises(KernelError) as dtype:
        stream_k.stream_k_product(method, square.double(), square.double())
    assert str(dtype.value) == (
        "expected I and W in float16, bfloat16 or float32, got torch.float64 and torch.float64"
    )
