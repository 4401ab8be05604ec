"""The product of two matrices by a Stream-K schedule, with the Triton kernel of `stream_k_triton`.

The kernel has no formula of its own: it follows the table of parts of `WorkSplit`, which is what is
emulated and proved. On CPU tensors Triton's interpreter runs it, slowly, one program at a time.
"""

from __future__ import annotations

import os
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from msgspec import Struct

from primepar.errors import KernelError, ShapeError
from primepar.partition.stream_k import StreamK

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
SMALLEST = 16
"""Of a tile; tl.dot takes no smaller one."""
LARGEST = 4
"""Of the integers of `check_kernel`."""
EXACT = 2**24
"""Integers up to here are exact in float32."""
INTERPRETED = "InterpretedFunction"
"""The class of Triton's kernels where TRITON_INTERPRET is set."""


def stream_k_product(method: StreamK, I_MN: torch.Tensor, W_NK: torch.Tensor) -> torch.Tensor:
    """Return `I W`, `[M, K]`, in the dtype of the operands; sums are in float32.

    Raises `ShapeError` if the operands do not have the sizes of the method, and `KernelError` if
    the tiles, the dtype or this machine are not for the kernel.
    """
    expected = [(method.M, method.N), (method.N, method.K)]
    given = [tuple(I_MN.shape), tuple(W_NK.shape)]
    if given != expected:
        raise ShapeError(
            f"expected I and W of {expected[0]} and {expected[1]}, got {given[0]} and {given[1]}: "
            "give the method their sizes"
        )
    if I_MN.dtype not in DTYPES or W_NK.dtype != I_MN.dtype:
        raise KernelError(
            f"expected I and W in float16, bfloat16 or float32, got {I_MN.dtype} and {W_NK.dtype}"
        )
    check_tiles(method)
    kernel = prepare(I_MN.device)
    split, device = method.split, I_MN.device
    parts, first = table(method)
    O_MK = torch.empty(method.M, method.K, dtype=I_MN.dtype, device=device)
    tile = method.tile_m * method.tile_k
    partial = torch.empty(split.workers * tile, dtype=torch.float32, device=device)
    flags = torch.zeros(split.workers, dtype=torch.int32, device=device)
    ticket = torch.zeros(1, dtype=torch.int32, device=device)
    kernel[(split.workers,)](
        I_MN.contiguous(), W_NK.contiguous(), O_MK, partial, flags, ticket,
        parts.to(device), first.to(device), method.M, method.N, method.K, split.workers,
        method.slices["K"], BM=method.tile_m, BN=method.tile_n, BK=method.tile_k,
    )  # fmt: skip
    return O_MK


def check_tiles(method: StreamK) -> None:
    """Raise `KernelError` unless the tiles have sizes that Triton takes."""
    for size in ("tile_m", "tile_n", "tile_k"):
        elements = getattr(method, size)
        if elements < SMALLEST or elements & (elements - 1):
            nearest, dim = max(SMALLEST, 1 << elements.bit_length() - 1), size[-1].upper()
            larger = f"{dim}={nearest}," * (getattr(method, dim) < nearest)
            raise KernelError(
                f"stream-k: expected {size} to be a power of 2 of {SMALLEST} or more for Triton, "
                f"got {elements}: write {larger}{size}={nearest}"
            )


def table(method: StreamK) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the parts of all workers, `[parts, 5]`, and the first row of each worker.

    The senders of a tile follow its owner, so that their number is enough.
    """
    rows: list[tuple[int, ...]] = []
    first = [0]
    for worker, parts in enumerate(method.split.parts):
        for part in parts:
            assert part.senders == tuple(range(worker + 1, worker + 1 + len(part.senders)))
            owns = int(part.owner == worker)
            rows.append((part.tile, part.start, part.stop, owns, len(part.senders)))
        first.append(len(rows))
    return torch.tensor(rows, dtype=torch.int32), torch.tensor(first, dtype=torch.int32)


def prepare(device: torch.device) -> Any:
    """Return the kernel, compiled for CUDA or interpreted. Raises `KernelError` without Triton."""
    if find_spec("triton") is None:
        raise KernelError(
            "expected Triton for its kernel, got none: write pip install triton (Linux), or use "
            "the emulator"
        )
    if device.type != "cuda":
        os.environ.setdefault("TRITON_INTERPRET", "1")
    kernel = import_module("primepar.distributed.kernels.stream_k_triton").stream_k_kernel
    if device.type != "cuda" and type(kernel).__name__ != INTERPRETED:
        raise KernelError(
            "expected CUDA tensors, as Triton compiles its kernels in this process, got CPU "
            "tensors: set TRITON_INTERPRET=1 before Triton is imported"
        )
    return kernel


class KernelReport(Struct, frozen=True):
    """Result of a comparison of the kernel with a dense product: integers, and ==."""

    target: str
    equal: bool
    device: str
    """Where it ran, and whether it was compiled."""

    def __str__(self) -> str:
        verdict = "equal" if self.equal else "differs"
        return f"{self.target} by its Triton kernel, {self.device}\n  O    {verdict}"


def check_kernel(method: StreamK, target: str, seed: int = 0) -> KernelReport:
    """Run the kernel on random integers, on a CUDA device if there is one, and compare it.

    Numbers are so small that no sum is rounded in float32. Raises what `stream_k_product` raises.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if method.N * LARGEST**2 >= EXACT:
        raise KernelError(
            f"stream-k: expected N below {EXACT // LARGEST**2}, so that sums are exact in float32, "
            f"got {method.N}: write a smaller N"
        )
    random = torch.Generator().manual_seed(seed)
    shapes = (method.M, method.N), (method.N, method.K)
    I_MN, W_NK = (
        torch.randint(-LARGEST, LARGEST + 1, shape, generator=random).double() for shape in shapes
    )
    got = stream_k_product(method, I_MN.float().to(device), W_NK.float().to(device))
    where = "compiled for CUDA" if device.type == "cuda" else "interpreted on the CPU"
    return KernelReport(target, torch.equal(got.cpu().double(), I_MN @ W_NK), where)
