"""The table of what backends have: the program is refused before it is compiled, on every rank."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from distributed_program import every_instruction
from distributed_ranks import on_ranks

from primepar.distributed import Mesh
from primepar.distributed.runtime.backend_support import (
    FLOATS,
    SUPPORT,
    check_backend,
    check_device,
)
from primepar.distributed.runtime.collectives import OPERATIONS
from primepar.errors import MeshError, ProgramError
from primepar.partition import parse_sequence
from primepar.schedule import Program
from primepar.schedule.program import AllReduce, Barrier, Instruction, ReduceScatter
from primepar.schedule.signature import Tensor

GATHER = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
SCATTER = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)
"""The new names where torch has them: there the older ones are deprecated."""
WIDE = torch.float32, torch.float32
HALF = torch.bfloat16, torch.float32


def refusal(backend: str, device: str, dtypes: tuple[torch.dtype, torch.dtype]) -> str:
    with pytest.raises(ProgramError) as caught:
        check_backend(every_instruction(), backend, device, dtypes)
    return str(caught.value)


def test_an_instruction_that_the_backend_lacks_is_named() -> None:
    assert refusal("mpi", "cpu", WIDE) == (
        "programs[0][1]: expected an instruction that mpi has on cpu, got reduce_scatter: start "
        "torch.distributed with gloo on CPUs, nccl on GPUs"
    )
    assert refusal("gloo", "cuda", WIDE) == (
        "programs[0][8]: expected an instruction that gloo has on cuda, got send: start "
        "torch.distributed with gloo on CPUs, nccl on GPUs"
    )


def test_a_dtype_that_the_backend_does_not_send_is_named() -> None:
    assert refusal("mpi", "cpu", HALF) == (
        "programs[0][0]: expected float32 or float64, which mpi sends, got all_gather of a[0] in "
        "bfloat16: take another dtype, or start torch.distributed with gloo on CPUs, nccl on GPUs"
    )


def mixed(*nodes: Instruction, ranks: int = 2) -> Program:
    """The same calls on all ranks; `s` is of a tensor of sums, `a` and `b` are not."""
    tensors = {name: Tensor(((0, 2, 4),), wide=name == "s") for name in "abs"}
    return Program("primepar-program", 1, ranks, (nodes,) * ranks, tensors=tensors)


SUMS = AllReduce((0, 1), block="a[0]", also=("b[0]", "s[0]"))
SCATTERED = ReduceScatter((0, 1), blocks=("s[0]", "s[1]"), block="b[1]")


@pytest.mark.parametrize(
    ("nodes", "what"),
    [
        ((SUMS,), "programs[0][0]: expected one dtype in a call, got all_reduce of a[0] in "
                  "bfloat16 and s[0] in float32"),
        ((Barrier((0, 1)), SCATTERED), "programs[0][1]: expected one dtype in a call, got "
                  "reduce_scatter of s[0] in float32 and b[1] in bfloat16"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("backend", [("gloo", "cpu"), ("nccl", "cuda"), ("ours", "cpu")])
def test_blocks_of_two_dtypes_in_one_call_are_refused(
    backend: tuple[str, str], nodes: tuple[Instruction, ...], what: str
) -> None:
    with pytest.raises(ProgramError) as caught:
        check_backend(mixed(*nodes), *backend, HALF)
    assert str(caught.value) == (
        f"{what}: make a call for each, or give both tensors the same `wide`"
    )
    check_backend(mixed(*nodes), *backend, WIDE)
    check_backend(mixed(SUMS), "mpi", "cpu", WIDE)


def test_calls_of_one_dtype_and_copies_are_taken() -> None:
    sums = AllReduce((0, 1), block="s[0]", also=("s[1]",))
    rows = AllReduce((0, 1), block="a[0]", also=("b[0]",))
    check_backend(mixed(sums, rows), "gloo", "cpu", HALF)
    alone = AllReduce((0,), block="a[0]", also=("s[0]",))
    check_backend(mixed(alone, ranks=1), "gloo", "cpu", HALF)


@pytest.mark.parametrize("backend", [("gloo", "cpu"), ("nccl", "cuda"), ("ours", "cpu"), ("", "")])
def test_a_backend_that_has_all_or_is_not_known_takes_every_program(
    backend: tuple[str, str],
) -> None:
    check_backend(every_instruction(), *backend, HALF)


def test_a_device_that_the_backend_does_not_send_from_is_refused() -> None:
    with pytest.raises(MeshError) as caught:
        check_device("nccl", "cpu")
    assert str(caught.value) == (
        "device: expected cuda, from which nccl sends, got cpu: make the mesh with device='cuda', "
        "or start torch.distributed with gloo on CPUs, nccl on GPUs"
    )
    with patch("torch.cuda.is_available", return_value=True):
        for backend, device in SUPPORT:
            check_device(backend, device)
        check_device("", "cuda")


def test_a_mesh_on_cuda_that_is_not_there_is_refused() -> None:
    with (
        patch("torch.cuda.is_available", return_value=False),
        patch("torch.version.cuda", "13.0"),
        pytest.raises(MeshError) as caught,
    ):
        Mesh(parse_sequence(""), "cuda")
    assert str(caught.value) == (
        "device: expected CUDA, got no GPU that torch can use: look at nvidia-smi and "
        "CUDA_VISIBLE_DEVICES, or take device='cpu'"
    )


def sums() -> list[Any]:
    """On one of two ranks: what gloo makes of ones and twos, by instruction and dtype."""
    rank, group = dist.get_rank(), dist.group.WORLD
    assert group is not None
    found = []
    for dtype in sorted(FLOATS, key=str):
        pair, four = (torch.full((n,), rank + 1.0, dtype=dtype) for n in (2, 4))
        for operation in OPERATIONS.values():
            whole, half = four.clone(), pair.clone()
            dist.all_reduce(whole, operation, group)
            SCATTER(half, four, operation, group)
            root = four.clone()
            dist.reduce(root, 0, operation, group)
            found.append([whole.tolist(), half.tolist(), root.tolist() if rank == 0 else None])
        everyone, swapped, first = four.clone(), four.clone(), four.clone()
        GATHER(everyone, pair, group)
        dist.all_to_all_single(swapped, four, [2, 2], [2, 2], group)
        dist.broadcast(first, 0, group)
        arrived = torch.empty_like(pair)
        sent = [group.send([pair], 1 - rank, 0), group.recv([arrived], 1 - rank, 0)]
        for work in sent:
            work.wait()
        found.append([block.tolist() for block in (everyone, swapped, first, arrived)])
    return found


def test_gloo_has_every_instruction_in_every_dtype() -> None:
    first, second = on_ranks(2, sums)
    by_operation = [[[n] * 4, [n] * 2, [n] * 4] for n in (3.0, 2.0, 1.0)]
    both = [1.0, 1.0, 2.0, 2.0]
    assert first == [*by_operation, [both, both, [1.0] * 4, [2.0] * 2]] * len(FLOATS)
    assert second == [
        *([[whole, half, None] for whole, half, _ in by_operation]),
        [both, both, [1.0] * 4, [1.0] * 2],
    ] * len(FLOATS)
