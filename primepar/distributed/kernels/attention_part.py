"""Splits a block of qkv columns into queries, keys and values of its heads, and back.

A block of gathered keys and values has for each group its rotated key and its value.
Legend: B sequences, T positions of the block's queries in each, S positions of keys, G key/value
heads, Q query heads of each, A = G Q heads, D elements of one head, R = B T rows of a block, C
columns; X the heads of a group, Q + 2 of them: its queries, its key, its value.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch

from primepar.distributed.kernels.common import Line, counted
from primepar.models import ModelConfig
from primepar.operators import Site

Three = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class AttentionBlock:
    """The queries and groups that a block of the attention `name` has.

    Its rows are those of full sequences with `positions` tokens each, or a part of one sequence.
    """

    config: ModelConfig
    name: str
    positions: int
    rows: Line
    columns: Line

    @classmethod
    def of(cls, site: Site) -> AttentionBlock:
        """Return the part of the qkv columns that are the first operand of the phase."""
        rows, columns = site.reads[0]
        return cls(site.step.model, site.name, site.step.positions, rows, columns)

    @property
    def query_positions(self) -> Line:
        """Positions of the queries."""
        first = self.rows[0] % self.positions
        return first, min(first + self.rows[1] - self.rows[0], self.positions)

    @property
    def queries(self) -> int:
        """Query heads of one group."""
        return self.config.heads // self.config.kv_heads

    @property
    def groups(self) -> int:
        """Key/value heads of the block."""
        return (self.columns[1] - self.columns[0]) // self.config.group_columns

    @property
    def head_numbers(self) -> Line:
        """First head of the block among those of the model, and the end."""
        group = self.config.group_columns
        first, end = (column // group * self.queries for column in self.columns)
        return first, end

    def turned(self, x_RC: torch.Tensor) -> torch.Tensor:
        """Return the qkv columns, `[B, T, G, X, D]`; rotary queries and keys are rotated."""
        first, end = self.query_positions
        D = self.config.head_dim
        x_BTGXD = x_RC.reshape(-1, end - first, self.groups, self.queries + 2, D)
        if self.config.positions != "rotary":
            return x_BTGXD
        turned = torch.empty_like(x_BTGXD)
        turned[:, :, :, -1] = x_BTGXD[:, :, :, -1]
        self._turn(x_BTGXD, turned, 1)
        return turned

    def _turn(self, x_BTGXD: torch.Tensor, into: torch.Tensor, sign: int) -> None:
        """Rotate every query and key by the angles of its position; `sign` -1 rotates back."""
        D, theta = self.config.head_dim, self.config.rope_theta
        cos, sin = rotation(self.query_positions, D, theta, x_BTGXD.dtype, x_BTGXD.device)
        first, second = x_BTGXD[:, :, :, :-1].chunk(2, dim=-1)
        to_first, to_second = into[:, :, :, :-1].chunk(2, dim=-1)
        turned_first = (first * cos).addcmul_(second, sin, value=-sign)
        torch.mul(second, cos, out=to_second).addcmul_(first, sin, value=sign)
        to_first.copy_(turned_first)

    def operands(self, x_RC: torch.Tensor, kv_SC: torch.Tensor | None) -> Three:
        """Return queries `[B, A, T, D]`, and the keys and values for them, `[B, G, S, D]`."""
        x_BTGXD, queries = self.turned(x_RC), self.queries
        q_BATD = x_BTGXD[:, :, :, :queries].flatten(2, 3).transpose(1, 2)
        if kv_SC is None:
            k_BTGD, v_BTGD = x_BTGXD[:, :, :, queries], x_BTGXD[:, :, :, queries + 1]
            return q_BATD, k_BTGD.transpose(1, 2), v_BTGD.transpose(1, 2)
        end = self.query_positions[1]
        k_BGSD, v_BGSD = (x[:, :, :end] for x in self.heads(kv_SC, self.positions))
        return q_BATD, k_BGSD, v_BGSD

    def heads(
        self, kv_RC: torch.Tensor, positions: int | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return keys and values by head, `[B, G, T, D]`; T is `positions`, or the block's."""
        first, end = self.query_positions
        size = positions or end - first
        kv_BTG2D = kv_RC.reshape(-1, size, self.groups, 2, self.config.head_dim)
        k_BGTD, v_BGTD = kv_BTG2D.permute(3, 0, 2, 1, 4)
        return k_BGTD, v_BGTD

    def gather(
        self,
        into_RC: torch.Tensor,
        dq_BATD: torch.Tensor,
        dk_BGTD: torch.Tensor,
        dv_BGTD: torch.Tensor,
    ) -> None:
        """Write the gradient of the columns, `[R, C]`, from those of the rotated heads."""
        B, _, T, D = dq_BATD.shape
        dx_BTGXD = into_RC.view(B, T, self.groups, self.queries + 2, D)
        dq_BTAD, dk_BTGD, dv_BTGD = (x.transpose(1, 2) for x in (dq_BATD, dk_BGTD, dv_BGTD))
        dx_BTGXD[:, :, :, : self.queries] = dq_BTAD.view(B, T, self.groups, self.queries, D)
        dx_BTGXD[:, :, :, -2], dx_BTGXD[:, :, :, -1] = dk_BTGD, dv_BTGD
        if self.config.positions == "rotary":
            self._turn(dx_BTGXD, dx_BTGXD, -1)


@lru_cache(maxsize=64)
def rotation(
    positions: Line, head_dim: int, theta: float, dtype: torch.dtype, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return cosine and sine, `[T, 1, 1, D / 2]`, of the angle of every pair (i, i + D / 2).

    Su et al., arXiv 2104.09864, in the order of elements of Llama's weights.
    """
    even = torch.arange(0, head_dim, 2, device=device, dtype=torch.float64)
    angle = counted(positions, device)[:, None, None, None] * theta ** (-even / head_dim)
    return angle.cos().to(dtype), angle.sin().to(dtype)
