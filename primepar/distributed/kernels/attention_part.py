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
        """Return queries `[B, G, Q, T, D]`, and their keys and values, `[B, G, S, D]`."""
        x_BTGXD, queries = self.turned(x_RC), self.queries
        q_BGQTD = x_BTGXD[:, :, :, :queries].permute(0, 2, 3, 1, 4)
        if kv_SC is None:
            k_BTGD, v_BTGD = x_BTGXD[:, :, :, queries], x_BTGXD[:, :, :, queries + 1]
            return q_BGQTD, k_BTGD.transpose(1, 2), v_BTGD.transpose(1, 2)
        end = self.query_positions[1]
        k_BGSD, v_BGSD = (x[:, :, :end] for x in self.heads(kv_SC, self.positions))
        return q_BGQTD, k_BGSD, v_BGSD

    def heads(
        self, kv_RC: torch.Tensor, positions: int | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return keys and values by head, `[B, G, T, D]`; T is `positions`, or the block's."""
        first, end = self.query_positions
        size = positions or end - first
        kv_BTG2D = kv_RC.reshape(-1, size, self.groups, 2, self.config.head_dim)
        k_BGTD, v_BGTD = kv_BTG2D.permute(3, 0, 2, 1, 4)
        return k_BGTD, v_BGTD

    def by_group(self, o_RC: torch.Tensor) -> torch.Tensor:
        """Return the concatenated heads, `[R, A D]`, as `[B, G, Q, T, D]`."""
        first, end = self.query_positions
        o_BTGQD = o_RC.view(-1, end - first, self.groups, self.queries, self.config.head_dim)
        return o_BTGQD.permute(0, 2, 3, 1, 4)

    def split(self, dx_RC: torch.Tensor) -> Three:
        """Return views of a block of columns, in the shapes of the operands."""
        first, end = self.query_positions
        shape = -1, end - first, self.groups, self.queries + 2, self.config.head_dim
        dx_BGXTD = dx_RC.view(shape).permute(0, 2, 3, 1, 4)
        return dx_BGXTD[:, :, : self.queries], dx_BGXTD[:, :, -2], dx_BGXTD[:, :, -1]

    def turn_back(self, dx_RC: torch.Tensor) -> None:
        """Change the gradients of rotated queries and keys to those before the rotation."""
        if self.config.positions == "rotary":
            first, end = self.query_positions
            shape = -1, end - first, self.groups, self.queries + 2, self.config.head_dim
            dx_BTGXD = dx_RC.view(shape)
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
