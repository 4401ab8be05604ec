"""The linear operator on a mesh, as an autograd function and as a module.

Legend: M rows of this call (batch x context), N input and K output hidden.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from numpy.typing import NDArray
from torch import nn
from torch.autograd.function import once_differentiable

from primepar.distributed.runtime.executor import Executor
from primepar.distributed.runtime.mesh import Mesh
from primepar.distributed.runtime.scatter_gather import Parts, scatter_tensor
from primepar.errors import ConfigError, ShapeError
from primepar.operators.single_operator import (
    check_divided,
    lower_linear,
    rectangular,
    resident_layout,
)
from primepar.schedule import Layout, Linear, Movement, Sequence


class Schedules:
    """The two compiled programs of one linear operator, and this rank's parts of its tensors.

    The input has layout `source`, the output `target`, by default the resident layout of O. With
    another `sequence` than the mesh's its ranks are those of the mesh. A `turned` weight is (K, N).
    """

    def __init__(
        self,
        mesh: Mesh,
        operator: Linear,
        source: Layout,
        sequence: Sequence | None = None,
        target: Layout | None = None,
        turned: bool = False,
    ) -> None:
        wide_sums, rank, sequence = (
            mesh.wide_dtype != mesh.dtype,
            mesh.rank,
            sequence or mesh.sequence,
        )
        movement = Movement(sequence)
        programs = lower_linear(sequence, operator, source, wide_sums, target, turned)
        home = resident_layout(movement, "forward", "W")
        output = target or resident_layout(movement, "forward", "O", last=True)
        x, y, w = ((operator.M, operator.N), (operator.M, operator.K), (operator.N, operator.K))
        if turned:
            home, w = home.turned(), w[::-1]
        self.x, self.dx = (Parts(name, source, rank, x) for name in ("x", programs.dx))
        self.y, self.dy = (Parts(name, output, rank, y) for name in (programs.output, "dy"))
        self.weight, self.dw = (Parts(name, home, rank, w) for name in ("weight", programs.dw))
        self.kept = programs.kept[rank]
        self.forward = Executor(mesh, programs.forward, kind="redistribution")
        self.backward = Executor(mesh, programs.backward, kind="redistribution")
        self.stays = self.weight.local.keys() <= set(self.backward.initial)


class PartitionedLinear(nn.Module):
    """`O = I W`, partitioned by the mesh's sequence, with this rank's part of W as a parameter.

    `weight_NK` is the full weight, the same on every rank; each rank keeps its part. The input is
    this rank's part in layout `source` over (M, N), by default the layout of the output. The
    result is this rank's part of the output. Columns are the last dim; several blocks of a rank
    are concatenated in the order of their slices. If the sequence sends W between devices, copies
    are sent and the parameter stays. So several forwards may run before their backwards. Raises
    `SequenceError`, `ShapeError` or `ConfigError` for arguments that do not fit.
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
        self.home = resident_layout(mesh.movement, "forward", "W")
        self.output = resident_layout(mesh.movement, "forward", "O", last=True)
        self.source = self.output if source is None else rectangular(source, "I")
        check_divided(self.shape, self.home.grid, f"{name}.weight")
        self.weight = nn.Parameter(scatter_tensor(mesh, self.home, whole))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Multiply this rank's part of the input; any number of dims may precede the columns."""
        x_MN = self._rows(x)
        y_MK = partitioned_product(x_MN, self.weight, self._schedules(x))
        return y_MK.view(*x.shape[:-1], -1) if len(y_MK) == len(x_MN) else y_MK

    def _rows(self, x: torch.Tensor) -> torch.Tensor:
        rank, (N, _), slices = self.mesh.rank, self.shape, self.source.grid[1]
        columns = sum(map(len, self.source.elements(rank, 1, N)))
        if x.shape[-1] != columns:
            held = len(self.source.slices(rank, 1))
            raise ShapeError(
                f"{self.name}: expected {columns} columns ({held} of the {slices} slices of "
                f"N={N}), got {tuple(x.shape)}: give the part that this rank holds"
            )
        if x.dtype != self.mesh.dtype:
            raise ConfigError(
                f"{self.name}: expected an input of the mesh's {self.mesh.dtype}, got {x.dtype}: "
                "convert it, or make the mesh with that dtype"
            )
        return x.reshape(-1, columns)

    def _schedules(self, x: torch.Tensor) -> Schedules:
        rows, _ = self.source.whole_shape(self.mesh.rank, (x.shape[:-1].numel(), 1))
        key = (rows, self.shape, self.source)
        if key not in self.mesh.compiled:
            operator = Linear(M=rows, N=self.shape[0], K=self.shape[1])
            self.mesh.compiled[key] = Schedules(self.mesh, operator, self.source)
        schedules: Schedules = self.mesh.compiled[key]
        return schedules


def partitioned_product(
    x_MN: torch.Tensor, weight: torch.Tensor, schedules: Schedules
) -> torch.Tensor:
    """Return this rank's part of the output, from its parts of input and weight; differentiable."""
    apply: Callable[..., torch.Tensor] = _Partitioned.apply
    return apply(x_MN, weight, schedules)


class _Partitioned(torch.autograd.Function):
    """Forward runs one program; backward runs the other one on the blocks that forward kept."""

    @staticmethod
    def forward(
        ctx: Any, x_MN: torch.Tensor, weight: torch.Tensor, plan: Schedules
    ) -> torch.Tensor:
        """Run the forward program.

        Torch refuses the backward if a saved tensor has changed since.
        """
        blocks = plan.forward({**plan.x.cut(x_MN.detach()), **plan.weight.cut(weight.detach())})
        kept = [blocks.pop(name) for name in plan.kept]
        ctx.plan = plan
        ctx.save_for_backward(*kept, *([weight] if plan.stays else ()))
        return plan.y.take(blocks)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy_MK: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Run the backward program."""
        plan: Schedules = ctx.plan
        saved = ctx.saved_tensors  # once: activation checkpointing gives them a single time
        blocks = dict(zip(plan.kept, saved, strict=False))
        if plan.stays:
            blocks |= plan.weight.cut(saved[-1].detach())
        blocks = plan.backward(blocks | plan.dy.cut(dy_MK))
        return plan.dx.take(blocks), plan.dw.take(blocks), None
