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


@dataclass(frozen=True)
class BackendRules:
    """What a mesh can send: its backend on its device, with the dtypes of blocks and of sums."""

    backend: str
    device: str
    dtypes: tuple[torch.dtype, torch.dtype]

    def check(self, program: Program) -> None:
        """Compare all lists of a program with the backend.

        Raises `ProgramError` for the first instruction that the backend lacks, or whose dtype it
        does not send, and for a collective whose blocks on one rank have two dtypes.
        """
        check_runs(program)
        support = SUPPORT.get((self.backend, self.device), Support())
        has_all = not support.lacks and support.dtypes.issuperset(self.dtypes)
        if has_all and len(set(self.dtypes)) == 1:
            return
        shapes = Shapes(program)
        for rank, instructions in enumerate(program.programs):
            for place, node in enumerate(instructions):
                for part in node.body if isinstance(node, Group) else (node,):
                    if _sends(part):
                        where = f"programs[{rank}][{place}]"
                        self._check_name(part, where, support)
                        self._check_dtypes(part, rank, where, support, shapes)

    def _check_name(self, node: Instruction, where: str, support: Support) -> None:
        name = _name(node)
        if name in support.lacks:
            raise ProgramError(
                f"{where}: expected an instruction that {self.backend} has on {self.device}, got "
                f"{name}: {REMEDY}"
            )

    def _check_dtypes(
        self, node: Instruction, rank: int, where: str, support: Support, shapes: Shapes
    ) -> None:
        named = (
            (*effects(node, rank).reads, *effects(node, rank).writes)
            if isinstance(node, Collective)
            else ()
        )
        dtypes = {
            block: self.dtypes[shapes.wide(block)]
            for block in named or (getattr(node, "block", ""),)
        }
        first = next(iter(dtypes))
        for block, dtype in dtypes.items():
            if dtype != dtypes[first]:
                raise ProgramError(
                    f"{where}: expected one dtype in a call, got {_name(node)} of {first} in "
                    f"{_dtype_name(dtypes[first])} and {block} in {_dtype_name(dtype)}: make a "
                    "call for each, or give both tensors the same `wide`"
                )
            if dtype not in support.dtypes:
                known = " or ".join(sorted(map(_dtype_name, support.dtypes)))
                raise ProgramError(
                    f"{where}: expected {known}, which {self.backend} sends, got {_name(node)} of "
                    f"{block} in {_dtype_name(dtype)}: take another dtype, or {REMEDY}"
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
