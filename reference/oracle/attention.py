"""The attention of the transformer: from the columns of qkv to the heads side by side, and back.

Its functions have the form of those in `layers`. `attend` is the whole operator on a part of it
that has what it needs; a part whose keys and values come from elsewhere goes through `operands`,
`attend_to` and their backwards one by one.

Legend: B batch, T positions, S positions looked at, A heads, G key/value heads, R = A / G heads of
one group, D elements of one head, E = R + 2 heads in the columns of one group, C = G E D columns of
qkv, H = A D. A leading `d` is the gradient of the loss by that array.
"""

# ruff: noqa: RET504 - a result keeps its shape in its name

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from primepar.models import ModelConfig
from primepar.models.dropout import Draw
from primepar.reference.oracle.layers import Array, dropout
from primepar.reference.oracle.positions import alibi_slopes, rotary, rotary_backward

Three = tuple[Array, Array, Array]


@dataclass(frozen=True)
class AttentionPart:
    """Which part of a model's attention is worked on.

    Of the columns `count` key/value groups from `first` on, of the queries those from `position` of
    the step's `sequence` on.
    """

    config: ModelConfig
    first: int
    count: int
    sequence: int = 0
    position: int = 0

    @classmethod
    def every(cls, config: ModelConfig) -> AttentionPart:
        """All groups and queries of a model."""
        return cls(config, 0, config.kv_heads)

    @property
    def heads_per_group(self) -> int:
        """Heads that share one key and value."""
        return self.config.heads // self.config.kv_heads

    @property
    def heads(self) -> range:
        """Their heads, by the numbers that these have in the model."""
        size = self.heads_per_group
        return range(self.first * size, (self.first + self.count) * size)


def split_heads(qkv_BTC: Array, groups: int, heads_per_group: int = 1) -> Three:
    """Query (B, A, T, D), key and value (B, G, T, D); the columns of a group are q ..., k, v."""
    # COMPUTE
    batch, positions, columns = qkv_BTC.shape
    parts = heads_per_group + 2
    qkv_BTGED = qkv_BTC.reshape(batch, positions, groups, parts, columns // (parts * groups))
    qkv_BGETD = qkv_BTGED.transpose(0, 2, 3, 1, 4)
    q_BGRTD, k_BGTD, v_BGTD = qkv_BGETD[:, :, :-2], qkv_BGETD[:, :, -2], qkv_BGETD[:, :, -1]
    q_BATD = q_BGRTD.reshape(batch, groups * heads_per_group, *q_BGRTD.shape[3:])
    # RESULT
    return q_BATD, k_BGTD, v_BGTD


def split_heads_backward(dq_BATD: Array, dk_BGTD: Array, dv_BGTD: Array) -> Array:
    """Gradient of the columns: (B, T, C)."""
    # AGAIN
    batch, groups, positions, size = dk_BGTD.shape
    # GRADIENTS
    dq_BGRTD = dq_BATD.reshape(batch, groups, -1, positions, size)
    dkv_BGRTD = np.stack([dk_BGTD, dv_BGTD], axis=2)
    dqkv_BGETD = np.concatenate([dq_BGRTD, dkv_BGRTD], axis=2)
    # RESULT
    return dqkv_BGETD.transpose(0, 3, 1, 2, 4).reshape(batch, positions, -1)


def alibi(part: AttentionPart, queries: int, keys: int) -> Array:
    """What is added to the scores of the part's heads: (A, T, S)."""
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
    """Causal attention: each position sums the values of itself and of those before it.

    The bias is added to the scores; `kept` tells which shares a dropout of `probability` keeps.
    Keys begin at position 0, queries at `position`.
    """
    # COMPUTE
    p_BATS = _attention_weights(q_BATD, k_BASD, bias_ATS, position)
    o_BATD = dropout(p_BATS, kept_BATS, probability) @ v_BASD
    # RESULT
    return o_BATD


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
    """Gradients of query, key and value."""
    # AGAIN
    p_BATS = _attention_weights(q_BATD, k_BASD, bias_ATS, position)
    # GRADIENTS
    dv_BASD = dropout(p_BATS, kept_BATS, probability).swapaxes(-1, -2) @ do_BATD
    dp_BATS = dropout(do_BATD @ v_BASD.swapaxes(-1, -2), kept_BATS, probability)
    along_BAT1 = (dp_BATS * p_BATS).sum(axis=-1, keepdims=True)
    dscore_BATS = p_BATS * (dp_BATS - along_BAT1) / math.sqrt(q_BATD.shape[-1])
    dq_BATD = dscore_BATS @ k_BASD
    dk_BASD = dscore_BATS.swapaxes(-1, -2) @ q_BATD
    # RESULT
    return dq_BATD, dk_BASD, dv_BASD


def _attention_weights(
    q_BATD: Array, k_BASD: Array, bias_ATS: Array | None, position: int
) -> Array:
    score_BATS = q_BATD @ k_BASD.swapaxes(-1, -2) / math.sqrt(q_BATD.shape[-1])
    if bias_ATS is not None:
        score_BATS += bias_ATS.astype(score_BATS.dtype)
    queries, keys = score_BATS.shape[-2:]
    later_TS = np.arange(keys) > (position + np.arange(queries))[:, None]
    score_BATS[..., later_TS] = -np.inf
    shifted_BATS = np.exp(score_BATS - score_BATS.max(axis=-1, keepdims=True))
    p_BATS: Array = shifted_BATS / shifted_BATS.sum(axis=-1, keepdims=True)
    return p_BATS


def merge_heads(o_BATD: Array) -> Array:
    """The heads side by side: (B, T, H)."""
    # COMPUTE
    batch, heads, positions, size = o_BATD.shape
    o_BTAD = o_BATD.transpose(0, 2, 1, 3)
    # RESULT
    return o_BTAD.reshape(batch, positions, heads * size)


def merge_heads_backward(heads: int, do_BTH: Array) -> Array:
    """Gradient of each head: (B, A, T, D)."""
    # AGAIN
    batch, positions, hidden = do_BTH.shape
    # GRADIENTS
    do_BTAD = do_BTH.reshape(batch, positions, heads, hidden // heads)
    # RESULT
    return do_BTAD.transpose(0, 2, 1, 3)


def attend(
    part: AttentionPart, qkv_BTC: Array, draw: Draw | None = None, operator: str = ""
) -> Array:
    """The operator on a part with whole sequences: (B, T, H) of its heads.

    With a `draw` the shares are dropped as those of `operator`.
    """
    # COMPUTE
    o_BTH = attend_to(part, *operands(part, qkv_BTC), draw, operator)
    # RESULT
    return o_BTH


def attend_backward(
    part: AttentionPart, qkv_BTC: Array, do_BTH: Array, draw: Draw | None = None, operator: str = ""
) -> Array:
    """Gradient of the columns."""
    # AGAIN
    q_BATD, k_BGTD, v_BGTD = operands(part, qkv_BTC)
    # GRADIENTS
    gradients = attend_to_backward(part, q_BATD, k_BGTD, v_BGTD, do_BTH, draw, operator)
    # RESULT
    return operands_backward(part, *gradients)


def operands(part: AttentionPart, qkv_BTC: Array) -> Three:
    """Query (B, A, T, D), key and value (B, G, T, D), turned as their positions ask."""
    # COMPUTE
    q_BATD, k_BGTD, v_BGTD = split_heads(qkv_BTC, part.count, part.heads_per_group)
    if part.config.positions == "rotary":
        q_BATD, k_BGTD = (
            rotary(x, part.config.rope_theta, part.position) for x in (q_BATD, k_BGTD)
        )
    # RESULT
    return q_BATD, k_BGTD, v_BGTD


def operands_backward(part: AttentionPart, dq_BATD: Array, dk_BGTD: Array, dv_BGTD: Array) -> Array:
    """Gradient of the columns: (B, T, C)."""
    # GRADIENTS
    if part.config.positions == "rotary":
        dq_BATD, dk_BGTD = (
            rotary_backward(part.config.rope_theta, dx, part.position) for dx in (dq_BATD, dk_BGTD)
        )
    # RESULT
    return split_heads_backward(dq_BATD, dk_BGTD, dv_BGTD)


def attend_to(
    part: AttentionPart,
    q_BATD: Array,
    k_BGSD: Array,
    v_BGSD: Array,
    draw: Draw | None,
    operator: str,
) -> Array:
    """The queries of a part and all keys and values of their sequences: (B, T, H)."""
    # COMPUTE
    k_BASD, v_BASD = _repeated(part, k_BGSD), _repeated(part, v_BGSD)
    bias_ATS, kept_BATS = _on_scores(part, q_BATD, k_BGSD, draw, operator)
    probability = part.config.attention_dropout
    o_BATD = attention(q_BATD, k_BASD, v_BASD, bias_ATS, kept_BATS, probability, part.position)
    # RESULT
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
    """Gradients of query, key and value; of a key, what these queries give it."""
    # AGAIN
    k_BASD, v_BASD = _repeated(part, k_BGSD), _repeated(part, v_BGSD)
    bias_ATS, kept_BATS = _on_scores(part, q_BATD, k_BGSD, draw, operator)
    probability = part.config.attention_dropout
    # GRADIENTS
    do_BATD = merge_heads_backward(len(part.heads), do_BTH)
    dq_BATD, dk_BASD, dv_BASD = attention_backward(
        q_BATD, k_BASD, v_BASD, do_BATD, bias_ATS, kept_BATS, probability, part.position
    )
    # RESULT
    return dq_BATD, _summed(part, dk_BASD), _summed(part, dv_BASD)


def _on_scores(
    part: AttentionPart, q_BATD: Array, k_BGSD: Array, draw: Draw | None, operator: str
) -> tuple[Array | None, Array | None]:
    """What is added to the scores, and which shares are kept."""
    sizes = len(q_BATD), q_BATD.shape[2], k_BGSD.shape[2]
    bias_ATS = alibi(part, *sizes[1:]) if part.config.positions == "alibi" else None
    return bias_ATS, _kept(part, sizes, draw, operator)


def _repeated(part: AttentionPart, x_BGSD: Array) -> Array:
    """Every key or value head once for each of its query heads."""
    times = part.heads_per_group
    return x_BGSD if times == 1 else np.repeat(x_BGSD, times, axis=1)


def _summed(part: AttentionPart, dx_BASD: Array) -> Array:
    times = part.heads_per_group
    batch, heads, *rest = dx_BASD.shape
    dx_BGRSD = dx_BASD.reshape(batch, heads // times, times, *rest)
    return dx_BASD if times == 1 else dx_BGRSD.sum(axis=2)


def _kept(
    part: AttentionPart, sizes: tuple[int, int, int], draw: Draw | None, operator: str
) -> Array | None:
    config = part.config
    if draw is None or not config.attention_dropout:
        return None
    sequences, queries, keys = map(np.arange, sizes)
    lines_BA = (part.sequence + sequences)[:, None] * config.heads + np.array(part.heads)
    rows_BAT = lines_BA[..., None] * len(keys) + part.position + queries
    elements_BATS = rows_BAT[..., None] * len(keys) + keys
    kept: Array = draw.kept(config.attention_dropout, operator, elements_BATS)
    return kept
