"""The linear operator on a mesh, as an autograd function and as a module.

Nothing is replicated to make it simpler: in training the weight itself travels. After forward its
parameter holds the block that rests there; at the end of backward the home block is back, and the
gradient beside it. Legend: M rows of this call (batch x context), N input and K output hidden.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import NDArray
from torch import nn
from torch.autograd.function import once_differentiable

from primepar.distributed.compiler import Memory
from primepar.distributed.executor import Executor, linear_shapes
from primepar.distributed.mesh import Mesh
from primepar.distributed.redistribute import (
    Redistribution,
    divided,
    resting,
    scatter_tensor,
)
from primepar.errors import ConfigError, SequenceError, ShapeError, TrainingOrderError
from primepar.schedule import Layout, Linear, lower
from primepar.schedule.lowering import layout
from primepar.schedule.operators import Phase, block_name

Blocks = dict[str, torch.Tensor]


def rest(mesh: Mesh, phase: Phase, tensor: str, *, last: bool = False) -> Layout:
    """Layout of a tensor before `phase`, or after its last step. Raises `SequenceError`."""
    if "B" in mesh.sequence.grid:
        raise SequenceError(
            f"sequence {str(mesh.sequence)!r}: expected no split of B, as rows of all sequences "
            "of a batch are one dim here: write M for B"
        )
    return resting(layout(mesh.movement, phase, tensor, last=last), tensor)


class Schedules:
    """The programs of one linear operator, compiled: one for training, one for evaluation."""

    def __init__(self, mesh: Mesh, operator: Linear, source: Layout) -> None:
        self.mesh, self.operator, self.rank = mesh, operator, mesh.rank
        inputs, weight = rest(mesh, "forward", "I"), rest(mesh, "forward", "W")
        output, gone = rest(mesh, "forward", "O", last=True), rest(mesh, "backward", "W")
        back, shape = rest(mesh, "backward", "dI", last=True), (operator.M, operator.N)
        self.arrive = Redistribution(mesh, source, inputs, "I", shape)
        self.leave = Redistribution(mesh, back, source, "dI", shape, outward=True)
        self.I, self.W = self._name("I", inputs), self._name("W", weight)
        self.O, self.W_away = self._name("O", output), self._name("W", gone)
        self.dO, self.dI = self._name("dO", output), self._name("dI", back)
        self.dW = self._name("dW", weight)
        theirs = {self.I} if self.arrive.borrowed else set()
        self.forward = self._compile(("forward",), theirs, {self.O})
        self.evaluation = self._compile(("forward",), {*theirs, self.W}, {self.O})
        self.backward = self._compile(
            ("backward", "gradient"),
            {*self.forward.borrowed, self.dO},
            {self.dW, self.dI} if self.leave.passes else {self.dW},
        )

    def _name(self, tensor: str, held: Layout) -> str:
        return block_name(tensor, held.held[self.rank][0])

    def _compile(
        self, phases: tuple[Phase, ...], borrowed: set[str], leaving: set[str]
    ) -> Executor:
        program = lower(self.mesh.sequence, self.operator, phases)
        memory = Memory(self.mesh.pool, linear_shapes(program), borrowed, leaving)
        return Executor(self.mesh, program, memory)

    def evaluate(self, x_MN: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Forward with a borrowed weight, which stays."""
        blocks = self.evaluation({self.I: self.arrive(x_MN), self.W: weight})
        output = blocks.pop(self.O)
        for name, block in blocks.items():
            if name not in self.evaluation.borrowed:
                self.mesh.pool.release(block)
        return output


@dataclass
class Stash:
    """What rests on this rank between forward and backward, the weight apart."""

    plan: Schedules
    blocks: Blocks

    def release(self) -> None:
        """Give the pool its blocks back."""
        for name, block in self.blocks.items():
            if name not in self.plan.forward.borrowed:
                self.plan.mesh.pool.release(block)


class PartitionedLinear(nn.Module):
    """`O = I W` partitioned by the mesh's sequence.

    `weight_NK` is the whole weight, the same on every rank, of which each keeps its block. Takes
    this rank's block of the input in layout `source` over (M, N), by default that of the output,
    as `[..., N / slices]`, and returns its block of the output, `[..., K / slices]`. Raises
    `SequenceError`, `ShapeError` or `ConfigError` for what does not fit, and `TrainingOrderError`
    for a forward before the backward of the last training forward.
    """

    def __init__(
        self,
        mesh: Mesh,
        weight_NK: torch.Tensor | NDArray[Any],
        source: Layout | None = None,
        name: str = "linear",
    ) -> None:
        super().__init__()
        whole = torch.as_tensor(weight_NK)
        self.mesh, self.name, self.shape = mesh, name, tuple(whole.shape)
        self.home, self.output = rest(mesh, "forward", "W"), rest(mesh, "forward", "O", last=True)
        self.source = self.output if source is None else resting(source, "I")
        divided(self.shape, self.home.grid, f"{name}.weight")
        self.weight = nn.Parameter(scatter_tensor(mesh, self.home, whole))
        self._stash: Stash | None = None

    @property
    def away(self) -> bool:
        """Whether a training forward has taken the weight, and its backward is still to come."""
        return self._stash is not None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Multiply; in training the weight is away until the backward has brought it home."""
        if self.away:
            raise TrainingOrderError(
                f"{self.name}: expected backward() after each forward that records gradients, got "
                "another forward while the weight is away: call backward() first, or "
                "return_home() on every rank to give that forward up"
            )
        x_MN, schedules = self._rows(x), self._schedules(x)
        trains = x.requires_grad or self.weight.requires_grad
        if torch.is_grad_enabled() and trains:
            apply: Callable[..., torch.Tensor] = _Partitioned.apply
            y_MK = apply(x_MN, self.weight, self, schedules)
        else:
            y_MK = schedules.evaluate(x_MN.detach(), self.weight.detach())
        same_rows = self.source.grid[0] == self.output.grid[0]
        return y_MK.view(*x.shape[:-1], -1) if same_rows else y_MK

    def _rows(self, x: torch.Tensor) -> torch.Tensor:
        columns = self.shape[0] // self.source.grid[1]
        if x.shape[-1] != columns:
            raise ShapeError(
                f"{self.name}: expected a block of {columns} columns (N={self.shape[0]} in "
                f"{self.source.grid[1]} slices), got {tuple(x.shape)}: give this rank's block"
            )
        if x.dtype != self.mesh.dtype:
            raise ConfigError(
                f"{self.name}: expected an input of the mesh's {self.mesh.dtype}, got {x.dtype}: "
                "convert it, or make the mesh with that dtype"
            )
        return x.reshape(-1, columns).contiguous()

    def _schedules(self, x: torch.Tensor) -> Schedules:
        rows = x.shape[:-1].numel() * self.source.grid[0]
        key = (rows, self.shape, self.source)
        if key not in self.mesh.compiled:
            operator = Linear(M=rows, N=self.shape[0], K=self.shape[1])
            self.mesh.compiled[key] = Schedules(self.mesh, operator, self.source)
        schedules: Schedules = self.mesh.compiled[key]
        return schedules

    def return_home(self) -> None:
        """Bring the weight home without a backward, whose forward is then void; collective."""
        if self._stash is not None:
            self.take_up(self._stash).release()
            away = rest(self.mesh, "backward", "W")
            way = Redistribution(self.mesh, away, self.home, "W", self.shape, outward=True)
            self.weight.data = way(self.weight.data)

    def lay_down(self, stash: Stash) -> None:
        """Keep what the last training forward has left."""
        self._stash = stash

    def take_up(self, stash: Stash) -> Stash:
        """Give back what was kept, once. Raises `TrainingOrderError` if that is not `stash`."""
        if self._stash is not stash:
            raise TrainingOrderError(
                f"{self.name}: expected one backward() for each forward, got another one: "
                "its input is gone from the devices, call the forward again"
            )
        self._stash = None
        return stash


class _Partitioned(torch.autograd.Function):
    """One linear operator of a training step: forward, then backward and gradient."""

    @staticmethod
    def forward(
        ctx: Any,
        x_MN: torch.Tensor,
        weight: nn.Parameter,
        layer: PartitionedLinear,
        plan: Schedules,
    ) -> torch.Tensor:
        """Run the forward program; the weight's parameter takes the block that rests here."""
        blocks = plan.forward({plan.I: plan.arrive(x_MN.detach()), plan.W: weight.data})
        output = blocks.pop(plan.O)
        weight.data = blocks.pop(plan.W_away)
        ctx.layer, ctx.stash = layer, Stash(plan, blocks)
        layer.lay_down(ctx.stash)
        if plan.forward.borrowed:
            ctx.save_for_backward(x_MN)  # torch then refuses a backward after a change of x
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Run the backward and gradient programs; the weight comes home with its gradient."""
        layer = ctx.layer
        stash: Stash = layer.take_up(ctx.stash)
        plan, blocks, _ = stash.plan, stash.blocks, ctx.saved_tensors
        blocks[plan.W_away], blocks[plan.dO] = layer.weight.data, gradients[0].contiguous()
        plan.backward(blocks)
        layer.weight.data = blocks.pop(plan.W)
        dI, dW = plan.leave(blocks.pop(plan.dI)), blocks.pop(plan.dW)
        return dI, dW, None, None
