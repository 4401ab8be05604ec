"""The attention of the transformer: from the qkv columns to the concatenated heads, and back.

Its functions have the form of those in `layers`. `attend` is the whole operator on a part with full
sequences. A part whose keys and values are gathered from other parts uses `operands`, `attend_to`
and their backwards separately.

Legend: B batch, T positions, S positions of keys, A heads, G key/value heads, R = A / G heads of
one group, D elements of one head, E = R + 2 heads in the columns of one group, C = G E D columns of
qkv, H = A D. A leading `d` marks the gradient of the loss with respect to that array.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from primepar.models import ModelConfig
from primepar.models.dropout import Draw
from primepar.reference.oracle.layers import Array, dropout

Three = tuple[Array, Array, Array]


@dataclass(frozen=True)
class AttentionPart:
    """A part of a model's attention.

    Its columns are `count` key/value groups from `first` on. Its queries start at `position` of
    sequence `sequence` of the step.
    """

    config: ModelConfig
    first: int
    count: int
    sequence: int = 0
    position: int = 0

    @classmethod
    def every(cls, config: ModelConfig) -> AttentionPart:
        """Return the part with all groups and queries of a model."""
        return cls(config, 0, config.kv_heads)

    @property
    def heads_per_group(self) -> int:
        """Heads that share one key and value."""
        return self.config.heads // self.config.kv_heads

    @property
    def heads(self) -> range:
        """The heads of the part, by their numbers in the model."""
        size = self.heads_per_group
        return range(self.first * size, (self.first + self.count) * size)


def split_heads(qkv_BTC: Array, groups: int, heads_per_group: int = 1) -> Three:
    """Return query (B, A, T, D), key and value (B, G, T, D); columns of a group: q ..., k, v."""
    batch, positions, columns = qkv_BTC.shape
    parts = heads_per_group + 2
    # 2 heads per group: columns are q0 q1 k0 v0 of group 0, then q2 q3 k1 v1 of group 1, ...
    qkv_BTGED = qkv_BTC.reshape(batch, positions, groups, parts, columns // (parts * groups))
    qkv_BGETD = qkv_BTGED.transpose(0, 2, 3, 1, 4)
    q_BGRTD, k_BGTD, v_BGTD = qkv_BGETD[:, :, :-2], qkv_BGETD[:, :, -2], qkv_BGETD[:, :, -1]
    q_BATD = q_BGRTD.reshape(batch, groups * heads_per_group, *q_BGRTD.shape[3:])
    return q_BATD, k_BGTD, v_BGTD


def split_heads_backward(dq_BATD: Array, dk_BGTD: Array, dv_BGTD: Array) -> Array:
    """Return the gradient of the columns: (B, T, C)."""
    batch, groups, positions, size = dk_BGTD.shape
    dq_BGRTD = dq_BATD.reshape(batch, groups, -1, positions, size)
    dkv_BGRTD = np.stack([dk_BGTD, dv_BGTD], axis=2)
    dqkv_BGETD = np.concatenate([dq_BGRTD, dkv_BGRTD], axis=2)
    return dqkv_BGETD.transpose(0, 3, 1, 2, 4).reshape(batch, positions, -1)


def alibi(part: AttentionPart, queries: int, keys: int) -> Array:
    """Return the ALiBi term that is added to the scores of the part's heads: (A, T, S)."""
    slopes_A11 = alibi_slopes(part.config.heads)[list(part.heads), None, None]
    distance_TS = (part.position + np.arange(queries))[:, None] - np.arange(keys)
    return -slopes_A11 * distance_TS


def attention(
    q_BATD: Array,
    k_BASD: Array,
    v_BASD: Array,
    bias_ATS: Array | None = None,
    kept_BATS: Array | None = None,
    probability: float = 0.0,
    position: int = 0,
) -> Array:
    """Return causal attention: each position averages the values of itself and earlier positions.

    The bias is added to the scores. `kept` is the mask of the weights that dropout of `probability`
    keeps. Keys begin at position 0, queries at `position`.
    """
    p_BATS = _attention_weights(q_BATD, k_BASD, bias_ATS, position)
    return dropout(p_BATS, kept_BATS, probability) @ v_BASD


def attention_backward(
    q_BATD: Array,
    k_BASD: Array,
    v_BASD: Array,
    do_BATD: Array,
    bias_ATS: Array | None = None,
    kept_BATS: Array | None = None,
    probability: float = 0.0,
    position: int = 0,
) -> Three:
    """Return the gradients of query, key and value."""
    p_BATS = _attention_weights(q_BATD, k_BASD, bias_ATS, position)
    dv_BASD = dropout(p_BATS, kept_BATS, probability).swapaxes(-1, -2) @ do_BATD
    dp_BATS = dropout(do_BATD @ v_BASD.swapaxes(-1, -2), kept_BATS, probability)
    # Weights of a row sum to 1: what raises all its scores alike changes nothing, so each row of
    # dscore loses its part along p, and sums to 0. Later keys have p = 0 and get no gradient.
    along_BAT1 = (dp_BATS * p_BATS).sum(axis=-1, keepdims=True)
    dscore_BATS = p_BATS * (dp_BATS - along_BAT1) / math.sqrt(q_BATD.shape[-1])
    dq_BATD = dscore_BATS @ k_BASD
    dk_BASD = dscore_BATS.swapaxes(-1, -2) @ q_BATD
    return dq_BATD, dk_BASD, dv_BASD


def _attention_weights(
    q_BATD: Array, k_BASD: Array, bias_ATS: Array | None, position: int
) -> Array:
    score_BATS = q_BATD @ k_BASD.swapaxes(-1, -2) / math.sqrt(q_BATD.shape[-1])
    if bias_ATS is not None:
        score_BATS += bias_ATS.astype(score_BATS.dtype)
    queries, keys = score_BATS.shape[-2:]
    # Queries at positions 4 and 5, keys from 0: the first one sees keys 0 to 4.
    later_TS = np.arange(keys) > (position + np.arange(queries))[:, None]
    score_BATS[..., later_TS] = -np.inf
    shifted_BATS = np.exp(score_BATS - score_BATS.max(axis=-1, keepdims=True))
    return np.asarray(shifted_BATS / shifted_BATS.sum(axis=-1, keepdims=True))


def merge_heads(o_BATD: Array) -> Array:
    """Return the heads, concatenated: (B, T, H)."""
    batch, heads, positions, size = o_BATD.shape
    o_BTAD = o_BATD.transpose(0, 2, 1, 3)
    return o_BTAD.reshape(batch, positions, heads * size)


def merge_heads_backward(heads: int, do_BTH: Array) -> Array:
    """Return the gradient of each head: (B, A, T, D)."""
    batch, positions, hidden = do_BTH.shape
    do_BTAD = do_BTH.reshape(batch, positions, heads, hidden // heads)
    return do_BTAD.transpose(0, 2, 1, 3)


def attend(
    part: AttentionPart, qkv_BTC: Array, draw: Draw | None = None, operator: str = ""
) -> Array:
    """Return the output of the operator on a part with full sequences: (B, T, H) of its heads.

    With a `draw`, dropout of the weights has the mask of `operator`.
    """
    return attend_to(part, *operands(part, qkv_BTC), draw, operator)


def attend_backward(
    part: AttentionPart, qkv_BTC: Array, do_BTH: Array, draw: Draw | None = None, operator: str = ""
) -> Array:
    """Return the gradient of the columns."""
    q_BATD, k_BGTD, v_BGTD = operands(part, qkv_BTC)
    gradients = attend_to_backward(part, q_BATD, k_BGTD, v_BGTD, do_BTH, draw, operator)
    return operands_backward(part, *gradients)


def operands(part: AttentionPart, qkv_BTC: Array) -> Three:
    """Return query (B, A, T, D), key and value (B, G, T, D); rotary ones are rotated."""
    q_BATD, k_BGTD, v_BGTD = split_heads(qkv_BTC, part.count, part.heads_per_group)
    if part.config.positions == "rotary":
        q_BATD, k_BGTD = (
            rotary(x, part.config.rope_theta, part.position) for x in (q_BATD, k_BGTD)
        )
    return q_BATD, k_BGTD, v_BGTD


def operands_backward(part: AttentionPart, dq_BATD: Array, dk_BGTD: Array, dv_BGTD: Array) -> Array:
    """Return the gradient of the columns: (B, T, C)."""
    if part.config.positions == "rotary":
        dq_BATD, dk_BGTD = (
            rotary_backward(part.config.rope_theta, dx, part.position) for dx in (dq_BATD, dk_BGTD)
        )
    return split_heads_backward(dq_BATD, dk_BGTD, dv_BGTD)


def attend_to(
    part: AttentionPart,
    q_BATD: Array,
    k_BGSD: Array,
    v_BGSD: Array,
    draw: Draw | None,
    operator: str,
) -> Array:
    """Return the attention of a part's queries to all keys of their sequences: (B, T, H)."""
    k_BASD, v_BASD = _repeated(part, k_BGSD), _repeated(part, v_BGSD)
    bias_ATS, kept_BATS = _on_scores(part, q_BATD, k_BGSD, draw, operator)
    probability = part.config.attention_dropout
    o_BATD = attention(q_BATD, k_BASD, v_BASD, bias_ATS, kept_BATS, probability, part.position)
    return merge_heads(o_BATD)


def attend_to_backward(
    part: AttentionPart,
    q_BATD: Array,
    k_BGSD: Array,
    v_BGSD: Array,
    do_BTH: Array,
    draw: Draw | None,
    operator: str,
) -> Three:
    """Return the gradients of query, key and value; for keys and values these queries' terms."""
    k_BASD, v_BASD = _repeated(part, k_BGSD), _repeated(part, v_BGSD)
    bias_ATS, kept_BATS = _on_scores(part, q_BATD, k_BGSD, draw, operator)
    probability = part.config.attention_dropout
    do_BATD = merge_heads_backward(len(part.heads), do_BTH)
    dq_BATD, dk_BASD, dv_BASD = attention_backward(
        q_BATD, k_BASD, v_BASD, do_BATD, bias_ATS, kept_BATS, probability, part.position
    )
    return dq_BATD, _summed(part, dk_BASD), _summed(part, dv_BASD)


def _on_scores(
    part: AttentionPart, q_BATD: Array, k_BGSD: Array, draw: Draw | None, operator: str
) -> tuple[Array | None, Array | None]:
    """Return the bias of the scores, and the dropout mask of the weights."""
    config, keys = part.config, k_BGSD.shape[2]
    sequences, queries = np.arange(len(q_BATD)), np.arange(q_BATD.shape[2])
    bias_ATS = alibi(part, len(queries), keys) if config.positions == "alibi" else None
    if draw is None or not config.attention_dropout:
        return bias_ATS, None
    # The mask depends only on the numbers that an element has in the weights of the whole step,
    # (sequences, heads, S, S), so that each part of a sequence draws its part of one mask.
    lines_BA = (part.sequence + sequences)[:, None] * config.heads + np.array(part.heads)
    rows_BAT = lines_BA[..., None] * keys + part.position + queries
    elements_BATS = rows_BAT[..., None] * keys + np.arange(keys)
    return bias_ATS, draw.kept(config.attention_dropout, operator, elements_BATS)


def _repeated(part: AttentionPart, x_BGSD: Array) -> Array:
    """Repeat every key or value head for each of its query heads."""
    times = part.heads_per_group
    return x_BGSD if times == 1 else np.repeat(x_BGSD, times, axis=1)


def _summed(part: AttentionPart, dx_BASD: Array) -> Array:
    """Sum the gradients of what `_repeated` repeats over the query heads of a group."""
    times = part.heads_per_group
    batch, heads, *rest = dx_BASD.shape
    dx_BGRSD = dx_BASD.reshape(batch, heads // times, times, *rest)
    return dx_BASD if times == 1 else dx_BGRSD.sum(axis=2)


def rotary(x_BATD: Array, theta: float, position: int = 0) -> Array:
    """Rotate the pair of elements (i, i + D/2) at position t by the angle t theta^(-2i / D).

    The first row is at `position`. Source: Su et al., RoFormer, arXiv 2104.09864; pairs as in the
    weights of Llama.
    """
    cos_TD, sin_TD = _turns(x_BATD, theta, position)
    return x_BATD * cos_TD + _quarter_turn(x_BATD) * sin_TD


def rotary_backward(theta: float, dx_BATD: Array, position: int = 0) -> Array:
    """Return the gradient of the input: dx rotated back."""
    cos_TD, sin_TD = _turns(dx_BATD, theta, position)
    return dx_BATD * cos_TD - _quarter_turn(dx_BATD) * sin_TD


def _turns(x_BATD: Array, theta: float, position: int) -> tuple[Array, Array]:
    positions, size = x_BATD.shape[-2:]
    speeds = theta ** (-np.arange(0, size, 2) / size)
    angles = np.tile((position + np.arange(positions))[:, None] * speeds, 2)
    return np.cos(angles).astype(x_BATD.dtype), np.sin(angles).astype(x_BATD.dtype)


def _quarter_turn(x_BATD: Array) -> Array:
    """Return (-y, x) for every pair (x, y)."""
    first, second = np.split(x_BATD, 2, axis=-1)
    return np.concatenate([-second, first], axis=-1)


def alibi_slopes(heads: int) -> Array:
    """Return what each head subtracts from a score per position of distance: (A).

    Source: Press et al., arXiv 2108.12409. For n heads, n a power of two: the powers 1 to n of
    2^(-8 / n). Else those of the next lower power of two, then every other slope of the next higher
    one.
    """
    below = 1 << (heads.bit_length() - 1)
    first = 2.0 ** (-8 / below * np.arange(1, below + 1))
    more = 2.0 ** (-4 / below * np.arange(1, 2 * (heads - below), 2))
    return np.concatenate([first, more])
