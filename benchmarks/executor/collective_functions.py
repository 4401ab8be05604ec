"""Megatron's collectives around a column and a row linear, as autograd functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import distributed as dist


def applied(function: type[torch.autograd.Function], *arguments: Any) -> torch.Tensor:
    """The result of an autograd function."""
    apply: Callable[..., torch.Tensor] = function.apply
    return apply(*arguments)


class EnterCopied(torch.autograd.Function):
    """Megatron's f: forward passes on, backward all-reduces."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> torch.Tensor:
        dy = dy.contiguous()
        dist.all_reduce(dy)
        return dy


class LeaveReduced(torch.autograd.Function):
    """Megatron's g: forward all-reduces, backward passes on."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(x)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> torch.Tensor:
        return dy


class EnterGathered(torch.autograd.Function):
    """With sequence parallelism: a divided dim is gathered, its gradients are reduce-scattered."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, dim: int) -> torch.Tensor:
        ctx.dim = dim
        return gathered(x, dim)

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> tuple[torch.Tensor, None]:
        return scattered(dy, ctx.dim), None


class LeaveScattered(torch.autograd.Function):
    """The inverse: partial sums are reduce-scattered, their gradients gathered."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, dim: int) -> torch.Tensor:
        ctx.dim = dim
        return scattered(x, dim)

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gathered(dy, ctx.dim), None


def gathered(part: torch.Tensor, dim: int) -> torch.Tensor:
    """The parts of all ranks, concatenated along a dim."""
    part = part.movedim(dim, 0).contiguous()
    whole = part.new_empty(len(part) * dist.get_world_size(), *part.shape[1:])
    dist.all_gather_single(whole, part)
    return whole.movedim(0, dim)


def scattered(whole: torch.Tensor, dim: int) -> torch.Tensor:
    """This rank's part of the sum of all ranks, along a dim."""
    whole = whole.movedim(dim, 0).contiguous()
    part = whole.new_empty(len(whole) // dist.get_world_size(), *whole.shape[1:])
    dist.reduce_scatter_single(part, whole)
    return part.movedim(0, dim)
