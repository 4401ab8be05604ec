"""Gradients of parameters as averages over groups of ranks that have different rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable

from primepar.distributed.runtime.executor import Executor
from primepar.distributed.runtime.mesh import Mesh
from primepar.operators.summed_vector import VECTOR, lower_sum
from primepar.schedule.layout import Layout


class RowAverage:
    """The average of a vector over the ranks that have the same columns of `layout`.

    Every rank of a loss has its own rows, and its own mean over them. The gradient of the mean over
    all rows is the average of the gradients.
    """

    def __init__(self, mesh: Mesh, layout: Layout) -> None:
        self.mesh, self.groups, self.count = mesh, layout.peers_along(0), layout.grid[0]

    def __call__(self, gradient: torch.Tensor) -> torch.Tensor:
        """Return the average of a gradient of any shape; a collective call."""
        if self.count == 1:
            return gradient
        size = gradient.numel()
        key = ("average", self.groups, size)
        if key not in self.mesh.compiled:
            program = lower_sum(self.groups, size)
            self.mesh.compiled[key] = Executor(self.mesh, program, kind="parameters")
        blocks = self.mesh.compiled[key]({VECTOR: gradient.reshape(-1).contiguous()})
        average: torch.Tensor = blocks[VECTOR].view(gradient.shape).div_(self.count)
        return average

    def on(self, parameter: nn.Parameter) -> None:
        """Average the gradient of a parameter in every backward."""
        if self.count > 1 and parameter.requires_grad:
            register: Callable[..., object] = parameter.register_hook
            register(self)


def averaged(local: torch.Tensor, average: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """Return `local`; backward passes its gradient through `average`."""
    apply: Callable[..., torch.Tensor] = _Averaged.apply
    return apply(local, average)


class _Averaged(torch.autograd.Function):
    """The identity in forward."""

    @staticmethod
    def forward(
        ctx: Any, local: torch.Tensor, average: Callable[[torch.Tensor], torch.Tensor]
    ) -> torch.Tensor:
        """Return a view, as autograd does not let a function return its input."""
        ctx.average = average
        return local.view_as(local)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        """Return the average."""
        return ctx.average(gradient), None
