"""Executes this rank's list of a program: compiled once, run at every step of training."""

from __future__ import annotations

from collections.abc import Callable

import torch

from primepar.distributed.buffers import Shape
from primepar.distributed.compiler import Compiler
from primepar.distributed.frame import Frame
from primepar.distributed.mesh import Mesh, Ranks
from primepar.distributed.recorder import Recorder
from primepar.distributed.storage import Memory
from primepar.errors import ProgramError
from primepar.schedule.operators import Linear, parse_block
from primepar.schedule.program import (
    Collective,
    Group,
    IRecv,
    ISend,
    Program,
    Recv,
    Send,
)


def groups_of(program: Program) -> dict[tuple[str, Ranks], None]:
    """(communicator, ranks) of every process group that any rank's list needs, in one order."""
    needed: dict[tuple[str, Ranks], None] = {}
    everyone = tuple(range(program.ranks))
    for instructions in program.programs:
        for node in instructions:
            if isinstance(node, Collective):
                needed[node.communicator, node.group] = None
            elif isinstance(node, Group):
                needed.update(
                    dict.fromkeys((message.communicator, everyone) for message in node.body)
                )
            elif isinstance(node, Send | Recv | ISend | IRecv):
                needed[node.communicator, everyone] = None
    return needed


def linear_shapes(program: Program) -> Callable[[str], Shape]:
    """Shape of every block of a lowered linear operator. Raises `ProgramError` without a shape."""
    if program.shape is None or not program.grid:
        raise ProgramError("program: expected shape and grid to execute it, got none: lower it "
                           "with an operator")  # fmt: skip
    operator = Linear(**{"M": 1, "N": 1, "K": 1, **{str(k): v for k, v in program.shape.items()}})
    grid = next(iter(program.grid.values()))

    def shape(name: str) -> Shape:
        block = parse_block(name)
        if block is None:
            raise ProgramError(f"program: expected blocks of a linear operator, got {name!r}")
        return operator.block_shape(block.tensor, grid)

    return shape


class Executor:
    """One rank's list of `program`, ready to run on torch blocks.

    Made by all ranks together: process groups are made here. What it sends is counted as `kind`.
    Where the backend batches messages (NCCL), a wait may wait for the messages posted beside its
    own too.
    """

    def __init__(self, mesh: Mesh, program: Program, memory: Memory, kind: str = "linear") -> None:
        mesh.ensure_groups(groups_of(program))
        compiler = Compiler(mesh, program, memory)
        self.mesh, self.kind = mesh, kind
        self._steps = list(compiler.steps())
        self.elements, self.itemsize = compiler.listing.sent, memory.pool.dtype.itemsize
        self.borrowed, self.held = compiler.storage.borrowed, compiler.storage.held

    def __call__(self, blocks: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Run on `blocks` (contiguous, by name), change them in place and return them."""
        frame = Frame(blocks)
        with torch.no_grad():
            if self.mesh.events is None:
                for step in self._steps:
                    step.run(frame)
            else:
                Recorder(self.mesh, self.mesh.events).run(self._steps, frame)
        self.mesh.traffic.add(self.kind, self.elements, self.itemsize)
        return blocks
