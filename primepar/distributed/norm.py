"""Layer norm and RMS norm of an activation whose rows are cut into columns over several ranks.

Legend: R rows of this rank, C columns of this rank, H all columns; 1 a sum over the columns, S the
parameters: the weight, and where rows are centred a bias.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable

from primepar.distributed.stream import Stream, working_dtype


class PartitionedNorm(nn.Module):
    """Rows to variance 1 over all columns, times weight; with a bias, to mean 0 before, plus it."""

    def __init__(
        self, stream: Stream, epsilon: float, weight_C: nn.Parameter, bias_C: nn.Parameter | None
    ) -> None:
        super().__init__()
        self.stream, self.epsilon = stream, epsilon
        self.weight, self.bias = weight_C, bias_C

    def forward(self, x_RC: torch.Tensor) -> torch.Tensor:
        """Normalise this rank's block."""
        apply: Callable[..., torch.Tensor] = _Norm.apply
        return apply(x_RC, self.weight, self.bias, self.stream, self.epsilon)


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        weight_C: torch.Tensor,
        bias_C: torch.Tensor | None,
        stream: Stream,
        epsilon: float,
    ) -> torch.Tensor:
        """Mean first, then the variance about it: a sum over the ranks of a row for each."""
        x_RC = x.to(working_dtype(x.dtype))
        if bias_C is not None:
            x_RC = x_RC - _row_mean(stream, x_RC)
        scale_R1 = (_row_mean(stream, x_RC.square()) + epsilon).rsqrt()
        normed_RC = x_RC * scale_R1
        ctx.save_for_backward(normed_RC, scale_R1, weight_C)
        ctx.stream, ctx.centred = stream, bias_C is not None
        y_RC = normed_RC * weight_C if bias_C is None else bias_C.addcmul(normed_RC, weight_C)
        return y_RC.to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Gradients of the parameters come summed over the ranks with other rows."""
        normed_RC, scale_R1, weight_C = ctx.saved_tensors
        stream, dy = ctx.stream, gradients[0]
        dy_RC = dy.to(normed_RC.dtype)
        biases = [dy_RC.sum(0)] if ctx.centred else []
        dparameters_SC = torch.stack([(dy_RC * normed_RC).sum(0), *biases])
        stream.mesh.all_reduce(dparameters_SC, stream.same_columns, "norm")
        dnormed_RC = dy_RC * weight_C
        centres = [dnormed_RC.sum(1)] if ctx.centred else []
        sums_RS = torch.stack([(dnormed_RC * normed_RC).sum(1), *centres], dim=1)
        stream.mesh.all_reduce(sums_RS, stream.same_rows, "norm")
        means_RS = sums_RS / (normed_RC.shape[1] * len(stream.same_rows))
        dx_RC = dnormed_RC - normed_RC * means_RS[:, :1]
        if ctx.centred:
            dx_RC -= means_RS[:, 1:]
        dweight_C, *dbias_C = dparameters_SC.to(weight_C.dtype)
        dbias = dbias_C[0] if ctx.centred else None
        return (dx_RC * scale_R1).to(dy.dtype), dweight_C, dbias, None, None


def _row_mean(stream: Stream, x_RC: torch.Tensor) -> torch.Tensor:
    """Mean over all columns of a row, on every rank of the row: `[R, 1]`."""
    sum_R1 = x_RC.sum(1, keepdim=True)
    stream.mesh.all_reduce(sum_R1, stream.same_rows, "norm")
    return sum_R1 / (x_RC.shape[1] * len(stream.same_rows))
