"""Which instructions the backends of torch.distributed have, for which devices and dtypes.

From the table "Backends" of torch's documentation of `torch.distributed`. The dtypes of MPI are
from `ProcessGroupMPI.cpp`, which maps no half precision. A program is compared with the table
before it is compiled, so that all ranks refuse the same instruction and none waits for another.
A backend that is not in the table is not checked. With blocks and sums of two dtypes, so is every
collective: its blocks are one buffer to the backend, and a buffer has one dtype.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from primepar.distributed.runtime.shapes import Shapes
from primepar.errors import MeshError, ProgramError
from primepar.schedule.effects import effects
from primepar.schedule.program import (
    Collective,
    Group,
    Instruction,
    Message,
    Program,
    not_executable,
)

MESSAGES = frozenset(("send", "recv", "isend", "irecv"))
REMEDY = "start torch.distributed with gloo on CPUs, nccl on GPUs"
FLOATS = frozenset((torch.float64, torch.float32, torch.float16, torch.bfloat16))


@dataclass(frozen=True)
class Support:
    """Instructions that a backend lacks on one kind of device, and the dtypes that it sends."""

    lacks: frozenset[str] = frozenset()
    dtypes: frozenset[torch.dtype] = FLOATS


SUPPORT = {
    ("gloo", "cpu"): Support(),
    ("gloo", "cuda"): Support(lacks=MESSAGES | {"barrier"}),
    ("mpi", "cpu"): Support(
        lacks=frozenset(("reduce_scatter",)), dtypes=frozenset((torch.float64, torch.float32))
    ),
    ("nccl", "cuda"): Support(),
}
"""(backend, type of the device) -> what it has; a known backend has no other devices."""


def missing_cuda() -> str:
    """Return why there is no CUDA device, and what to do; empty if there is one."""
    if torch.cuda.is_available():
        return ""
    if torch.version.cuda is None:
        return f"torch {torch.__version__}, which is built without it: install a build with CUDA"
    return "no GPU that torch can use: look at nvidia-smi and CUDA_VISIBLE_DEVICES"


def check_device(backend: str, device: str) -> None:
    """Raise `MeshError` for CUDA that is not there, or from which a known backend does not send."""
    if device == "cuda" and missing_cuda():
        raise MeshError(f"device: expected CUDA, got {missing_cuda()}, or take device='cpu'")
    devices = [kind for name, kind in SUPPORT if name == backend]
    if devices and device not in devices:
        raise MeshError(
            f"device: expected {' or '.join(devices)}, from which {backend} sends, got {device}: "
            f"make the mesh with device={devices[0]!r}, or {REMEDY}"
        )


def check_runs(program: Program) -> None:
    """Raise `ProgramError` for a program that the executor does not run."""
    wrong = not_executable(program)
    if wrong is not None:
        raise ProgramError(
            f"expected a program that the executor runs, got {wrong}: only verify and check know it"
        )


def check_backend(
    program: Program, backend: str, device: str, dtypes: tuple[torch.dtype, torch.dtype]
) -> None:
    """Compare all lists of a program with a backend, for blocks and for sums of these dtypes.

    Raises `ProgramError` for the first instruction that the backend lacks, or whose dtype it does
    not send, and for a collective whose blocks on one rank have two dtypes.
    """
    check_runs(program)
    support = SUPPORT.get((backend, device), Support())
    if not support.lacks and support.dtypes.issuperset(dtypes) and len(set(dtypes)) == 1:
        return
    shapes = Shapes(program)
    for rank, instructions in enumerate(program.programs):
        for place, node in enumerate(instructions):
            for part in filter(_sends, node.body if isinstance(node, Group) else (node,)):
                where, name = f"programs[{rank}][{place}]", _name(part)
                if name in support.lacks:
                    raise ProgramError(
                        f"{where}: expected an instruction that {backend} has on {device}, got "
                        f"{name}: {REMEDY}"
                    )
                used = (*effects(part, rank).reads, *effects(part, rank).writes)
                of_blocks = {block: dtypes[shapes.wide(block)] for block in used}
                for block, dtype in of_blocks.items():
                    _check_dtype(f"{where}: expected", name, block, dtype, of_blocks)
                    if dtype not in support.dtypes:
                        known = " or ".join(sorted(map(_dtype_name, support.dtypes)))
                        raise ProgramError(
                            f"{where}: expected {known}, which {backend} sends, got {name} of "
                            f"{block} in {_dtype_name(dtype)}: take another dtype, or {REMEDY}"
                        )


def _check_dtype(
    expected: str, name: str, block: str, dtype: torch.dtype, of_blocks: dict[str, torch.dtype]
) -> None:
    """Raise `ProgramError` for a block of another dtype than the first one of a call."""
    first = next(iter(of_blocks))
    if dtype != of_blocks[first]:
        raise ProgramError(
            f"{expected} one dtype in a call, got {name} of {first} in "
            f"{_dtype_name(of_blocks[first])} and {block} in {_dtype_name(dtype)}: make a call for "
            "each, or give both tensors the same `wide`"
        )


def _sends(node: Instruction) -> bool:
    """Return whether an instruction goes to the backend; a group of one rank copies."""
    if isinstance(node, Collective):
        return len(node.group) > 1
    return isinstance(node, Message)


def _name(node: Instruction) -> str:
    return str(node.__struct_config__.tag)


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
