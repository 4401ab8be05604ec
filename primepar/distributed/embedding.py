"""Embedding of tokens and positions, each rank holding its columns of both tables.

Legend: B sequences of this rank, T positions, C columns of this rank, V vocabulary, H hidden.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable

from primepar.distributed.redistribute import scatter_tensor
from primepar.distributed.stream import Stream, working_dtype


class PartitionedEmbedding(nn.Module):
    """The vector of each token plus that of its position."""

    def __init__(self, stream: Stream, token_VH: torch.Tensor, position_TH: torch.Tensor) -> None:
        super().__init__()
        mesh, layout = stream.mesh, stream.of_table()
        self.stream = stream
        self.token = nn.Parameter(scatter_tensor(mesh, layout, token_VH))
        self.position = nn.Parameter(scatter_tensor(mesh, layout, position_TH))

    def forward(self, tokens_BT: torch.Tensor) -> torch.Tensor:
        """Embed this rank's sequences in this rank's columns: `[B, T, C]`."""
        apply: Callable[..., torch.Tensor] = _Embedding.apply
        return apply(tokens_BT, self.token, self.position, self.stream)


class _Embedding(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        tokens_BT: torch.Tensor,
        token_VC: torch.Tensor,
        position_TC: torch.Tensor,
        stream: Stream,
    ) -> torch.Tensor:
        """Look up; nothing is sent."""
        ctx.save_for_backward(tokens_BT)
        ctx.stream, ctx.rows, ctx.positions = stream, len(token_VC), len(position_TC)
        return token_VC[tokens_BT] + position_TC[: tokens_BT.shape[1]]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Both tables' gradients in one buffer, summed over the ranks with other rows."""
        (tokens_BT,) = ctx.saved_tensors
        dx_BTC = gradients[0].to(working_dtype(gradients[0].dtype))
        both = dx_BTC.new_zeros((ctx.rows + ctx.positions, dx_BTC.shape[-1]))
        dtoken_VC, dposition_TC = both[: ctx.rows], both[ctx.rows :]
        dtoken_VC.index_add_(0, tokens_BT.flatten(), dx_BTC.flatten(0, 1))
        torch.sum(dx_BTC, 0, out=dposition_TC[: tokens_BT.shape[1]])
        ctx.stream.mesh.all_reduce(both, ctx.stream.same_columns, "embedding")
        dtype = gradients[0].dtype
        return None, dtoken_VC.to(dtype), dposition_TC.to(dtype), None
