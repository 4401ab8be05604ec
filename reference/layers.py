"""The operators of the transformer but the linear one, each a NumPy function and its backward.

Every pair has one form: `y = f(x, ...)` and `dx, ... = f_backward(x, ..., dy)`. The backward takes
those arguments of f that it needs, then the gradient of what f gave; it gives the gradient of
every real-valued argument, in order. Nothing is kept between the two: what a backward needs of the
forward pass it computes again. Bodies go in one order: COMPUTE, RESULT in a forward; AGAIN (what
the forward computed), GRADIENTS, RESULT in a backward.

Legend: B batch, T positions, S positions looked at, H hidden, A heads, D elements of one head,
C = 3 A D columns of qkv, V vocabulary. A leading `d` is the gradient of the loss by that array.
"""

# ruff: noqa: RET504 - a result keeps its shape in its name

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating[Any]]
Tokens = NDArray[np.integer[Any]]

EPSILON = 1e-5
"""What layer norm adds to the variance, as in GPT-2."""

GELU_SCALE = math.sqrt(2 / math.pi)
GELU_CUBIC = 0.044715


def embedding(tokens_BT: Tokens, token_VH: Array, position_TH: Array) -> Array:
    """Sum of the vector of each token and the vector of its position: (B, T, H)."""
    # COMPUTE
    x_BTH = token_VH[tokens_BT] + position_TH[: tokens_BT.shape[1]]
    # RESULT
    return x_BTH


def embedding_backward(
    tokens_BT: Tokens, token_VH: Array, position_TH: Array, dx_BTH: Array
) -> tuple[Array, Array]:
    """Gradients of both tables; a token that comes twice gathers both of its gradients."""
    # AGAIN
    positions = tokens_BT.shape[1]
    # GRADIENTS
    dtoken_VH = np.zeros_like(token_VH)
    np.add.at(dtoken_VH, tokens_BT, dx_BTH)
    dposition_TH = np.zeros_like(position_TH)
    dposition_TH[:positions] = dx_BTH.sum(axis=0)
    # RESULT
    return dtoken_VH, dposition_TH


def layer_norm(x_BTH: Array, weight_H: Array, bias_H: Array) -> Array:
    """Every row shifted to mean 0, scaled to variance 1, then times weight plus bias."""
    # COMPUTE
    normed_BTH, _ = _normalized(x_BTH)
    # RESULT
    return normed_BTH * weight_H + bias_H


def layer_norm_backward(x_BTH: Array, weight_H: Array, dy_BTH: Array) -> tuple[Array, Array, Array]:
    """Gradients of the input, the weight and the bias."""
    # AGAIN
    normed_BTH, deviation_BT1 = _normalized(x_BTH)
    # GRADIENTS
    dweight_H = (dy_BTH * normed_BTH).sum(axis=(0, 1))
    dbias_H = dy_BTH.sum(axis=(0, 1))
    dnormed_BTH = dy_BTH * weight_H
    along_BT1 = (dnormed_BTH * normed_BTH).mean(axis=-1, keepdims=True)
    mean_BT1 = dnormed_BTH.mean(axis=-1, keepdims=True)
    dx_BTH = (dnormed_BTH - mean_BT1 - normed_BTH * along_BT1) / deviation_BT1
    # RESULT
    return dx_BTH, dweight_H, dbias_H


def _normalized(x_BTH: Array) -> tuple[Array, Array]:
    centred_BTH = x_BTH - x_BTH.mean(axis=-1, keepdims=True)
    variance_BT1 = (centred_BTH**2).mean(axis=-1, keepdims=True)
    deviation_BT1 = np.sqrt(variance_BT1 + EPSILON)
    return centred_BTH / deviation_BT1, deviation_BT1


def split_heads(qkv_BTC: Array, heads: int) -> tuple[Array, Array, Array]:
    """Query, key and value, each (B, A, T, D); the columns are q, k, v of head 0, of head 1, ..."""
    # COMPUTE
    batch, positions, columns = qkv_BTC.shape
    qkv_BTA3D = qkv_BTC.reshape(batch, positions, heads, 3, columns // (3 * heads))
    q_BATD, k_BATD, v_BATD = qkv_BTA3D.transpose(3, 0, 2, 1, 4)
    # RESULT
    return q_BATD, k_BATD, v_BATD


def split_heads_backward(dq_BATD: Array, dk_BATD: Array, dv_BATD: Array) -> Array:
    """Gradient of the columns: (B, T, C)."""
    # AGAIN
    batch, heads, positions, size = dq_BATD.shape
    # GRADIENTS
    dqkv_BTA3D = np.stack([dq_BATD, dk_BATD, dv_BATD]).transpose(1, 3, 2, 0, 4)
    # RESULT
    return dqkv_BTA3D.reshape(batch, positions, 3 * heads * size)


def attention(q_BATD: Array, k_BATD: Array, v_BATD: Array) -> Array:
    """Causal attention: each position sums the values of itself and of those before it."""
    # COMPUTE
    p_BATS = _attention_weights(q_BATD, k_BATD)
    o_BATD = p_BATS @ v_BATD
    # RESULT
    return o_BATD


def attention_backward(
    q_BATD: Array, k_BATD: Array, v_BATD: Array, do_BATD: Array
) -> tuple[Array, Array, Array]:
    """Gradients of query, key and value."""
    # AGAIN
    p_BATS = _attention_weights(q_BATD, k_BATD)
    # GRADIENTS
    dv_BATD = p_BATS.swapaxes(-1, -2) @ do_BATD
    dp_BATS = do_BATD @ v_BATD.swapaxes(-1, -2)
    along_BAT1 = (dp_BATS * p_BATS).sum(axis=-1, keepdims=True)
    dscore_BATS = p_BATS * (dp_BATS - along_BAT1) / math.sqrt(q_BATD.shape[-1])
    dq_BATD = dscore_BATS @ k_BATD
    dk_BATD = dscore_BATS.swapaxes(-1, -2) @ q_BATD
    # RESULT
    return dq_BATD, dk_BATD, dv_BATD


def _attention_weights(q_BATD: Array, k_BATD: Array) -> Array:
    score_BATS = q_BATD @ k_BATD.swapaxes(-1, -2) / math.sqrt(q_BATD.shape[-1])
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


def gelu(x: Array) -> Array:
    """GPT-2's GELU: x / 2 times 1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)), element by element."""
    # COMPUTE
    y: Array = 0.5 * x * (1 + _bend(x))
    # RESULT
    return y


def gelu_backward(x: Array, dy: Array) -> Array:
    """Gradient of the input."""
    # AGAIN
    bend = _bend(x)
    # GRADIENTS
    slope = GELU_SCALE * (1 + 3 * GELU_CUBIC * x**2)
    dx: Array = dy * 0.5 * (1 + bend + x * (1 - bend**2) * slope)
    # RESULT
    return dx


def _bend(x: Array) -> Array:
    bend: Array = np.tanh(GELU_SCALE * (x + GELU_CUBIC * x**3))
    return bend


def cross_entropy(logits_BTV: Array, targets_BT: Tokens) -> float:
    """Mean over all positions of -log of the share that softmax gives to the target."""
    # COMPUTE
    logs_BTV = _log_softmax(logits_BTV)
    at_target_BT1 = np.take_along_axis(logs_BTV, targets_BT[..., None], axis=-1)
    # RESULT
    return -float(at_target_BT1.mean())


def cross_entropy_backward(logits_BTV: Array, targets_BT: Tokens) -> Array:
    """Gradient of the logits; the gradient of the loss by itself is 1 and is no argument."""
    # AGAIN
    dlogits_BTV: Array = np.exp(_log_softmax(logits_BTV))
    # GRADIENTS
    at_target_BT1 = np.take_along_axis(dlogits_BTV, targets_BT[..., None], axis=-1)
    np.put_along_axis(dlogits_BTV, targets_BT[..., None], at_target_BT1 - 1, axis=-1)
    # RESULT
    return dlogits_BTV / targets_BT.size


def _log_softmax(logits_BTV: Array) -> Array:
    shifted_BTV = logits_BTV - logits_BTV.max(axis=-1, keepdims=True)
    logs_BTV: Array = shifted_BTV - np.log(np.exp(shifted_BTV).sum(axis=-1, keepdims=True))
    return logs_BTV
