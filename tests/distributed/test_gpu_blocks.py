"""The products of a 4 x 4 mesh, all on one device, against one dense product."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache

import pytest
import torch
from backends import DEVICES, gpu

from primepar.partition import parse_sequence
from primepar.schedule import Linear, lower
from primepar.schedule.program import Compute

SIDE = 4
EXACT, TIMED = 256, 8192
"""Rows and columns of all matrices: where sums of integers are compared, and where time is."""
ROUNDS, REPEATS = 7, 10
Blocks = dict[str, torch.Tensor]


@cache
def products(phase: str) -> tuple[Compute, ...]:
    """The sub-operators of all devices under P4x4, step by step as each device has them."""
    program = lower(parse_sequence(f"P{SIDE}x{SIDE}"), Linear(SIDE, SIDE, SIDE))
    return tuple(
        node
        for instructions in program.programs
        for node in instructions
        if isinstance(node, Compute) and node.phase == phase
    )


def blocks_of(name: str, whole: torch.Tensor) -> Blocks:
    """The blocks of a matrix, each contiguous in memory as its device has it."""
    return {
        f"{name}[{r},{c}]": block.contiguous()
        for r, line in enumerate(whole.chunk(SIDE))
        for c, block in enumerate(line.chunk(SIDE, 1))
    }


def joined(name: str, blocks: Blocks) -> torch.Tensor:
    """The matrix of some blocks."""
    rows = [[blocks[f"{name}[{r},{c}]"] for c in range(SIDE)] for r in range(SIDE)]
    return torch.cat([torch.cat(row, 1) for row in rows])


def multiply(blocks: Blocks) -> None:
    """Forward in blocks: the first product into an output writes it, the others add to it."""
    begun = set[str]()
    for node in products("forward"):
        left, right = (blocks[name] for name in node.reads)
        if node.accumulates in begun:
            blocks[node.accumulates].addmm_(left, right)
        else:
            torch.mm(left, right, out=blocks[node.accumulates])
            begun.add(node.accumulates)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("device", DEVICES)
def test_blocks_give_the_dense_product(device: str, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    left, right = (
        torch.randint(-3, 4, (EXACT, EXACT), generator=generator).to(device, dtype)
        for _ in range(2)
    )
    outputs = blocks_of("O", torch.full_like(left, torch.nan))
    blocks = blocks_of("I", left) | blocks_of("W", right) | outputs
    multiply(blocks)
    assert torch.equal(joined("O", blocks), left @ right)


@gpu
def test_how_long_blocks_take_next_to_the_dense_product(
    record_property: Callable[[str, object], None],
) -> None:
    """On a GPU in bfloat16; no bound is set, the ratios are printed with the results."""
    left, right, into = (
        torch.randn(TIMED, TIMED, device="cuda", dtype=torch.bfloat16) for _ in range(3)
    )
    blocks = blocks_of("I", left) | blocks_of("W", right) | blocks_of("O", into)
    in_graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(in_graph):
        multiply(blocks)
    works = {"launched one by one": lambda: multiply(blocks), "as a CUDA graph": in_graph.replay}
    for how, work in works.items():
        ratios = [
            seconds(work) / seconds(lambda: torch.mm(left, right, out=into)) for _ in range(ROUNDS)
        ]
        record_property(
            f"{SIDE**3} block products over one of {TIMED}^3 in bfloat16, {how}, seconds, median",
            f"{sorted(ratios)[ROUNDS // 2]:.3f}",
        )
    # Four roundings of partial sums below 512, each by half of a distance of 2.
    assert torch.allclose(joined("O", blocks).float(), into.float(), rtol=2.0**-6, atol=4.0)


def seconds(work: Callable[[], object], repeats: int = REPEATS) -> float:
    """Seconds of some repeats on the GPU, after one that is not counted."""
    work()
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(repeats):
        work()
    torch.cuda.synchronize()
    return time.perf_counter() - begin
