"""The MLP in plain torch: Megatron's by hand, and the floor, its products without communication."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import distributed as dist

from benchmarks.executor.contender import DW1, DW2, MlpData, Wholes, activation


def applied(function: type[torch.autograd.Function], x: torch.Tensor) -> torch.Tensor:
    """The result of an autograd function."""
    apply: Callable[..., torch.Tensor] = function.apply
    return apply(x)


class _Copy(torch.autograd.Function):
    """Megatron's f: forward passes on, backward all-reduces."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> torch.Tensor:
        dy = dy.contiguous()
        dist.all_reduce(dy)
        return dy


class _Reduce(torch.autograd.Function):
    """Megatron's g: forward all-reduces, backward passes on."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(x)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> torch.Tensor:
        return dy


class _Gather(torch.autograd.Function):
    """Megatron's g with sequence parallelism: rows are gathered, their gradients scattered."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return _gathered(x)

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> torch.Tensor:
        return _scattered(dy.contiguous())


class _Scatter(torch.autograd.Function):
    """Its inverse: sums are scattered, their gradients gathered."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return _scattered(x.contiguous())

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> torch.Tensor:
        return _gathered(dy.contiguous())


def _gathered(x: torch.Tensor) -> torch.Tensor:
    whole = x.new_empty(len(x) * dist.get_world_size(), x.shape[1])
    dist.all_gather_single(whole, x)
    return whole


def _scattered(x: torch.Tensor) -> torch.Tensor:
    part = x.new_empty(len(x) // dist.get_world_size(), x.shape[1])
    dist.reduce_scatter_single(part, x)
    return part


class PlainMlp:
    """An MLP of local tensors; a subclass defines the cuts and the communication."""

    name = ""

    def __init__(self, data: MlpData) -> None:
        rank, ranks = dist.get_rank(), dist.get_world_size()
        x, dy, w1, w2 = self.parts(data, rank, ranks)
        self.x, self.w1, self.w2 = (part.clone().requires_grad_() for part in (x, w1, w2))
        self.dy = dy.clone()

    def parts(self, data: MlpData, rank: int, ranks: int) -> tuple[torch.Tensor, ...]:
        """This rank's parts of x, dy and both weights; here the columns of the inner dim."""
        w1, w2 = data.w1.chunk(ranks, 1)[rank], data.w2.chunk(ranks)[rank]
        return data.x, data.dy, w1, w2

    def forward(self) -> torch.Tensor:
        return activation(self.x @ self.w1) @ self.w2

    def step(self) -> None:
        self.x.grad = self.w1.grad = self.w2.grad = None
        self.y = self.forward()
        torch.autograd.backward(self.y, self.dy)

    def wholes(self) -> Wholes:
        assert self.x.grad is not None
        dw1, dw2 = _columns(self.w1.grad), _whole_rows(self.w2.grad)
        return {"y": self.y.detach(), "dx": self.x.grad, DW1: dw1, DW2: dw2}


class ColumnFloor(PlainMlp):
    """The products of Megatron's MLP without its all-reduces: y and dx are not summed."""

    name = "floor:columns"


class RowFloor(PlainMlp):
    """The MLP on this rank's rows, with full weights: their gradients are not summed."""

    name = "floor:rows"

    def parts(self, data: MlpData, rank: int, ranks: int) -> tuple[torch.Tensor, ...]:
        return data.x.chunk(ranks)[rank], data.dy.chunk(ranks)[rank], data.w1, data.w2


class MegatronMlp(PlainMlp):
    """One-dimensional tensor parallelism: column, then row, and an all-reduce each way."""

    name = "megatron by hand"

    def forward(self) -> torch.Tensor:
        x = applied(_Copy, self.x)
        return applied(_Reduce, activation(x @ self.w1) @ self.w2)


class SequenceMegatronMlp(PlainMlp):
    """The same with sequence parallelism: rows of x and y are divided."""

    name = "megatron-sp by hand"

    def parts(self, data: MlpData, rank: int, ranks: int) -> tuple[torch.Tensor, ...]:
        _, _, w1, w2 = super().parts(data, rank, ranks)
        return data.x.chunk(ranks)[rank], data.dy.chunk(ranks)[rank], w1, w2

    def forward(self) -> torch.Tensor:
        x = applied(_Gather, self.x)
        return applied(_Scatter, activation(x @ self.w1) @ self.w2)

    def wholes(self) -> Wholes:
        wholes = super().wholes()
        return wholes | {name: _whole_rows(wholes[name]) for name in ("y", "dx")}


def _whole_rows(part: torch.Tensor | None) -> torch.Tensor:
    assert part is not None
    return _gathered(part.contiguous())


def _columns(part: torch.Tensor | None) -> torch.Tensor:
    assert part is not None
    return _whole_rows(part.T).T
