"""Layer norm of a stream whose rows are cut into columns over several ranks.

Legend: R rows of this rank, C columns of this rank, H all columns; 1 a sum over the columns.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable

from primepar.distributed.redistribute import scatter_tensor
from primepar.distributed.stream import Stream, working_dtype

EPSILON = 1e-5


class PartitionedNorm(nn.Module):
    """Rows to mean 0 and variance 1 over all `hidden` columns, times weight plus bias."""

    def __init__(self, stream: Stream, weight_H: torch.Tensor, bias_H: torch.Tensor) -> None:
        super().__init__()
        mesh, layout = stream.mesh, stream.of_columns()
        self.stream = stream
        self.weight = nn.Parameter(scatter_tensor(mesh, layout, weight_H))
        self.bias = nn.Parameter(scatter_tensor(mesh, layout, bias_H))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalise this rank's block `[..., C]`."""
        apply: Callable[..., torch.Tensor] = _Norm.apply
        return apply(x, self.weight, self.bias, self.stream)


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, weight_C: torch.Tensor, bias_C: torch.Tensor, stream: Stream
    ) -> torch.Tensor:
        """Mean first, then the variance about it: two sums over the ranks of a row."""
        x_RC = x.reshape(-1, x.shape[-1]).to(working_dtype(x.dtype))
        mean_R1 = _row_mean(stream, x_RC)
        centred_RC = x_RC - mean_R1
        scale_R1 = (_row_mean(stream, centred_RC.square()) + EPSILON).rsqrt()
        normed_RC = centred_RC.mul_(scale_R1)
        ctx.save_for_backward(normed_RC, scale_R1, weight_C)
        ctx.stream = stream
        return torch.addcmul(bias_C, normed_RC, weight_C).to(x.dtype).view_as(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Gradients of weight and bias come summed over the ranks with other rows."""
        normed_RC, scale_R1, weight_C = ctx.saved_tensors
        stream, dy = ctx.stream, gradients[0]
        dy_RC = dy.reshape(normed_RC.shape).to(normed_RC.dtype)
        dparameters_2C = torch.stack([(dy_RC * normed_RC).sum(0), dy_RC.sum(0)])
        stream.mesh.all_reduce(dparameters_2C, stream.same_columns, "norm")
        dnormed_RC = dy_RC * weight_C
        sums_R2 = torch.stack([dnormed_RC.sum(1), (dnormed_RC * normed_RC).sum(1)], dim=1)
        stream.mesh.all_reduce(sums_R2, stream.same_rows, "norm")
        means_R2 = sums_R2 / (normed_RC.shape[1] * len(stream.same_rows))
        dx_RC = (dnormed_RC - means_R2[:, :1] - normed_RC * means_R2[:, 1:]) * scale_R1
        dweight_C, dbias_C = dparameters_2C.to(weight_C.dtype)
        return dx_RC.to(dy.dtype).view_as(dy), dweight_C, dbias_C, None


def _row_mean(stream: Stream, x_RC: torch.Tensor) -> torch.Tensor:
    """Mean over all columns of a row, on every rank of the row: `[R, 1]`."""
    sum_R1 = x_RC.sum(1, keepdim=True)
    stream.mesh.all_reduce(sum_R1, stream.same_rows, "norm")
    return sum_R1 / (x_RC.shape[1] * len(stream.same_rows))
