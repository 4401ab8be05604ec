"""Attention by matrix products: some groups and queries at a time, with the keys that these see.

So keys of the future cost little, no `[T, S]` matrix of all shares is there at once, and that of a
chunk stays in a CPU's cache. Backward computes the shares of each chunk again. In half precision
all is in float32.
Legend: N = B G groups of all sequences, Q query heads of each, T positions of queries, S of the
keys that a chunk sees, D elements of one head; R = Q T rows of a chunk.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache

import torch

from primepar.distributed.kernels.attention_part import AttentionBlock, Three
from primepar.distributed.kernels.common import Line, counted, kept_elements, widened
from primepar.models.dropout import Draw

_SCORES = {"cpu": 1 << 17}
"""Type of device -> scores of a chunk of several groups at most."""


def attend_in_chunks(part: AttentionBlock, draw: Draw | None, operands: Three) -> torch.Tensor:
    """The heads of all queries, `[B, A, T, D]`."""
    attention = _Attention.of(part, draw, operands)
    o_NQTD = torch.empty_like(attention.q)
    for chunk in attention.chunks:
        p_NRS, kept_NRS = attention.shares(chunk)
        if kept_NRS is not None:
            p_NRS *= kept_NRS
        into = chunk.queries(o_NQTD)
        into.copy_(torch.bmm(p_NRS, chunk.keys(attention.v)).view_as(into))
    if attention.dropped:
        o_NQTD /= 1 - attention.dropped
    return o_NQTD.view(operands[0].shape).to(operands[0].dtype)


def gradients_in_chunks(
    part: AttentionBlock, draw: Draw | None, operands: Three, do_BATD: torch.Tensor
) -> Three:
    """Gradients of queries, keys and values, of that of the heads."""
    attention = _Attention.of(part, draw, operands)
    do_NQTD = widened(do_BATD).reshape(attention.q.shape)
    if attention.dropped:
        do_NQTD = do_NQTD / (1 - attention.dropped)
    dq_NQTD = torch.empty_like(attention.q)
    dk_NSD, dv_NSD = torch.zeros_like(attention.k), torch.zeros_like(attention.v)
    for chunk in attention.chunks:
        do_NRD, q_NRD = chunk.rows(do_NQTD), chunk.rows(attention.q)
        ds_NRS = attention.score_gradients(chunk, do_NRD, chunk.keys(dv_NSD))
        into = chunk.queries(dq_NQTD)
        into.copy_(torch.bmm(ds_NRS, chunk.keys(attention.k)).view_as(into))
        chunk.keys(dk_NSD).baddbmm_(ds_NRS.transpose(1, 2), q_NRD)
    dq_NQTD *= attention.scale
    dq, dk, dv = (
        gradient.view(x.shape).to(x.dtype)
        for gradient, x in zip((dq_NQTD, dk_NSD, dv_NSD), operands, strict=True)
    )
    return dq, dk, dv


@dataclass(frozen=True)
class _Chunk:
    """Some groups and queries, and the keys that the last of the queries sees."""

    groups: slice
    first: int
    end: int
    seen: int

    def queries(self, x_NQTD: torch.Tensor) -> torch.Tensor:
        return x_NQTD[self.groups, :, self.first : self.end]

    def rows(self, x_NQTD: torch.Tensor) -> torch.Tensor:
        """The queries of each group as the rows of a matrix, `[N, R, D]`."""
        return self.queries(x_NQTD).flatten(1, 2)

    def keys(self, x_NSD: torch.Tensor) -> torch.Tensor:
        return x_NSD[self.groups, : self.seen]


@dataclass(frozen=True)
class _Attention:
    """Operands by groups, of which the queries `q` are times `scale`; room for a chunk's scores."""

    part: AttentionBlock
    dropped: float
    draw: Draw | None
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    scale: float

    @classmethod
    def of(cls, part: AttentionBlock, draw: Draw | None, operands: Three) -> _Attention:
        q_BATD, k_BGSD, v_BGSD = map(widened, operands)
        B, G, S, D = k_BGSD.shape
        q_NQTD = q_BATD.new_empty(B * G, part.queries, q_BATD.shape[2], D)
        torch.mul(q_BATD, D**-0.5, out=q_NQTD.view(q_BATD.shape))
        k_NSD, v_NSD = (each.reshape(B * G, S, D) for each in (k_BGSD, v_BGSD))
        dropped = 0.0 if draw is None else part.config.attention_dropout
        return cls(part, dropped, draw, q_NQTD, k_NSD, v_NSD, D**-0.5)

    @cached_property
    def _sizes(self) -> tuple[int, int]:
        """Groups and queries of a chunk."""
        _, Q, T, _ = self.q.shape
        scores = _SCORES.get(self.q.device.type, 1 << 26)
        queries = min(T, max(64, min(256, T // 8)))
        groups = scores // (Q * queries * self.k.shape[1])
        return max(1, min(len(self.q), groups)), queries

    @cached_property
    def _room(self) -> list[torch.Tensor]:
        """What the scores of every chunk are computed in."""
        groups, queries = self._sizes
        size = groups * self.part.queries * queries * self.k.shape[1]
        return [self.q.new_empty(size) for _ in range(3)]

    @property
    def chunks(self) -> Iterator[_Chunk]:
        (groups, queries), (N, _, T, _) = self._sizes, self.q.shape
        for group in range(0, N, groups):
            for first in range(0, T, queries):
                end = min(first + queries, T)
                seen = self.part.at[0] + end
                yield _Chunk(slice(group, min(group + groups, N)), first, end, seen)

    def shares(self, chunk: _Chunk) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The softmax of a chunk's scores, `[N, R, S]`, and what dropout keeps of it."""
        q_NRD, k_NSD, T = chunk.rows(self.q), chunk.keys(self.k), chunk.end - chunk.first
        s_NRS, p_NRS, _ = self._rooms(chunk, q_NRD)
        torch.bmm(q_NRD, k_NSD.transpose(1, 2), out=s_NRS)
        s_NQTS = s_NRS.view(len(q_NRD), -1, T, chunk.seen)
        if self.part.config.positions == "alibi":
            # The distance from the last query: the softmax cancels what a whole row has more.
            ago_S = counted((1 - chunk.seen, 1), s_NRS.device).to(s_NRS.dtype)
            s_NQTS.addcmul_(self._slopes[chunk.groups], ago_S)
        s_NQTS[..., chunk.seen - T :] += future(T, s_NRS.dtype, s_NRS.device)
        torch.softmax(s_NRS, 2, out=p_NRS)
        return p_NRS, self._kept(chunk, p_NRS) if self.dropped else None

    def score_gradients(
        self, chunk: _Chunk, do_NRD: torch.Tensor, dv_NSD: torch.Tensor
    ) -> torch.Tensor:
        """Gradient of a chunk's scores, `[N, R, S]`; that of its values is added to `dv_NSD`."""
        p_NRS, kept_NRS = self.shares(chunk)
        used_NRS, _, dp_NRS = self._rooms(chunk, do_NRD)
        torch.bmm(do_NRD, chunk.keys(self.v).transpose(1, 2), out=dp_NRS)
        if kept_NRS is not None:
            torch.mul(p_NRS, kept_NRS, out=used_NRS)
            dp_NRS *= kept_NRS
        dv_NSD.baddbmm_((p_NRS if kept_NRS is None else used_NRS).transpose(1, 2), do_NRD)
        along_NR1 = torch.mul(dp_NRS, p_NRS, out=used_NRS).sum(2, keepdim=True)
        return dp_NRS.sub_(along_NR1).mul_(p_NRS)

    def _rooms(self, chunk: _Chunk, rows_NRD: torch.Tensor) -> list[torch.Tensor]:
        shape = len(rows_NRD), rows_NRD.shape[1], chunk.seen
        return [room[: shape[0] * shape[1] * shape[2]].view(shape) for room in self._room]

    @cached_property
    def _slopes(self) -> torch.Tensor:
        """Of ALiBi, `[N, Q, 1, 1]`."""
        part, like = self.part, self.q
        slope_A = slopes(part.config.heads, part.head_numbers, like.dtype, like.device)
        return slope_A.repeat(len(like) // part.groups).view(len(like), -1, 1, 1)

    @cached_property
    def _lines(self) -> torch.Tensor:
        """Heads of all sequences by their numbers in the step, `[N, Q, 1]`."""
        part, device = self.part, self.q.device
        sequence = part.rows[0] // part.positions
        b_B = counted((sequence, sequence + len(self.q) // part.groups), device)
        line_BA = b_B[:, None] * part.config.heads + counted(part.head_numbers, device)
        return line_BA.view(len(self.q), -1, 1)

    def _kept(self, chunk: _Chunk, like_NRS: torch.Tensor) -> torch.Tensor:
        assert self.draw is not None
        part, device, first = self.part, self.q.device, self.part.at[0]
        at_T = counted((first + chunk.first, first + chunk.end), device)
        row_NQT = self._lines[chunk.groups] * part.positions + at_T
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
    """Minus infinity where one of the last keys is later than the query, elsewhere zero."""
    return torch.full((queries, queries), -torch.inf, dtype=dtype, device=device).triu_(1)


@lru_cache(maxsize=64)
def slopes(heads: int, mine: Line, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Slopes of some of so many heads, `[A]`."""
    return torch.tensor(alibi_slopes(heads)[slice(*mine)], dtype=dtype, device=device)


def alibi_slopes(heads: int) -> tuple[float, ...]:
    """Slope of every head (Press et al., arXiv 2108.12409), as BLOOM was trained with.

    Powers of 2^(-8 / n) for n the largest power of two up to the heads, then odd ones of its root.
    """
    whole = 1 << heads.bit_length() - 1
    base = 2.0 ** (-8 / whole)
    more = range(1, 2 * (heads - whole), 2)
    return (*(base**at for at in range(1, whole + 1)), *(base ** (at / 2) for at in more))
