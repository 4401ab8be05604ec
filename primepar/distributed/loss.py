"""Cross-entropy over a vocabulary whose columns are cut over the ranks of a row.

The logits are never gathered: a maximum and two sums per row are all that is sent. Columns beyond
the vocabulary are padding, which gets no probability and no gradient.
Legend: R rows of this rank, C columns of the vocabulary of this rank.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.autograd.function import once_differentiable

from primepar.distributed.stream import Stream, working_dtype


def cross_entropy(
    stream: Stream, vocabulary: int, logits_RC: torch.Tensor, target_R: torch.Tensor
) -> torch.Tensor:
    """Mean over all rows of all ranks, the same on every rank; takes this rank's block and rows."""
    apply: Callable[..., torch.Tensor] = _CrossEntropy.apply
    return apply(logits_RC, target_R, stream, vocabulary)


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, logits: torch.Tensor, target_R: torch.Tensor, stream: Stream, vocabulary: int
    ) -> torch.Tensor:
        """`log(sum of exp) - target`, with the row's maximum taken off first."""
        mesh, columns = stream.mesh, logits.shape[1]
        first = stream.block[1] * columns
        shifted_RC = logits.to(working_dtype(logits.dtype), copy=True)
        shifted_RC[:, max(0, vocabulary - first) :] = -torch.inf
        largest_R = shifted_RC.max(1).values
        mesh.all_reduce(largest_R, stream.same_rows, "loss", dist.ReduceOp.MAX)
        shifted_RC -= largest_R[:, None]
        column_R = target_R - first
        mine_R = (column_R >= 0) & (column_R < columns)
        column_R1 = column_R.clamp(0, columns - 1)[:, None]
        at_target_R = shifted_RC.gather(1, column_R1)[:, 0].where(mine_R, 0)
        exp_RC = shifted_RC.exp_()
        sums_2R = torch.stack([exp_RC.sum(1), at_target_R])
        mesh.all_reduce(sums_2R, stream.same_rows, "loss")
        ctx.rows = len(mine_R) * len(stream.same_columns)
        loss: torch.Tensor = (sums_2R[0].log() - sums_2R[1]).sum() / ctx.rows
        mesh.all_reduce(loss, stream.same_columns, "loss")
        ctx.save_for_backward(exp_RC.div_(sums_2R[0][:, None]), column_R1, mine_R)
        ctx.dtype = logits.dtype
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Softmax less one at the target, over the number of rows; nothing is sent."""
        softmax_RC, column_R1, mine_R = ctx.saved_tensors
        at_target_R1 = mine_R[:, None].to(softmax_RC.dtype)
        dlogits_RC = softmax_RC.scatter_add(1, column_R1, -at_target_R1)
        dlogits_RC.mul_(gradients[0] / ctx.rows)
        return dlogits_RC.to(ctx.dtype), None, None, None
