"""Gradients of parameters as averages over groups of ranks that have different rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.autograd.function import once_differentiable

from primepar.distributed.runtime.executor import Executor
from primepar.distributed.runtime.mesh import Mesh
from primepar.operators.row_average import lower_row_average
from primepar.schedule.layout import Layout


class CompiledAverage(NamedTuple):
    """A compiled average, and the names of this rank's block before and after it."""

    executor: Executor
    before: str
    after: str


class RowAverage:
    """The average of a vector over the ranks that have the same columns of `layout`.

    Every rank of a loss has its own rows, and its own mean over them. The gradient of the mean over
    all rows is the average of the gradients.
    """

    def __init__(self, mesh: Mesh, layout: Layout) -> None:
        self.mesh, self.layout, self.count = mesh, layout, layout.grid[0]
        self._compiled: dict[tuple[int, torch.dtype], CompiledAverage] = {}

    def __call__(self, gradient: torch.Tensor) -> torch.Tensor:
        """Return the average of a gradient of any shape; a collective call."""
        if self.count == 1:
            return gradient
        key = gradient.numel(), gradient.dtype
        if key not in self._compiled:
            self._compiled[key] = self._average(*key)
        executor, before, after = self._compiled[key]
        average = executor({before: gradient.reshape(1, -1).contiguous()})[after]
        return average.view(gradient.shape).to(gradient.dtype)

    def _average(self, size: int, dtype: torch.dtype) -> CompiledAverage:
        """Return the program for gradients of a size; averages of one mesh share it."""
        key, mesh = ("average", self.layout, size), self.mesh.in_dtype(dtype)
        if key not in mesh.compiled:
            program, before, after = lower_row_average(self.layout, size)
            executor = Executor(mesh, program, kind="parameters")
            mesh.compiled[key] = CompiledAverage(executor, before[mesh.rank], after[mesh.rank])
        compiled: CompiledAverage = mesh.compiled[key]
        return compiled

    def on(self, parameter: nn.Parameter, check: Callable[[torch.Tensor], None]) -> None:
        """Check, and then average, the gradient of a parameter in every backward."""

        def checked(gradient: torch.Tensor) -> torch.Tensor:
            check(gradient)
            return self(gradient)

        if parameter.requires_grad:
            register: Callable[..., object] = parameter.register_hook
            register(checked)


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
