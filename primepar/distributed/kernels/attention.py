"""Causal attention on groups of heads, and on whole sequences or on parts of one.

Backward computes the forward again. Where a block has a part of a sequence, the program gathers its
keys and values; a block of these has for each group the key, turned, and the value.
Legend: B sequences, T positions of the block's queries in each, S positions of keys, G key/value
heads, Q query heads of each, A = G Q heads, D elements of one head, R = B T rows of a block, C
columns; X the heads of a group, Q + 2 of them: its queries, its key, its value.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch.nn import functional

from primepar.distributed.kernels.common import Line, counted
from primepar.models import ModelConfig
from primepar.models.dropout import Draw
from primepar.operators import Site, StepInputs

Three = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def keys(site: Site, inputs: StepInputs, x_RC: torch.Tensor) -> torch.Tensor:
    """Keys and values of the block's rows, `[R, G 2 D]`."""
    part = Part.of(site)
    x_BTGXD = part.turned(x_RC)
    return x_BTGXD[:, :, :, part.queries :].reshape(len(x_RC), -1)


def forward(
    site: Site, inputs: StepInputs, x_RC: torch.Tensor, kv_SC: torch.Tensor | None = None
) -> torch.Tensor:
    """The heads side by side, `[R, A D]`; `kv_SC` has the keys and values of whole sequences."""
    part = Part.of(site)
    o_BATD = _attend(part, inputs.draw, *part.operands(x_RC, kv_SC))
    return o_BATD.transpose(1, 2).reshape(len(x_RC), -1)


def backward(
    site: Site, inputs: StepInputs, x_RC: torch.Tensor, *others: torch.Tensor
) -> torch.Tensor:
    """Gradient of the columns, of (x, dy) or, of a part of a sequence, (x, KV, dy, own dKV)."""
    part = Part.of(site)
    if len(others) == 1:
        gradients = _gradients(part, inputs.draw, part.operands(x_RC, None), others[0])
        return part.gathered(*gradients)
    kv_SC, dy_RC, dkv_RC = others
    dq_BATD, _, _ = _gradients(part, inputs.draw, part.operands(x_RC, kv_SC), dy_RC)
    dk_BGTD, dv_BGTD = part.heads(dkv_RC)
    return part.gathered(dq_BATD, dk_BGTD, dv_BGTD)


def backward_keys(
    site: Site, inputs: StepInputs, x_RC: torch.Tensor, kv_SC: torch.Tensor, dy_RC: torch.Tensor
) -> torch.Tensor:
    """What the block's queries give to the gradients of all keys and values of their sequences."""
    part = Part.of(site)
    operands = part.operands(x_RC, kv_SC)
    _, dk_BGSD, dv_BGSD = _gradients(part, inputs.draw, operands, dy_RC)
    dkv_BS = dy_RC.new_zeros(len(dk_BGSD), part.positions, part.groups, 2, part.config.head_dim)
    seen = dkv_BS[:, : dk_BGSD.shape[2]]
    seen[:, :, :, 0], seen[:, :, :, 1] = dk_BGSD.transpose(1, 2), dv_BGSD.transpose(1, 2)
    return dkv_BS.view(kv_SC.shape)


@dataclass(frozen=True)
class Part:
    """Which queries and groups of the attention `name` a block has.

    Its rows are those of whole sequences of so many positions, or some of one.
    """

    config: ModelConfig
    name: str
    positions: int
    rows: Line
    columns: Line

    @classmethod
    def of(cls, site: Site) -> Part:
        """The part whose columns of qkv the phase reads first."""
        rows, columns = site.reads[0]
        return cls(site.step.model, site.name, site.step.positions, rows, columns)

    @property
    def at(self) -> Line:
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
        """Which of the model's heads the block has."""
        first, end = (at // self.config.group_columns * self.queries for at in self.columns)
        return first, end

    def turned(self, x_RC: torch.Tensor) -> torch.Tensor:
        """The columns of qkv, `[B, T, G, X, D]`, with queries and keys turned where they are."""
        first, end = self.at
        D = self.config.head_dim
        x_BTGXD = x_RC.reshape(-1, end - first, self.groups, self.queries + 2, D)
        if self.config.positions != "rotary":
            return x_BTGXD
        turned = torch.empty_like(x_BTGXD)
        turned[:, :, :, -1] = x_BTGXD[:, :, :, -1]
        self._turn(x_BTGXD, turned, 1)
        return turned

    def _turn(self, x_BTGXD: torch.Tensor, into: torch.Tensor, sign: int) -> None:
        """Turn every query and key by the angles of its position, or with -1 back."""
        cos, sin = rotation(self.at, self.config.head_dim, self.config.rope_theta, x_BTGXD.dtype,
                            x_BTGXD.device)  # fmt: skip
        first, second = x_BTGXD[:, :, :, :-1].chunk(2, dim=-1)
        to_first, to_second = into[:, :, :, :-1].chunk(2, dim=-1)
        turned_first = (first * cos).addcmul_(second, sin, value=-sign)
        torch.mul(second, cos, out=to_second).addcmul_(first, sin, value=sign)
        to_first.copy_(turned_first)

    def operands(self, x_RC: torch.Tensor, kv_SC: torch.Tensor | None) -> Three:
        """Queries `[B, A, T, D]`, and the keys and values that these may see, `[B, G, S, D]`."""
        x_BTGXD, queries = self.turned(x_RC), self.queries
        q_BATD = x_BTGXD[:, :, :, :queries].flatten(2, 3).transpose(1, 2)
        if kv_SC is None:
            k_BTGD, v_BTGD = x_BTGXD[:, :, :, queries], x_BTGXD[:, :, :, queries + 1]
            return q_BATD, k_BTGD.transpose(1, 2), v_BTGD.transpose(1, 2)
        k_BGSD, v_BGSD = (each[:, :, : self.at[1]] for each in self.heads(kv_SC, self.positions))
        return q_BATD, k_BGSD, v_BGSD

    def heads(
        self, kv_RC: torch.Tensor, positions: int | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values by head, `[B, G, T, D]`, of the block's positions or of so many."""
        size = positions or self.at[1] - self.at[0]
        kv_BTG2D = kv_RC.reshape(-1, size, self.groups, 2, self.config.head_dim)
        k_BGTD, v_BGTD = kv_BTG2D.permute(3, 0, 2, 1, 4)
        return k_BGTD, v_BGTD

    def gathered(
        self, dq_BATD: torch.Tensor, dk_BGTD: torch.Tensor, dv_BGTD: torch.Tensor
    ) -> torch.Tensor:
        """Gradient of the columns, `[R, C]`, of those of the turned heads."""
        B, _, T, D = dq_BATD.shape
        dx_BTGXD = dq_BATD.new_empty(B, T, self.groups, self.queries + 2, D)
        dq_BTAD, dk_BTGD, dv_BTGD = (x.transpose(1, 2) for x in (dq_BATD, dk_BGTD, dv_BGTD))
        dx_BTGXD[:, :, :, : self.queries] = dq_BTAD.view(B, T, self.groups, self.queries, D)
        dx_BTGXD[:, :, :, -2], dx_BTGXD[:, :, :, -1] = dk_BTGD, dv_BTGD
        if self.config.positions == "rotary":
            self._turn(dx_BTGXD, dx_BTGXD, -1)
        return dx_BTGXD.view(B * T, -1)

    def bias(self, like: torch.Tensor) -> torch.Tensor:
        """What is added to the scores of the queries with all keys that any of them sees."""
        heads = self.head_numbers if self.config.positions == "alibi" else None
        return score_bias(self.at, self.config.heads, heads, like.dtype, like.device)

    def kept(self, draw: Draw, sequences: int, device: torch.device) -> torch.Tensor:
        """Which probabilities dropout keeps, `[B, A, T, S]`."""
        first = self.rows[0] // self.positions
        b_B = counted((first, first + sequences), device)
        line_BA = b_B[:, None] * self.config.heads + counted(self.head_numbers, device)
        row_BAT = line_BA[:, :, None] * self.positions + counted(self.at, device)
        at_S = counted((0, self.at[1]), device)
        element_BATS = row_BAT[..., None] * self.positions + at_S
        kept: torch.Tensor = draw.kept(self.config.attention_dropout, self.name, element_BATS)
        return kept


def _attend(
    part: Part, draw: Draw | None, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
) -> torch.Tensor:
    """`[B, A, T, D]` of the queries, keys and values."""
    k, v = (_repeated(each, part.queries) for each in (k, v))
    if draw is None or not part.config.attention_dropout:
        causal = part.config.positions != "alibi" and part.at[0] == 0
        bias = None if causal else part.bias(q)
        return functional.scaled_dot_product_attention(q, k, v, bias, is_causal=causal)
    scores = (q @ k.transpose(-1, -2)).mul_(part.config.head_dim**-0.5).add_(part.bias(q))
    kept = part.kept(draw, len(q), q.device)
    o: torch.Tensor = (scores.softmax(-1) * kept / (1 - part.config.attention_dropout)) @ v
    return o


def _gradients(part: Part, draw: Draw | None, operands: Three, dy_RC: torch.Tensor) -> Three:
    """Gradients of queries, keys and values, computed with the forward again."""
    q, k, v = (each.detach().requires_grad_() for each in operands)
    with torch.enable_grad():
        o = _attend(part, draw, q, k, v)
    do = dy_RC.reshape(len(q), -1, q.shape[1], part.config.head_dim).transpose(1, 2)
    dq, dk, dv = torch.autograd.grad(o, (q, k, v), do)
    return dq, dk, dv


def _repeated(x_BGSD: torch.Tensor, queries: int) -> torch.Tensor:
    """Every key or value head once for each of its query heads."""
    return x_BGSD if queries == 1 else x_BGSD.repeat_interleave(queries, dim=1)


@lru_cache(maxsize=64)
def rotation(
    at: Line, head_dim: int, theta: float, dtype: torch.dtype, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosine and sine, `[T, 1, 1, D / 2]`, of the angle of every pair (i, i + D / 2).

    Su et al., arXiv 2104.09864, in the order of elements that Llama's weights have.
    """
    even = torch.arange(0, head_dim, 2, device=device, dtype=torch.float64)
    angle = counted(at, device)[:, None, None, None] * theta ** (-even / head_dim)
    return angle.cos().to(dtype), angle.sin().to(dtype)


@lru_cache(maxsize=64)
def score_bias(
    at: Line, heads: int, mine: Line | None, dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """Minus infinity where a key is later than the query, elsewhere zero; with `mine` ALiBi.

    `[T, S]`, or `[A, T, S]` of the heads that `mine` counts among so many; keys from 0 to the last
    query.
    """
    ago_TS = counted(at, device)[:, None] - counted((0, at[1]), device)
    future_TS = torch.zeros_like(ago_TS, dtype=dtype).masked_fill(ago_TS < 0, -torch.inf)
    if mine is None:
        return future_TS
    slopes = alibi_slopes(heads)[slice(*mine)]
    slope_A11 = torch.tensor(slopes, device=device, dtype=torch.float64)[:, None, None]
    return (-slope_A11 * ago_TS.clamp(min=0)).to(dtype) + future_TS


@lru_cache(maxsize=8)
def alibi_slopes(heads: int) -> tuple[float, ...]:
    """Slope of every head (Press et al., arXiv 2108.12409), as BLOOM was trained with.

    Powers of 2^(-8 / n) for n the largest power of two up to the heads, then odd ones of its root.
    """
    whole = 1 << heads.bit_length() - 1
    base = 2.0 ** (-8 / whole)
    more = range(1, 2 * (heads - whole), 2)
    return (*(base**at for at in range(1, whole + 1)), *(base ** (at / 2) for at in more))
