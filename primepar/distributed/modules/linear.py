"""The linear operator on a mesh, as an autograd function.

Legend: M rows of this call (batch x context), N input and K output hidden.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from primepar.distributed.runtime.executor import Executor
from primepar.distributed.runtime.mesh import Mesh
from primepar.distributed.runtime.scatter_gather import Parts
from primepar.operators.single_operator import (
    lower_linear,
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
