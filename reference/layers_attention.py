"""The attention of the transformer: from the columns of qkv to the heads side by side, and back.

Its functions have the form of those in `layers`. `attend` is the whole operator on any number of
whole key/value groups, so that a device can do it with the columns that it has.

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
from primepar.reference.layers import Array, dropout

Three = tuple[Array, Array, Array]


@dataclass(frozen=True)
class Groups:
    """Which key/value groups of a model's attention are worked on: `count` of them from `first`."""

    config: ModelConfig
    first: int
    count: int

    @classmethod
    def every(cls, config: ModelConfig) -> Groups:
        """All groups of a model."""
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


def rotary(x_BATD: Array, theta: float) -> Array:
    """Element i and element i + D/2 of position t turned together by the angle t theta^(-2i / D).

    Source: Su et al., RoFormer, arXiv 2104.09864; pairs as in the weights of Llama.
    """
    # COMPUTE
    cos_TD, sin_TD = _turns(x_BATD, theta)
    # RESULT
    return x_BATD * cos_TD + _quarter_turn(x_BATD) * sin_TD


def rotary_backward(theta: float, dx_BATD: Array) -> Array:
    """Gradient of the input: turned back."""
    # AGAIN
    cos_TD, sin_TD = _turns(dx_BATD, theta)
    # RESULT
    return dx_BATD * cos_TD - _quarter_turn(dx_BATD) * sin_TD


def _turns(x_BATD: Array, theta: float) -> tuple[Array, Array]:
    positions, size = x_BATD.shape[-2:]
    speeds = theta ** (-np.arange(0, size, 2) / size)
    angles = np.tile(np.arange(positions)[:, None] * speeds, 2)
    return np.cos(angles).astype(x_BATD.dtype), np.sin(angles).astype(x_BATD.dtype)


def _quarter_turn(x_BATD: Array) -> Array:
    first, second = np.split(x_BATD, 2, axis=-1)
    return np.concatenate([-second, first], axis=-1)


def alibi_slopes(heads: int) -> Array:
    """What each head takes off a score per position of distance (Press et al., arXiv 2108.12409).

    With n heads, n a power of two, 2^(-8 / n) to the powers 1 to n; else those of the power of two
    below, then every other one of the power above.
    """
    below = 1 << (heads.bit_length() - 1)
    first = 2.0 ** (-8 / below * np.arange(1, below + 1))
    more = 2.0 ** (-4 / below * np.arange(1, 2 * (heads - below), 2))
    return np.concatenate([first, more])


def alibi(groups: Groups, positions: int) -> Array:
    """What is added to the scores of the groups' heads: (A, T, S)."""
    slopes_A11 = alibi_slopes(groups.config.heads)[list(groups.heads), None, None]
    distance_TS = np.arange(positions)[:, None] - np.arange(positions)
    return -slopes_A11 * distance_TS


def attention(
    q_BATD: Array,
    k_BATD: Array,
    v_BATD: Array,
    bias_ATS: Array | None = None,
    kept_BATS: Array | None = None,
    probability: float = 0.0,
) -> Array:
    """Causal attention: each position sums the values of itself and of those before it.

    The bias is added to the scores; `kept` tells which shares a dropout of `probability` keeps.
    """
    # COMPUTE
    p_BATS = _attention_weights(q_BATD, k_BATD, bias_ATS)
    o_BATD = dropout(p_BATS, kept_BATS, probability) @ v_BATD
    # RESULT
    return o_BATD


def attention_backward(
    q_BATD: Array,
    k_BATD: Array,
    v_BATD: Array,
    do_BATD: Array,
    bias_ATS: Array | None = None,
    kept_BATS: Array | None = None,
    probability: float = 0.0,
) -> Three:
    """Gradients of query, key and value."""
    # AGAIN
    p_BATS = _attention_weights(q_BATD, k_BATD, bias_ATS)
    # GRADIENTS
    dv_BATD = dropout(p_BATS, kept_BATS, probability).swapaxes(-1, -2) @ do_BATD
    dp_BATS = dropout(do_BATD @ v_BATD.swapaxes(-1, -2), kept_BATS, probability)
    along_BAT1 = (dp_BATS * p_BATS).sum(axis=-1, keepdims=True)
    dscore_BATS = p_BATS * (dp_BATS - along_BAT1) / math.sqrt(q_BATD.shape[-1])
    dq_BATD = dscore_BATS @ k_BATD
    dk_BATD = dscore_BATS.swapaxes(-1, -2) @ q_BATD
    # RESULT
    return dq_BATD, dk_BATD, dv_BATD


def _attention_weights(q_BATD: Array, k_BATD: Array, bias_ATS: Array | None) -> Array:
    score_BATS = q_BATD @ k_BATD.swapaxes(-1, -2) / math.sqrt(q_BATD.shape[-1])
    if bias_ATS is not None:
        score_BATS += bias_ATS.astype(score_BATS.dtype)
    later_TS = np.triu(np.ones(score_BATS.shape[-2:], dtype=bool), k=1)
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
    groups: Groups, qkv_BTC: Array, draw: Draw | None = None, operator: str = "", first: int = 0
) -> Array:
    """The operator on the columns of some groups: (B, T, H) of their heads.

    With a `draw` the shares are dropped as that of `operator`, sequence 0 being the model's
    sequence `first`.
    """
    # COMPUTE
    q_BATD, k_BATD, v_BATD, bias_ATS = _operands(groups, qkv_BTC)
    kept_BATS = _kept(groups, qkv_BTC, draw, operator, first)
    probability = groups.config.attention_dropout
    # RESULT
    return merge_heads(attention(q_BATD, k_BATD, v_BATD, bias_ATS, kept_BATS, probability))


def attend_backward(
    groups: Groups,
    qkv_BTC: Array,
    do_BTH: Array,
    draw: Draw | None = None,
    operator: str = "",
    first: int = 0,
) -> Array:
    """Gradient of the columns."""
    # AGAIN
    q_BATD, k_BATD, v_BATD, bias_ATS = _operands(groups, qkv_BTC)
    kept_BATS = _kept(groups, qkv_BTC, draw, operator, first)
    probability = groups.config.attention_dropout
    # GRADIENTS
    do_BATD = merge_heads_backward(len(groups.heads), do_BTH)
    dq_BATD, dk_BATD, dv_BATD = attention_backward(
        q_BATD, k_BATD, v_BATD, do_BATD, bias_ATS, kept_BATS, probability
    )
    if groups.config.positions == "rotary":
        dq_BATD = rotary_backward(groups.config.rope_theta, dq_BATD)
        dk_BATD = rotary_backward(groups.config.rope_theta, dk_BATD)
    shared = groups.heads_per_group
    # RESULT
    return split_heads_backward(dq_BATD, _summed(dk_BATD, shared), _summed(dv_BATD, shared))


def _operands(groups: Groups, qkv_BTC: Array) -> tuple[Array, Array, Array, Array | None]:
    """Query, key and value of every head, turned as the positions ask; and what the scores get."""
    config, shared = groups.config, groups.heads_per_group
    q_BATD, k_BGTD, v_BGTD = split_heads(qkv_BTC, groups.count, shared)
    if config.positions == "rotary":
        q_BATD, k_BGTD = (rotary(x, config.rope_theta) for x in (q_BATD, k_BGTD))
    bias_ATS = alibi(groups, qkv_BTC.shape[1]) if config.positions == "alibi" else None
    return q_BATD, _repeated(k_BGTD, shared), _repeated(v_BGTD, shared), bias_ATS


def _repeated(x_BGTD: Array, times: int) -> Array:
    return x_BGTD if times == 1 else np.repeat(x_BGTD, times, axis=1)


def _summed(dx_BATD: Array, times: int) -> Array:
    batch, heads, *rest = dx_BATD.shape
    dx_BGRTD = dx_BATD.reshape(batch, heads // times, times, *rest)
    return dx_BATD if times == 1 else dx_BGRTD.sum(axis=2)


def _kept(
    groups: Groups, qkv_BTC: Array, draw: Draw | None, operator: str, first: int
) -> Array | None:
    config = groups.config
    if draw is None or not config.attention_dropout:
        return None
    batch, positions, _ = qkv_BTC.shape
    sequences, heads = first + np.arange(batch), np.array(groups.heads)
    rows = (sequences[:, None] * config.heads + heads)[..., None] * positions + np.arange(positions)
    elements_BATS = rows[..., None] * positions + np.arange(positions)
    kept: Array = draw.kept(config.attention_dropout, operator, elements_BATS)
    return kept
