"""Causal attention on groups of heads, on full sequences or on a part of one sequence.

A block of qkv columns has for each group its queries, rotated if the model is rotary, its key and
its value; a block of gathered keys and values has the rotated key and the value. If a block has a
part of a sequence, the program all-gathers the keys and values, and reduce-scatters their
gradients. Backward recomputes the softmax.

Where torch has no fused function, or a slower one, attention is computed by matrix products, in
chunks of groups and queries, with the keys that they attend to. So masked keys cost little, no full
`[T, S]` matrix of weights is stored, and the matrix of a chunk stays in a CPU's cache. Operands and
results are views of the blocks, so that only a chunk has memory of its own. In half precision all
computation of a chunk is in float32.

Legend: B sequences, T positions of the block's queries in each, S positions of the keys that a
block or a chunk sees, G key/value heads, N groups of a chunk, Q query heads of each, A = G Q heads,
D elements of one head, X the heads of a group, Q + 2 of them, C columns; R rows, B T of a block and
Q T of a chunk.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

import torch
from torch.nn import functional

from primepar.distributed.kernels.common import Line, counted, kept_elements, widened, working_dtype
from primepar.models import ModelConfig
from primepar.models.dropout import Draw
from primepar.operators import Site, StepInputs

Three = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
_SCORES = {"cpu": 1 << 16}
"""Device type -> largest number of scores in a chunk of several groups."""
Group = tuple[slice | int, slice | int]
"""Some sequences of one group, or some groups of one sequence."""


class Gradients(NamedTuple):
    """Where the gradients of queries, keys and values are written; None: they are not wanted.

    They are views `[B, G, Q, T, D]` and `[B, G, S, D]`, and may have the memory of the operands.
    """

    q: torch.Tensor | None
    k: torch.Tensor | None
    v: torch.Tensor | None


def keys(site: Site, inputs: StepInputs, into_RC: torch.Tensor, x_RC: torch.Tensor) -> None:
    """Write keys and values of the block's rows, `[R, G 2 D]`."""
    part = AttentionBlock.of(site)
    kv_BTG2D = part.turned(x_RC)[:, :, :, part.queries :]
    into_RC.view(kv_BTG2D.shape).copy_(kv_BTG2D)


def forward(
    site: Site,
    inputs: StepInputs,
    into_RC: torch.Tensor,
    x_RC: torch.Tensor,
    kv_SC: torch.Tensor | None = None,
) -> None:
    """Write the heads, concatenated, `[R, A D]`; `kv_SC`: keys and values of full sequences."""
    part = AttentionBlock.of(site)
    operands = part.operands(x_RC, kv_SC)
    into_BGQTD = part.by_group(into_RC)
    if _plain(part, inputs.draw):
        into_BGQTD.copy_(_attend(*operands).view(into_BGQTD.shape))
    else:
        attend_in_chunks(part, inputs.draw, operands, into_BGQTD)


def backward(
    site: Site,
    inputs: StepInputs,
    into_RC: torch.Tensor,
    x_RC: torch.Tensor,
    *others: torch.Tensor,
) -> None:
    """Write the gradient of the columns; `into_RC` may be `x_RC`.

    `others` is dy for full sequences; for a part of a sequence KV, dy and the part's summed dKV.
    """
    part = AttentionBlock.of(site)
    dq_BGQTD, dk_BGTD, dv_BGTD = part.split(into_RC)
    if len(others) == 1:
        operands = part.operands(x_RC, None)
        into = Gradients(dq_BGQTD, dk_BGTD, dv_BGTD)
        _write_gradients(part, inputs.draw, operands, *others, into)
    else:
        kv_SC, dy_RC, dkv_RC = others
        operands = part.operands(x_RC, kv_SC)
        _write_gradients(part, inputs.draw, operands, dy_RC, Gradients(dq_BGQTD, None, None))
        for into_BGTD, sum_BGTD in zip((dk_BGTD, dv_BGTD), part.heads(dkv_RC), strict=True):
            into_BGTD.copy_(sum_BGTD)
    part.turn_back(into_RC)


def backward_keys(
    site: Site,
    inputs: StepInputs,
    into_SC: torch.Tensor,
    x_RC: torch.Tensor,
    kv_SC: torch.Tensor,
    dy_RC: torch.Tensor,
) -> None:
    """Write the terms of the block's queries in the gradients of all their keys and values."""
    part = AttentionBlock.of(site)
    end = part.query_positions[1]
    dk_BGSD, dv_BGSD = part.heads(into_SC, part.positions)
    into = Gradients(None, dk_BGSD[:, :, :end], dv_BGSD[:, :, :end])
    _write_gradients(part, inputs.draw, part.operands(x_RC, kv_SC), dy_RC, into)
    dk_BGSD[:, :, end:] = dv_BGSD[:, :, end:] = 0


def _plain(part: AttentionBlock, draw: Draw | None) -> bool:
    """Return whether torch has a fused function: causal, without ALiBi and dropout."""
    drops = draw is not None and part.config.attention_dropout > 0
    return part.query_positions[0] == 0 and part.config.positions != "alibi" and not drops


def _attend(q_BGQTD: torch.Tensor, k_BGTD: torch.Tensor, v_BGTD: torch.Tensor) -> torch.Tensor:
    """Return the heads of all queries of full sequences, `[B, A, T, D]`."""
    queries = q_BGQTD.shape[2]
    if queries > 1:
        k_BGTD, v_BGTD = (x.repeat_interleave(queries, dim=1) for x in (k_BGTD, v_BGTD))
    q_BATD = q_BGQTD.flatten(1, 2)
    return functional.scaled_dot_product_attention(q_BATD, k_BGTD, v_BGTD, is_causal=True)


def _write_gradients(
    part: AttentionBlock,
    draw: Draw | None,
    operands: Three,
    dy_RC: torch.Tensor,
    into: Gradients,
) -> None:
    """Write the gradients of queries, keys and values that are wanted.

    On a CPU, in single and double precision, chunks take less time than torch's forward and
    backward.
    """
    do_BGQTD, q_BGQTD = part.by_group(dy_RC), operands[0]
    single = q_BGQTD.dtype in (torch.float32, torch.float64)
    if not _plain(part, draw) or (q_BGQTD.device.type == "cpu" and single):
        gradients_in_chunks(part, draw, operands, do_BGQTD, into)
        return
    # Not `detach`: its version is that of all memory that the block is a part of, and a receive
    # into another part of it would look to autograd like a change of the operand.
    leaves = [operand.data.requires_grad_() for operand in operands]
    with torch.enable_grad():
        o_BATD = _attend(*leaves)
    gradients = torch.autograd.grad(o_BATD, leaves, do_BGQTD.flatten(1, 2))
    for whole, gradient in zip(into, gradients, strict=True):
        if whole is not None:
            whole.copy_(gradient)


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


def attend_in_chunks(
    part: AttentionBlock, draw: Draw | None, operands: Three, into_BGQTD: torch.Tensor
) -> None:
    """Write the heads of all queries, `[B, G, Q, T, D]`."""
    attention = _Attention.of(part, draw, operands)
    for group in attention.groups:
        v_NSD = widened(attention.v[group])
        for chunk in attention.chunks(group):
            p_NRS, kept_NRS = attention.shares(chunk)
            if kept_NRS is not None:
                p_NRS *= kept_NRS
            into_NQTD = chunk.queries(into_BGQTD)
            _multiply(p_NRS, v_NSD[:, : chunk.seen], into_NQTD, attention.kept_scale)


def gradients_in_chunks(
    part: AttentionBlock,
    draw: Draw | None,
    operands: Three,
    do_BGQTD: torch.Tensor,
    into: Gradients,
) -> None:
    """Write the gradients of queries, keys and values from the gradient of the heads."""
    attention = _Attention.of(part, draw, operands)
    for group in attention.groups:
        k_NSD = widened(attention.k[group])
        dk_NSD, dv_NSD = (room[: len(k_NSD)].zero_() for room in attention.sums)
        for chunk in attention.chunks(group):
            q_NRD, do_NRD = chunk.rows(attention.q), chunk.rows(do_BGQTD)
            ds_NRS = attention.score_gradients(chunk, do_NRD, dv_NSD[:, : chunk.seen])
            if into.k is not None:
                _add_product(dk_NSD[:, : chunk.seen], ds_NRS, q_NRD, attention.scale)
            if into.q is not None:
                # The queries of a chunk are not read any more: their memory may be the result's.
                into_NQTD = chunk.queries(into.q)
                _multiply(ds_NRS, k_NSD[:, : chunk.seen], into_NQTD, attention.scale)
        for whole_BGSD, gradient_NSD in ((into.k, dk_NSD), (into.v, dv_NSD)):
            if whole_BGSD is not None:
                whole_BGSD[group].copy_(gradient_NSD)


def _multiply(
    left_NRS: torch.Tensor, right_NSD: torch.Tensor, into_NQTD: torch.Tensor, scale: float
) -> None:
    """Write `scale * left @ right`, straight into the result if it has one query head a group."""
    if into_NQTD.shape[1] == 1 and into_NQTD.dtype == left_NRS.dtype:
        into_NQTD[:, 0].baddbmm_(left_NRS, right_NSD, beta=0, alpha=scale)
    else:
        into_NQTD.copy_(torch.bmm(left_NRS, right_NSD).mul_(scale).view(into_NQTD.shape))


def _add_product(
    into_NSD: torch.Tensor, left_NRS: torch.Tensor, right_NRD: torch.Tensor, scale: float
) -> None:
    into_NSD.baddbmm_(left_NRS.transpose(1, 2), right_NRD, alpha=scale)


@dataclass(frozen=True)
class _Chunk:
    """Some groups and queries, and the keys that the last of the queries attends to."""

    group: Group
    first: int
    end: int
    seen: int

    def queries(self, x_BGQTD: torch.Tensor) -> torch.Tensor:
        return x_BGQTD[self.group][:, :, self.first : self.end]

    def rows(self, x_BGQTD: torch.Tensor) -> torch.Tensor:
        """Return the queries of each group as the rows of a matrix, `[N, R, D]`."""
        return widened(self.queries(x_BGQTD).flatten(1, 2))


@dataclass(frozen=True)
class _Attention:
    """Operands by groups, and workspace for the scores of a chunk."""

    part: AttentionBlock
    dropped: float
    draw: Draw | None
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    scale: float

    @classmethod
    def of(cls, part: AttentionBlock, draw: Draw | None, operands: Three) -> _Attention:
        dropped = 0.0 if draw is None else part.config.attention_dropout
        return cls(part, dropped, draw, *operands, scale=part.config.head_dim**-0.5)

    @property
    def kept_scale(self) -> float:
        """What dropout multiplies the kept weights by."""
        return 1 / (1 - self.dropped)

    @cached_property
    def _sizes(self) -> tuple[int, int]:
        """Groups and queries of a chunk."""
        B, G, Q, T, _ = self.q.shape
        scores = _SCORES.get(self.q.device.type, 1 << 26)
        queries = min(T, max(128, min(256, T // 8)))
        groups = scores // (Q * queries * self.k.shape[2])
        return max(1, min(max(B, G), groups)), queries

    @cached_property
    def _room(self) -> list[torch.Tensor]:
        """Workspace for the scores of a chunk, which all chunks share."""
        groups, queries = self._sizes
        size = groups * self.part.queries * queries * self.k.shape[2]
        rooms = 3 if self.dropped else 2
        return [self.q.new_empty(size, dtype=self._dtype) for _ in range(rooms)]

    @cached_property
    def sums(self) -> list[torch.Tensor]:
        """Workspace for the gradients of keys and values of a chunk, `[N, S, D]`."""
        shape = self._sizes[0], *self.k.shape[2:]
        return [self.q.new_empty(shape, dtype=self._dtype) for _ in range(2)]

    @property
    def _dtype(self) -> torch.dtype:
        return working_dtype(self.q.dtype)

    @property
    def groups(self) -> Iterator[Group]:
        """The groups of each chunk, in one dim: then a chunk of a block has one stride by group."""
        (B, G), count = self.k.shape[:2], self._sizes[0]
        for index in range(min(B, G)):
            for start in range(0, max(B, G), count):
                some = slice(start, start + count)
                yield (some, index) if G <= B else (index, some)

    def chunks(self, group: Group) -> Iterator[_Chunk]:
        """The chunks of some groups."""
        T, queries = self.q.shape[3], self._sizes[1]
        for first in range(0, T, queries):
            end = min(first + queries, T)
            yield _Chunk(group, first, end, self.part.query_positions[0] + end)

    def shares(self, chunk: _Chunk) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return the softmax of a chunk's scores, `[N, R, S]`, and its dropout mask if any."""
        q_NRD, k_NSD = chunk.rows(self.q), widened(self.k[chunk.group][:, : chunk.seen])
        T, s_NRS = chunk.end - chunk.first, self._rooms(chunk, q_NRD)[0]
        s_NRS.baddbmm_(q_NRD, k_NSD.transpose(1, 2), beta=0, alpha=self.scale)
        s_NQTS = s_NRS.view(len(q_NRD), -1, T, chunk.seen)
        if self.part.config.positions == "alibi":
            # The distance from the last query: softmax ignores a constant that a row has more.
            ago_S = counted((1 - chunk.seen, 1), s_NRS.device).to(s_NRS.dtype)
            s_NQTS.addcmul_(self._slopes[chunk.group], ago_S)
        s_NQTS[..., chunk.seen - T :] += future(T, s_NRS.dtype, s_NRS.device)
        torch.softmax(s_NRS, 2, out=s_NRS)
        return s_NRS, self._kept(chunk, s_NRS) if self.dropped else None

    def score_gradients(
        self, chunk: _Chunk, do_NRD: torch.Tensor, dv_NSD: torch.Tensor
    ) -> torch.Tensor:
        """Return the gradient of a chunk's scores, `[N, R, S]`; add that of values to `dv_NSD`."""
        p_NRS, kept_NRS = self.shares(chunk)
        _, dp_NRS, *more = self._rooms(chunk, do_NRD)
        v_NSD, scale = widened(self.v[chunk.group][:, : chunk.seen]), self.kept_scale
        dp_NRS.baddbmm_(do_NRD, v_NSD.transpose(1, 2), beta=0, alpha=scale)
        used_NRS = p_NRS
        if kept_NRS is not None:
            used_NRS = torch.mul(p_NRS, kept_NRS, out=more[0])
            dp_NRS *= kept_NRS
        _add_product(dv_NSD, used_NRS, do_NRD, scale)
        torch._softmax_backward_data(dp_NRS, p_NRS, 2, dp_NRS.dtype, grad_input=dp_NRS)
        return dp_NRS

    def _rooms(self, chunk: _Chunk, rows_NRD: torch.Tensor) -> list[torch.Tensor]:
        shape = len(rows_NRD), rows_NRD.shape[1], chunk.seen
        return [room[: shape[0] * shape[1] * shape[2]].view(shape) for room in self._room]

    @cached_property
    def _slopes(self) -> torch.Tensor:
        """Slopes of ALiBi, `[B, G, Q, 1, 1]`."""
        part, (B, G, Q) = self.part, self.q.shape[:3]
        slope_A = slopes(part.config.heads, part.head_numbers, self._dtype, self.q.device)
        return slope_A.view(G, Q, 1, 1).expand(B, G, Q, 1, 1)

    @cached_property
    def _lines(self) -> torch.Tensor:
        """Numbers of the heads of all sequences within the step, `[B, G, Q, 1]`."""
        part, device = self.part, self.q.device
        sequence = part.rows[0] // part.positions
        b_B = counted((sequence, sequence + len(self.q)), device)
        line_BA = b_B[:, None] * part.config.heads + counted(part.head_numbers, device)
        return line_BA.view(*self.q.shape[:3], 1)

    def _kept(self, chunk: _Chunk, like_NRS: torch.Tensor) -> torch.Tensor:
        assert self.draw is not None
        part, device, first = self.part, self.q.device, self.part.query_positions[0]
        position_T = counted((first + chunk.first, first + chunk.end), device)
        row_NQT = self._lines[chunk.group] * part.positions + position_T
        kept = kept_elements(
            self.draw,
            self.dropped,
            part.name,
            row_NQT.flatten() * part.positions,
            counted((0, chunk.seen), device),
        )
        return kept.view_as(like_NRS)


@lru_cache(maxsize=64)
def future(queries: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return the causal mask `[T, T]` of the last keys: -inf for later keys, else zero."""
    return torch.full((queries, queries), -torch.inf, dtype=dtype, device=device).triu_(1)


@lru_cache(maxsize=64)
def slopes(heads: int, mine: Line, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return the ALiBi slopes of heads `mine`, `[A]`, of a model with `heads` heads."""
    return torch.tensor(alibi_slopes(heads)[slice(*mine)], dtype=dtype, device=device)


def alibi_slopes(heads: int) -> tuple[float, ...]:
    """Return the ALiBi slope of every head (Press et al., arXiv 2108.12409), as in BLOOM.

    They are the powers of 2^(-8 / n), where n is the largest power of two up to the heads, and then
    the odd powers of its square root.
    """
    whole = 1 << heads.bit_length() - 1
    base = 2.0 ** (-8 / whole)
    more = range(1, 2 * (heads - whole), 2)
    return (*(base**power for power in range(1, whole + 1)), *(base ** (odd / 2) for odd in more))
