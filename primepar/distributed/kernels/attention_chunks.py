"""Attention by matrix products, some queries at a time, each with the keys up to the last of them.

So keys of the future cost nothing, and no `[T, S]` matrix of all shares is there at once. Backward
computes the shares of each chunk again. In half precision all is in float32.
Legend: N = B G groups of all sequences, Q query heads of each, T positions of queries, S of the
keys that a chunk sees, D elements of one head; R = Q T rows of a chunk.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import torch

from primepar.distributed.kernels.attention_part import Part, Three
from primepar.distributed.kernels.common import Line, counted, kept_elements, widened
from primepar.models.dropout import Draw

CHUNK = {"cpu": 64}
"""Type of device -> queries of a chunk; elsewhere 1024."""


def attend_in_chunks(part: Part, draw: Draw | None, operands: Three) -> torch.Tensor:
    """The heads of all queries, `[B, A, T, D]`."""
    attention = _Attention.of(part, draw, operands)
    o_NQTD = torch.empty_like(attention.q)
    for first, end in attention.chunks:
        p_NRS, kept_NRS = attention.shares(first, end)
        if kept_NRS is not None:
            p_NRS *= kept_NRS
        o_NRD = torch.bmm(p_NRS, attention.v[:, : p_NRS.shape[2]])
        o_NQTD[:, :, first:end] = o_NRD.view_as(o_NQTD[:, :, first:end])
    if attention.dropped:
        o_NQTD /= 1 - attention.dropped
    return o_NQTD.view(operands[0].shape).to(operands[0].dtype)


def gradients_in_chunks(
    part: Part, draw: Draw | None, operands: Three, do_BATD: torch.Tensor
) -> Three:
    """Gradients of queries, keys and values, of that of the heads."""
    attention = _Attention.of(part, draw, operands)
    do_NQTD = widened(do_BATD).reshape(attention.q.shape)
    if attention.dropped:
        do_NQTD = do_NQTD / (1 - attention.dropped)
    dq_NQTD = torch.empty_like(attention.q)
    dk_NSD, dv_NSD = torch.zeros_like(attention.k), torch.zeros_like(attention.v)
    for first, end in attention.chunks:
        do_NRD = do_NQTD[:, :, first:end].reshape(len(do_NQTD), -1, do_NQTD.shape[3])
        ds_NRS = attention.score_gradients(first, end, do_NRD, dv_NSD)
        seen = ds_NRS.shape[2]
        dq_NRD = torch.bmm(ds_NRS, attention.k[:, :seen])
        dq_NQTD[:, :, first:end] = dq_NRD.view_as(dq_NQTD[:, :, first:end])
        dk_NSD[:, :seen].baddbmm_(ds_NRS.transpose(1, 2), attention.rows(first, end))
    dq_NQTD *= attention.scale
    dq, dk, dv = (
        d.view(x.shape).to(x.dtype)
        for d, x in zip((dq_NQTD, dk_NSD, dv_NSD), operands, strict=True)
    )
    return dq, dk, dv


@dataclass(frozen=True)
class _Attention:
    """Operands by groups, of which the queries `q` are times `scale`."""

    part: Part
    draw: Draw | None
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor

    @classmethod
    def of(cls, part: Part, draw: Draw | None, operands: Three) -> _Attention:
        q_BATD, k_BGSD, v_BGSD = map(widened, operands)
        B, G, S, D = k_BGSD.shape
        q_NQTD = q_BATD.new_empty(B * G, part.queries, q_BATD.shape[2], D)
        torch.mul(q_BATD, D**-0.5, out=q_NQTD.view(q_BATD.shape))
        k_NSD, v_NSD = (each.reshape(B * G, S, D) for each in (k_BGSD, v_BGSD))
        return cls(part, draw, q_NQTD, k_NSD, v_NSD)

    @property
    def scale(self) -> float:
        return float(self.q.shape[3] ** -0.5)

    @property
    def dropped(self) -> float:
        """Probability of dropout."""
        return 0.0 if self.draw is None else self.part.config.attention_dropout

    @property
    def chunks(self) -> Iterator[Line]:
        """First query and end of every chunk."""
        queries, size = self.q.shape[2], CHUNK.get(self.q.device.type, 1024)
        for first in range(0, queries, size):
            yield first, min(first + size, queries)

    def rows(self, first: int, end: int) -> torch.Tensor:
        """Queries of a chunk, `[N, R, D]`."""
        return self.q[:, :, first:end].reshape(len(self.q), -1, self.q.shape[3])

    def shares(self, first: int, end: int) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The softmax of a chunk's scores, `[N, R, S]`, and what dropout keeps of it."""
        part, queries, device = self.part, end - first, self.q.device
        seen = part.at[0] + end
        s_NRS = torch.bmm(self.rows(first, end), self.k[:, :seen].transpose(1, 2))
        s_BGQTS = s_NRS.view(-1, part.groups, part.queries, queries, seen)
        if part.config.positions == "alibi":
            bias_AS = distances(part.config.heads, part.head_numbers, seen, s_NRS.dtype, device)
            s_BGQTS += bias_AS.view(part.groups, part.queries, 1, seen)
        s_BGQTS[..., seen - queries :] += future(queries, s_NRS.dtype, device)
        return s_NRS.softmax(2), self._kept(first, end, s_NRS)

    def _kept(self, first: int, end: int, like_NRS: torch.Tensor) -> torch.Tensor | None:
        part = self.part
        if self.draw is None or not self.dropped:
            return None
        sequence = part.rows[0] // part.positions
        b_B = counted((sequence, sequence + len(self.q) // part.groups), self.q.device)
        line_BA = b_B[:, None] * part.config.heads + counted(part.head_numbers, self.q.device)
        at_T = counted((part.at[0] + first, part.at[0] + end), self.q.device)
        line_BAT = (line_BA[:, :, None] * part.positions + at_T) * part.positions
        at_S = counted((0, part.at[0] + end), self.q.device)
        kept = kept_elements(self.draw, self.dropped, part.name, line_BAT.flatten(), at_S)
        return kept.view_as(like_NRS)

    def score_gradients(
        self, first: int, end: int, do_NRD: torch.Tensor, dv_NSD: torch.Tensor
    ) -> torch.Tensor:
        """Gradient of a chunk's scores, `[N, R, S]`; that of its values is added to `dv_NSD`."""
        p_NRS, kept_NRS = self.shares(first, end)
        seen = p_NRS.shape[2]
        dp_NRS = torch.bmm(do_NRD, self.v[:, :seen].transpose(1, 2))
        used_NRS = p_NRS
        if kept_NRS is not None:
            used_NRS = p_NRS * kept_NRS
            dp_NRS *= kept_NRS
        dv_NSD[:, :seen].baddbmm_(used_NRS.transpose(1, 2), do_NRD)
        along_NR1 = (dp_NRS * p_NRS).sum(2, keepdim=True)
        return dp_NRS.sub_(along_NR1).mul_(p_NRS)


@lru_cache(maxsize=64)
def future(queries: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Minus infinity where one of the last keys is later than the query, elsewhere zero."""
    return torch.full((queries, queries), -torch.inf, dtype=dtype, device=device).triu_(1)


@lru_cache(maxsize=256)
def distances(
    heads: int, mine: Line, keys: int, dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """ALiBi of some of so many heads, for the query at the last of the keys: `[A, S]`.

    Any other query has the same up to a number for the whole row, which the softmax cancels.
    """
    slopes = torch.tensor(alibi_slopes(heads)[slice(*mine)], dtype=torch.float64, device=device)
    ago_S = counted((0, keys), device) - (keys - 1)
    return (slopes[:, None] * ago_S).to(dtype)


@lru_cache(maxsize=8)
def alibi_slopes(heads: int) -> tuple[float, ...]:
    """Slope of every head (Press et al., arXiv 2108.12409), as BLOOM was trained with.

    Powers of 2^(-8 / n) for n the largest power of two up to the heads, then odd ones of its root.
    """
    whole = 1 << heads.bit_length() - 1
    base = 2.0 ** (-8 / whole)
    more = range(1, 2 * (heads - whole), 2)
    return (*(base**at for at in range(1, whole + 1)), *(base ** (at / 2) for at in more))
