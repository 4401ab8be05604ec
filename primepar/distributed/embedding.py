"""Embedding of tokens and positions: rows, vocabulary and columns of the table may be cut.

A rank looks up the tokens whose vectors it has; where the vocabulary is cut, the partial rows are
summed, all of them on every rank of a row or scattered along the rows, and go to where the output
lies.
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

from primepar.distributed.mesh import Ranks
from primepar.distributed.model_edge import Way
from primepar.distributed.stream import Stream, working_dtype
from primepar.plan import part
from primepar.schedule import Layout


class PartitionedEmbedding(nn.Module):
    """The vector of each token, plus that of its position where positions are learned."""

    def __init__(
        self, rows: Rows, token_VC: nn.Parameter, position_TC: nn.Parameter | None
    ) -> None:
        super().__init__()
        self.rows, self.token, self.position = rows, token_VC, position_TC

    def forward(self, tokens_BT: torch.Tensor) -> torch.Tensor:
        """Embed the whole batch, the same on every rank, in this rank's block `[R, C]`."""
        look_up: Callable[..., torch.Tensor] = _Token.apply
        x_RC = look_up(self.rows.lookup.rows(tokens_BT.flatten()), self.token, self.rows)
        if self.position is None:
            return x_RC
        add: Callable[..., torch.Tensor] = _Position.apply
        return add(x_RC, self.position, tokens_BT.shape[1], self.rows.output)


class Rows:
    """From the rows that a rank looks up to those that it holds of the output, and back.

    `lookup` is over (rows, vocabulary, hidden), `summed` and `output` over (rows, hidden): partial
    rows are summed into `summed` and go on to `output`. Groups are made: a collective call.
    """

    def __init__(self, lookup: Stream, summed: Layout, output: Stream) -> None:
        self.lookup, self.output, self.summed = lookup, output, summed
        self.mesh, self.parts = lookup.mesh, summed.grid[0] // lookup.layout.grid[0]
        self.kept = [row % self.parts for ((row, _),) in summed.held]
        self.line: Ranks = ()
        self.copies: Ranks = ()
        for group in lookup.layout.peers_along(1):
            self._divide(group)
        self.way = Way(self.mesh, summed, output.layout)

    def _divide(self, group: Ranks) -> None:
        """Lines of ranks that keep each part once, and the ranks that keep the same part."""
        copies = [
            tuple(rank for rank in sorted(group) if self.kept[rank] == part)
            for part in range(self.parts)
        ]
        lines = [tuple(sorted(line)) for line in zip(*copies, strict=True)]
        self.mesh.ensure_groups(("world", ranks) for ranks in (*copies, *lines))
        if self.mesh.rank in group:
            self.line = next(line for line in lines if self.mesh.rank in line)
            self.copies = copies[self.kept[self.mesh.rank]]

    def sum(self, partial_LC: torch.Tensor) -> torch.Tensor:
        """Sum over the vocabulary: this rank's rows."""
        pieces = partial_LC.chunk(self.parts)
        given = [pieces[self.kept[rank]] for rank in self.line]
        own_RC = self.mesh.reduce_scatter(given, self.line, "embedding")
        self.mesh.all_reduce(own_RC, self.copies, "embedding")
        if self.summed == self.output.layout:
            return own_RC
        return self.way.move(own_RC, self.summed, self.output.layout)

    def gather(self, dx_RC: torch.Tensor) -> torch.Tensor:
        """Gradient of all rows that this rank has looked up."""
        if self.summed != self.output.layout:
            return self.way.move(dx_RC, self.output.layout, part(self.lookup.layout, (0, 2)))
        pieces = self.mesh.all_gather(dx_RC.contiguous(), self.line, "embedding")
        by_part = dict(zip((self.kept[rank] for rank in self.line), pieces, strict=True))
        return torch.cat([by_part[at] for at in range(self.parts)])


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
        return rows.sum(token_VC[place_L] * mine_L[:, None])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """The table's gradient is summed over the ranks that look up other rows in it."""
        place_L, mine_L = ctx.saved_tensors
        dx_LC = ctx.rows.gather(gradients[0])
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
