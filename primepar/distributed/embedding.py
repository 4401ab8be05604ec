"""Embedding of tokens and positions: rows, vocabulary and columns of the table may be cut.

A rank looks up the tokens whose vectors it has; where the vocabulary is cut, the partial rows are
summed, all of them on every rank of a row or scattered along the rows, as the output lies.
Legend: R rows of this rank in the output, L rows that it looks up, T positions,
C columns of this rank, V rows of the table of this rank.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from primepar.distributed.stream import Stream, working_dtype


class PartitionedEmbedding(nn.Module):
    """The vector of each token, plus that of its position where positions are learned.

    `lookup` is over (rows, vocabulary, hidden), `output` over (rows, hidden).
    """

    def __init__(
        self,
        lookup: Stream,
        output: Stream,
        token_VC: nn.Parameter,
        position_TC: nn.Parameter | None,
    ) -> None:
        super().__init__()
        self.rows, self.output = Rows(lookup, output), output
        self.token, self.position = token_VC, position_TC

    def forward(self, tokens_BT: torch.Tensor) -> torch.Tensor:
        """Embed the whole batch, the same on every rank, in this rank's block `[R, C]`."""
        look_up: Callable[..., torch.Tensor] = _Token.apply
        x_RC = look_up(self.rows.lookup.rows(tokens_BT.flatten()), self.token, self.rows)
        if self.position is None:
            return x_RC
        add: Callable[..., torch.Tensor] = _Position.apply
        return add(x_RC, self.position, tokens_BT.shape[1], self.output)


class Rows:
    """From the rows that a rank looks up to those that it holds of the output, and back."""

    def __init__(self, lookup: Stream, output: Stream) -> None:
        self.lookup, self.mesh, self.members = lookup, lookup.mesh, lookup.same_rows
        self.parts = output.layout.grid[0] // lookup.layout.grid[0]
        self.order = [output.layout.held[rank][0][0] % self.parts for rank in self.members]
        self.own = output.block[0] % self.parts

    def summed(self, partial_LC: torch.Tensor) -> torch.Tensor:
        """Sum over the vocabulary: this rank's rows."""
        if self.parts == len(self.members):
            pieces = partial_LC.chunk(self.parts)
            given = [pieces[part] for part in self.order]
            return self.mesh.reduce_scatter(given, self.members, "embedding")
        self.mesh.all_reduce(partial_LC, self.members, "embedding")
        return partial_LC.chunk(self.parts)[self.own]

    def gathered(self, dx_RC: torch.Tensor) -> torch.Tensor:
        """Gradient of all rows that this rank has looked up."""
        if self.parts == 1:
            return dx_RC
        pieces = self.mesh.all_gather(dx_RC.contiguous(), self.members, "embedding")
        return torch.cat([pieces[self.order.index(part)] for part in range(self.parts)])


class _Token(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, token_L: torch.Tensor, token_VC: torch.Tensor, rows: Rows
    ) -> torch.Tensor:
        """Look up; a token of another rank's vocabulary is a row of zeros here."""
        vocabulary = len(token_VC)
        place_L = token_L - rows.lookup.block[1] * vocabulary
        mine_L = (place_L >= 0) & (place_L < vocabulary)
        place_L = place_L.clamp(0, vocabulary - 1)
        ctx.save_for_backward(place_L, mine_L)
        ctx.rows, ctx.vocabulary = rows, vocabulary
        return rows.summed(token_VC[place_L] * mine_L[:, None])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """The table's gradient is summed over the ranks that look up other rows in it."""
        place_L, mine_L = ctx.saved_tensors
        dx_LC = ctx.rows.gathered(gradients[0])
        dx_LC = dx_LC.to(working_dtype(dx_LC.dtype)) * mine_L[:, None]
        dtoken_VC = dx_LC.new_zeros((ctx.vocabulary, dx_LC.shape[1])).index_add_(0, place_L, dx_LC)
        lookup = ctx.rows.lookup
        lookup.mesh.all_reduce(dtoken_VC, lookup.same_columns, "embedding")
        return None, dtoken_VC.to(gradients[0].dtype), None


class _Position(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x_RC: torch.Tensor, position_TC: torch.Tensor, positions: int, stream: Stream
    ) -> torch.Tensor:
        """Add to every row; nothing is sent."""
        first = stream.block[0] * len(x_RC) % positions
        ctx.stream, ctx.context, ctx.positions = stream, len(position_TC), positions
        ctx.first = first
        at_R = torch.arange(first, first + len(x_RC), device=x_RC.device) % positions
        return x_RC + position_TC[at_R]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """The table's gradient is summed over the ranks with other rows."""
        (dx_RC,) = gradients
        missing = -(ctx.first + len(dx_RC)) % ctx.positions
        whole = functional.pad(
            dx_RC.to(working_dtype(dx_RC.dtype)), (0, 0, ctx.first, missing)
        )  # zeros for the rows of other ranks, so that sequences are whole
        dx_BTC = whole.view(-1, ctx.positions, dx_RC.shape[1])
        dposition_TC = dx_BTC.new_zeros((ctx.context, dx_RC.shape[1]))
        torch.sum(dx_BTC, 0, out=dposition_TC[: ctx.positions])
        ctx.stream.mesh.all_reduce(dposition_TC, ctx.stream.same_columns, "embedding")
        return dx_RC, dposition_TC.to(dx_RC.dtype), None, None
