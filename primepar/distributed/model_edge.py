"""Activations on their way from one operator of a plan to the next, and their gradients back.

Legend: R rows and C columns that this rank holds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from primepar.distributed.mesh import Mesh
from primepar.distributed.redistribute import Redistribution
from primepar.schedule import Layout


class Way:
    """Takes this rank's part of a tensor from layout `source` to `target`; differentiable.

    Its gradient comes in `target` and is taken back; where the layouts agree nothing is done.
    """

    def __init__(self, mesh: Mesh, source: Layout, target: Layout) -> None:
        self.mesh, self.source, self.target = mesh, source, target

    def __call__(self, x_RC: torch.Tensor) -> torch.Tensor:
        """Redistribute; a collective call."""
        if self.source == self.target:
            return x_RC
        apply: Callable[..., torch.Tensor] = _Move.apply
        return apply(x_RC, self)

    def move(self, x_RC: torch.Tensor, source: Layout, target: Layout) -> torch.Tensor:
        """A part that is autograd's own, in its new place."""
        shape = source.whole_shape(self.mesh.rank, x_RC.shape)
        key = ("edge", shape, source, target)
        if key not in self.mesh.compiled:
            self.mesh.compiled[key] = Redistribution(self.mesh, source, target, "O", shape)
        way: Redistribution = self.mesh.compiled[key]
        moved = way(x_RC.contiguous())
        kept = moved.clone(memory_format=torch.contiguous_format)
        if not way.borrowed:
            self.mesh.pool.release(moved)
        return kept


class _Move(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_RC: torch.Tensor, way: Way) -> torch.Tensor:
        ctx.way = way
        return way.move(x_RC, way.source, way.target)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        way, (dx_RC,) = ctx.way, gradients
        return way.move(dx_RC, way.target, way.source), None
