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

from primepar.distributed.executor import Executor, linear_shapes
from primepar.distributed.mesh import Mesh
from primepar.distributed.redistribute import (
    Redistribution,
    check_divided,
    resting,
    scatter_tensor,
)
from primepar.distributed.regions import Held, Region
from primepar.distributed.storage import Memory
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
    return layout(mesh.movement, phase, tensor, last=last).coarsest()


class Place:
    """Where a tensor rests on this rank: one tensor under `key`, that of its blocks or region."""

    def __init__(
        self, mesh: Mesh, tensor: str, phase: Phase, *, last: bool = False, name: str = ""
    ) -> None:
        self.layout = rest(mesh, phase, tensor, last=last)
        fine = layout(mesh.movement, phase, tensor, last=last).held[mesh.rank]
        self.names = tuple(block_name(name or tensor, index) for index in fine)
        regions = [Region.of(self.names)] if len(fine) > 1 else []
        self.regions = tuple(region for region in regions if region is not None)
        self.key = self.regions[0].key if self.regions else self.names[0]

    def held(self, *, borrowed: bool) -> tuple[Held, ...]:
        """Its region, as the caller gives it."""
        return tuple(Held(region, borrowed) for region in self.regions)


class Schedules:
    """The programs of one linear operator, compiled: one for training, one for evaluation."""

    def __init__(self, mesh: Mesh, operator: Linear, source: Layout) -> None:
        self.mesh, self.operator, self.stays = mesh, operator, mesh.sequence.has_homes
        self.I, self.W = Place(mesh, "I", "forward"), Place(mesh, "W", "forward")
        self.O = Place(mesh, "O", "forward", last=True)
        self.dO = Place(mesh, "O", "forward", last=True, name="dO")
        self.dI = Place(mesh, "dI", "backward", last=True)
        self.dW = Place(mesh, "W", "forward", name="dW")
        self.W_away = self.W if self.stays else Place(mesh, "W", "backward")
        shape = (operator.M, operator.N)
        self.arrive = Redistribution(mesh, source, self.I.layout, "I", shape)
        self.leave = Redistribution(mesh, self.dI.layout, source, "dI", shape, outward=True)
        theirs = [self.I] if self.arrive.borrowed else []
        at_home = [self.W] if self.stays else []
        self.forward = self._compile(("forward",), [self.I, self.W], [*theirs, *at_home], [self.O])
        self.evaluation = self._compile(("forward",), [self.I, self.W], [*theirs, self.W], [self.O])
        leaving = [self.dW, self.dI] if self.leave.passes else [self.dW]
        self.backward = self._compile(
            ("backward", "gradient"), [self.dO], [self.dO], leaving, self.forward
        )

    def _compile(
        self,
        phases: tuple[Phase, ...],
        given: list[Place],
        borrowed: list[Place],
        leaving: list[Place],
        before: Executor | None = None,
    ) -> Executor:
        """One program; what an executor `before` has left, but its output, is given too."""
        program = lower(self.mesh.sequence, self.operator, phases)
        held = [each for place in given for each in place.held(borrowed=place in borrowed)]
        outputs = [self.O, self.dI, self.dW]
        if before is not None:
            held += [each for each in before.held if each.region not in self.O.regions]
        memory = Memory(
            self.mesh.pool,
            linear_shapes(program),
            {*(name for place in borrowed for name in place.names), *_borrowed(before)},
            [name for place in leaving for name in place.names],
            held,
            [region for place in outputs for region in place.regions],
        )
        return Executor(self.mesh, program, memory)

    def evaluate(self, x_MN: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Forward with a borrowed weight, which stays."""
        blocks = self.evaluation({self.I.key: self.arrive(x_MN), self.W.key: weight})
        output = blocks.pop(self.O.key)
        for name, block in blocks.items():
            if name not in self.evaluation.borrowed:
                self.mesh.pool.release(block)
        return output


def _borrowed(before: Executor | None) -> frozenset[str]:
    return frozenset() if before is None else before.borrowed


@dataclass
class Stash:
    """What rests on this rank between forward and backward, a weight that travels apart."""

    plan: Schedules
    blocks: Blocks
    taken: bool = False

    def release(self) -> None:
        """Give the pool its blocks back."""
        for name, block in self.blocks.items():
            if name not in self.plan.forward.borrowed:
                self.plan.mesh.pool.release(block)


class PartitionedLinear(nn.Module):
    """`O = I W` partitioned by the mesh's sequence.

    `weight_NK` is the whole weight, the same on every rank, of which each keeps its part. Takes
    this rank's part of the input in layout `source` over (M, N), by default that of the output,
    and returns its part of the output; columns come last, and several blocks of a rank are put
    together in the order of their slices. Raises `SequenceError`, `ShapeError` or `ConfigError`
    for what does not fit, and `TrainingOrderError` for a forward before the backward of the last
    training forward.
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
        check_divided(self.shape, self.home.grid, f"{name}.weight")
        self.weight = nn.Parameter(scatter_tensor(mesh, self.home, whole))
        self._stash: Stash | None = None

    @property
    def away(self) -> bool:
        """Whether a training forward has taken the weight, and its backward is still to come.

        Never where the sequence has homes: there the weight stays.
        """
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
        return y_MK.view(*x.shape[:-1], -1) if len(y_MK) == len(x_MN) else y_MK

    def _rows(self, x: torch.Tensor) -> torch.Tensor:
        rank, (N, _), slices = self.mesh.rank, self.shape, self.source.grid[1]
        columns = sum(map(len, self.source.elements(rank, 1, N)))
        if x.shape[-1] != columns:
            held = len(self.source.slices(rank, 1))
            raise ShapeError(
                f"{self.name}: expected {columns} columns ({held} of the {slices} slices of "
                f"N={N}), got {tuple(x.shape)}: give what this rank holds"
            )
        if x.dtype != self.mesh.dtype:
            raise ConfigError(
                f"{self.name}: expected an input of the mesh's {self.mesh.dtype}, got {x.dtype}: "
                "convert it, or make the mesh with that dtype"
            )
        return x.reshape(-1, columns).contiguous()

    def _schedules(self, x: torch.Tensor) -> Schedules:
        rows, _ = self.source.whole_shape(self.mesh.rank, (x.shape[:-1].numel(), 1))
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
        """Keep what the last training forward has left, where it has taken the weight."""
        if not stash.plan.stays:
            self._stash = stash

    def take_up(self, stash: Stash) -> Stash:
        """Give back what was kept, once. Raises `TrainingOrderError` if that is not `stash`."""
        if stash.taken or (self._stash is not stash and not stash.plan.stays):
            raise TrainingOrderError(
                f"{self.name}: expected one backward() for each forward, got another one: "
                "its input is gone from the devices, call the forward again"
            )
        self._stash, stash.taken = None, True
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
        blocks = plan.forward({plan.I.key: plan.arrive(x_MN.detach()), plan.W.key: weight.data})
        output = blocks.pop(plan.O.key)
        gone = blocks.pop(plan.W_away.key)
        ctx.layer, ctx.stash = layer, Stash(plan, blocks)
        layer.lay_down(ctx.stash)
        # What is saved may not change: torch then refuses a backward.
        used = (x_MN,) if plan.arrive.borrowed else ()
        if plan.stays:
            ctx.save_for_backward(*used, weight)
        else:
            weight.data = gone
            ctx.save_for_backward(*used)
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Run the backward and gradient programs; the weight comes home with its gradient."""
        layer = ctx.layer
        stash: Stash = layer.take_up(ctx.stash)
        plan, blocks, _ = stash.plan, stash.blocks, ctx.saved_tensors
        blocks[plan.W_away.key] = layer.weight.data
        blocks[plan.dO.key] = gradients[0].contiguous()
        plan.backward(blocks)
        home = blocks.pop(plan.W.key)
        if not plan.stays:
            layer.weight.data = home
        dI, dW = plan.leave(blocks.pop(plan.dI.key)), blocks.pop(plan.dW.key)
        return dI, dW, None, None
