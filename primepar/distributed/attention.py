"""Causal attention on groups of heads, and on whole sequences or on parts of one.

A rank with a part of a sequence has its queries, and gathers the keys and values of the others'
rows; backward sums their gradients over the same ranks. With whole sequences nothing is sent.
Legend: B sequences, T positions, G key/value heads, Q query heads of each, A = G Q heads, all of
this rank; S positions of keys, those of whole sequences; D elements of one head.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch.autograd.function import once_differentiable
from torch.nn import functional

from primepar.distributed.mesh import Mesh, Ranks
from primepar.distributed.stream import Stream
from primepar.models import ModelConfig
from primepar.models.dropout import Draw
from primepar.plan import sequence_lines


class PartitionedAttention(torch.nn.Module):
    """Attend within each group of this rank, in the positions of the model's family.

    The columns go group by group: the group's queries, then its key, then its value.
    """

    def __init__(self, stream: Stream, config: ModelConfig, name: str) -> None:
        super().__init__()
        self.stream, self.config, self.name = stream, config, name
        self.heads = config.heads // stream.layout.grid[1]
        self.groups = config.kv_heads // stream.layout.grid[1]

    def forward(self, qkv_RC: torch.Tensor, positions: int, draw: Draw | None) -> torch.Tensor:
        """`[B T, G (Q + 2) D]` to `[B T, A D]`; with a draw, probabilities are dropped.

        A collective call where ranks have parts of sequences of so many positions.
        """
        D, queries = self.config.head_dim, self.heads // self.groups
        first = self.stream.block[0] * len(qkv_RC) % positions
        at_T = torch.arange(first, first + min(len(qkv_RC), positions), device=qkv_RC.device)
        qkv_BTGXD = qkv_RC.view(-1, len(at_T), self.groups, queries + 2, D)
        q_BTGQD, k_BTGD, v_BTGD = (
            qkv_BTGXD[:, :, :, :queries],
            qkv_BTGXD[:, :, :, queries],
            qkv_BTGXD[:, :, :, queries + 1],
        )
        q_BATD, k_BGTD = q_BTGQD.flatten(2, 3).transpose(1, 2), k_BTGD.transpose(1, 2)
        if self.config.positions == "rotary":
            turn = rotation(at_T, D, self.config.rope_theta)
            q_BATD, k_BGTD = rotated(q_BATD, turn), rotated(k_BGTD, turn)
        k_BGSD, v_BGSD = self._every(k_BGTD, v_BTGD.transpose(1, 2), positions)
        o_BATD = self._attend(q_BATD, _each(k_BGSD, queries), _each(v_BGSD, queries), at_T, draw)
        return o_BATD.transpose(1, 2).reshape(len(qkv_RC), -1)

    def _every(
        self, k_BGTD: torch.Tensor, v_BGTD: torch.Tensor, positions: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of whole sequences, of which this rank brings its rows."""
        own = k_BGTD.shape[2]
        if own == positions:
            return k_BGTD, v_BGTD
        gather: Callable[..., torch.Tensor] = _Gather.apply
        kv_T2BGD = torch.stack([k_BGTD, v_BGTD]).movedim(-2, 0).contiguous()
        batch = self.stream.layout.grid[0] * own // positions
        kv_S2BGD = gather(kv_T2BGD, self.stream.mesh, self._line(batch))
        k_BGSD, v_BGSD = kv_S2BGD.movedim(0, -2)
        return k_BGSD, v_BGSD

    def _line(self, batch: int) -> Ranks:
        """Ranks with the parts of this rank's sequence, in their order; groups are made."""
        mesh = self.stream.mesh
        lines = sequence_lines(self.stream.layout, batch)
        mesh.ensure_groups(("world", line) for line in lines)
        return next(line for line in lines if mesh.rank in line)

    def _attend(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        at_T: torch.Tensor,
        draw: Draw | None,
    ) -> torch.Tensor:
        keys, dropped = k.shape[-2], self.config.attention_dropout
        if draw is None or not dropped:
            causal = self.config.positions != "alibi" and len(at_T) == keys
            bias = None if causal else self._bias(q, keys, at_T)
            return functional.scaled_dot_product_attention(q, k, v, bias, is_causal=causal)
        scores_BATS = q @ k.transpose(-1, -2) * self.config.head_dim**-0.5
        probabilities_BATS = (scores_BATS + self._bias(q, keys, at_T)).softmax(-1)
        kept_BATS = draw.kept(dropped, self.name, self._elements(len(q), keys, at_T))
        o_BATD: torch.Tensor = (probabilities_BATS * kept_BATS / (1 - dropped)) @ v
        return o_BATD

    def _bias(self, q: torch.Tensor, keys: int, at_T: torch.Tensor) -> torch.Tensor:
        """Minus infinity where a key is later than the query, elsewhere zero or ALiBi."""
        ago_TS = at_T[:, None] - torch.arange(keys, device=q.device)
        future_TS = torch.zeros_like(ago_TS, dtype=q.dtype).masked_fill(ago_TS < 0, -torch.inf)
        if self.config.positions != "alibi":
            return future_TS
        first = self.stream.block[1] * self.heads
        slopes = alibi_slopes(self.config.heads)[first : first + self.heads]
        slope_A11 = torch.tensor(slopes, device=q.device, dtype=torch.float64)[:, None, None]
        return (-slope_A11 * ago_TS.clamp(min=0)).to(q.dtype) + future_TS

    def _elements(self, sequences: int, positions: int, at_T: torch.Tensor) -> torch.Tensor:
        """Index of this rank's probabilities among all, `[B, A, T, S]`."""
        row, column = self.stream.block
        first = row * sequences * len(at_T) // positions
        b_B = torch.arange(first, first + sequences, device=at_T.device)
        first = column * self.heads
        a_A = torch.arange(first, first + self.heads, device=at_T.device)
        line_BA = b_B[:, None] * self.config.heads + a_A
        at_S = torch.arange(positions, device=at_T.device)
        return (line_BA[:, :, None] * positions + at_T)[..., None] * positions + at_S


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, own_T: torch.Tensor, mesh: Mesh, line: Ranks) -> torch.Tensor:
        """The parts of all ranks of a line, one below the other; they are cut along dim 0."""
        ctx.mesh, ctx.line = mesh, line
        parts = dict(zip(sorted(line), mesh.all_gather(own_T, line, "attention"), strict=True))
        return torch.cat([parts[rank] for rank in line])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """The sum over the line of the gradient of this rank's part."""
        parts = dict(zip(ctx.line, gradients[0].contiguous().chunk(len(ctx.line)), strict=True))
        given = [parts[rank] for rank in sorted(ctx.line)]
        return ctx.mesh.reduce_scatter(given, ctx.line, "attention"), None, None


def _each(heads_BGSD: torch.Tensor, queries: int) -> torch.Tensor:
    """Every key or value head once for each of its query heads."""
    return heads_BGSD if queries == 1 else heads_BGSD.repeat_interleave(queries, dim=1)


def rotation(at_T: torch.Tensor, head_dim: int, theta: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosine and sine, `[T, D / 2]`, of the angle of every pair (i, i + D / 2) at each position.

    Su et al., arXiv 2104.09864, in the order of elements that Llama's weights have.
    """
    even = torch.arange(0, head_dim, 2, device=at_T.device, dtype=torch.float64)
    angle = at_T[:, None] * theta ** (-even / head_dim)
    return angle.cos(), angle.sin()


def rotated(x_BATD: torch.Tensor, turn: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Turn every pair by its angle."""
    cos, sin = (each.to(x_BATD.dtype) for each in turn)
    first, second = x_BATD.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


@lru_cache(maxsize=8)
def alibi_slopes(heads: int) -> tuple[float, ...]:
    """Slope of every head (Press et al., arXiv 2108.12409), as BLOOM was trained with.

    Powers of 2^(-8 / n) for n the largest power of two up to the heads, then odd ones of its root.
    """
    whole = 1 << heads.bit_length() - 1
    base = 2.0 ** (-8 / whole)
    more = range(1, 2 * (heads - whole), 2)
    return (*(base**at for at in range(1, whole + 1)), *(base ** (at / 2) for at in more))
