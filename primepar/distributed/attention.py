"""Causal attention on whole groups of heads and whole sequences: nothing is sent.

Legend: B sequences, T positions, G key/value heads, Q query heads of each, A = G Q heads, all of
this rank; S positions again, of keys; D elements of one head.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch.nn import functional

from primepar.distributed.stream import Stream
from primepar.models import ModelConfig
from primepar.models.dropout import Draw


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
        """`[B T, G (Q + 2) D]` to `[B T, A D]`; with a draw, probabilities are dropped."""
        D, queries = self.config.head_dim, self.heads // self.groups
        qkv_BTGXD = qkv_RC.view(-1, positions, self.groups, queries + 2, D)
        q_BTGQD, k_BTGD, v_BTGD = (
            qkv_BTGXD[:, :, :, :queries],
            qkv_BTGXD[:, :, :, queries],
            qkv_BTGXD[:, :, :, queries + 1],
        )
        q_BATD = q_BTGQD.flatten(2, 3).transpose(1, 2)
        k_BATD = _each(k_BTGD.transpose(1, 2), queries)
        v_BATD = _each(v_BTGD.transpose(1, 2), queries)
        if self.config.positions == "rotary":
            turn = rotation(positions, D, self.config.rope_theta, qkv_RC.device)
            q_BATD, k_BATD = rotated(q_BATD, turn), rotated(k_BATD, turn)
        o_BATD = self._attend(q_BATD, k_BATD, v_BATD, draw)
        return o_BATD.transpose(1, 2).reshape(len(qkv_RC), -1)

    def _attend(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, draw: Draw | None
    ) -> torch.Tensor:
        bias_ATS = self._bias(q)
        if draw is None or not self.config.attention_dropout:
            causal = bias_ATS is None
            return functional.scaled_dot_product_attention(q, k, v, bias_ATS, is_causal=causal)
        positions = q.shape[-2]
        scores_BATS = q @ k.transpose(-1, -2) * self.config.head_dim**-0.5
        if bias_ATS is None:
            bias_ATS = _future(positions, q)
        probabilities_BATS = (scores_BATS + bias_ATS).softmax(-1)
        keeps = 1 - self.config.attention_dropout
        kept_BATS = draw.kept(self.config.attention_dropout, self.name, self._elements(q))
        o_BATD: torch.Tensor = (probabilities_BATS * kept_BATS / keeps) @ v
        return o_BATD

    def _bias(self, q: torch.Tensor) -> torch.Tensor | None:
        """ALiBi, minus infinity where a key is later than the query; None without ALiBi."""
        if self.config.positions != "alibi":
            return None
        first, positions = self.stream.block[1] * self.heads, q.shape[-2]
        slopes = alibi_slopes(self.config.heads)[first : first + self.heads]
        slope_A11 = torch.tensor(slopes, device=q.device, dtype=torch.float64)[:, None, None]
        at_T = torch.arange(positions, device=q.device)
        ago_TS = (at_T[:, None] - at_T).clamp(min=0)
        return (-slope_A11 * ago_TS).to(q.dtype) + _future(positions, q)

    def _elements(self, q: torch.Tensor) -> torch.Tensor:
        """Index of this rank's probabilities among all, `[B, A, T, S]`."""
        sequences, heads, T, _ = q.shape
        row, column = self.stream.block
        b_B = torch.arange(row * sequences, (row + 1) * sequences, device=q.device)
        a_A = torch.arange(column * heads, (column + 1) * heads, device=q.device)
        line_BA = b_B[:, None] * self.config.heads + a_A
        at_TS = torch.arange(T * T, device=q.device).view(T, T)
        return line_BA[:, :, None, None] * (T * T) + at_TS


def _each(heads_BGTD: torch.Tensor, queries: int) -> torch.Tensor:
    """Every key or value head once for each of its query heads."""
    return heads_BGTD if queries == 1 else heads_BGTD.repeat_interleave(queries, dim=1)


def _future(positions: int, like: torch.Tensor) -> torch.Tensor:
    return like.new_full((positions, positions), -torch.inf).triu(1)


def rotation(
    positions: int, head_dim: int, theta: float, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosine and sine, `[T, D / 2]`, of the angle of every pair (i, i + D / 2) at every position.

    Su et al., arXiv 2104.09864, in the order of elements that Llama's weights have.
    """
    even = torch.arange(0, head_dim, 2, device=device, dtype=torch.float64)
    at_T = torch.arange(positions, device=device, dtype=torch.float64)
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
