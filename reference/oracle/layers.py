"""The operators of the transformer except the linear one: a NumPy function and its backward each.

Every pair has one form: `y = f(x, ...)` and `dx, ... = f_backward(x, ..., dy)`. The backward takes
the arguments of f that it needs, then the gradient of the result of f. It returns the gradients of
all real-valued arguments, in order. Nothing is stored between the two: the backward recomputes what
it needs. Bodies have one order: COMPUTE, RESULT in a forward; AGAIN (recomputation), GRADIENTS,
RESULT in a backward.

Attention, positions and activations are in `attention`, `positions` and `activations`.

Legend: B batch, T positions, H hidden, V vocabulary. A leading `d` marks the gradient of the loss
with respect to that array.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from primepar.models.dropout import Draw

Array = NDArray[np.floating[Any]]
Tokens = NDArray[np.integer[Any]]

EPSILON = 1e-5
"""Added to the variance in layer norm, as in GPT-2."""


def embedding(tokens_BT: Tokens, token_VH: Array, position_TH: Array | None = None) -> Array:
    """Return the row of each token plus, if there is a table, the row of its position."""
    # COMPUTE
    x_BTH: Array = token_VH[tokens_BT]
    if position_TH is not None:
        x_BTH = x_BTH + position_TH[: tokens_BT.shape[1]]
    # RESULT
    return x_BTH


def embedding_backward(
    tokens_BT: Tokens, token_VH: Array, position_TH: Array | None, dx_BTH: Array
) -> tuple[Array, ...]:
    """Return the gradients of the tables; the gradients of equal tokens are summed."""
    # AGAIN
    positions = tokens_BT.shape[1]
    # GRADIENTS
    dtoken_VH = np.zeros_like(token_VH)
    np.add.at(dtoken_VH, tokens_BT, dx_BTH)
    if position_TH is None:
        return (dtoken_VH,)
    dposition_TH = np.zeros_like(position_TH)
    dposition_TH[:positions] = dx_BTH.sum(axis=0)
    # RESULT
    return dtoken_VH, dposition_TH


def layer_norm(x_BTH: Array, weight_H: Array, bias_H: Array, epsilon: float = EPSILON) -> Array:
    """Return every row, shifted to mean 0, scaled to variance 1, times weight plus bias."""
    # COMPUTE
    normed_BTH, _ = _normalized(x_BTH, epsilon)
    # RESULT
    return normed_BTH * weight_H + bias_H


def layer_norm_backward(
    x_BTH: Array, weight_H: Array, dy_BTH: Array, epsilon: float = EPSILON
) -> tuple[Array, Array, Array]:
    """Return the gradients of the input, the weight and the bias."""
    # AGAIN
    normed_BTH, deviation_BT1 = _normalized(x_BTH, epsilon)
    # GRADIENTS
    dweight_H = (dy_BTH * normed_BTH).sum(axis=(0, 1))
    dbias_H = dy_BTH.sum(axis=(0, 1))
    dnormed_BTH = dy_BTH * weight_H
    along_BT1 = (dnormed_BTH * normed_BTH).mean(axis=-1, keepdims=True)
    mean_BT1 = dnormed_BTH.mean(axis=-1, keepdims=True)
    dx_BTH = (dnormed_BTH - mean_BT1 - normed_BTH * along_BT1) / deviation_BT1
    # RESULT
    return dx_BTH, dweight_H, dbias_H


def _normalized(x_BTH: Array, epsilon: float) -> tuple[Array, Array]:
    centred_BTH = x_BTH - x_BTH.mean(axis=-1, keepdims=True)
    variance_BT1 = (centred_BTH**2).mean(axis=-1, keepdims=True)
    deviation_BT1 = np.sqrt(variance_BT1 + epsilon)
    return centred_BTH / deviation_BT1, deviation_BT1


def rms_norm(x_BTH: Array, weight_H: Array, epsilon: float = EPSILON) -> Array:
    """Return every row, scaled to a mean square of 1, times weight."""
    # COMPUTE
    root_BT1 = _root_mean_square(x_BTH, epsilon)
    # RESULT
    return x_BTH / root_BT1 * weight_H


def rms_norm_backward(
    x_BTH: Array, weight_H: Array, dy_BTH: Array, epsilon: float = EPSILON
) -> tuple[Array, Array]:
    """Return the gradients of the input and the weight."""
    # AGAIN
    root_BT1 = _root_mean_square(x_BTH, epsilon)
    normed_BTH = x_BTH / root_BT1
    # GRADIENTS
    dweight_H = (dy_BTH * normed_BTH).sum(axis=(0, 1))
    dnormed_BTH = dy_BTH * weight_H
    along_BT1 = (dnormed_BTH * normed_BTH).mean(axis=-1, keepdims=True)
    dx_BTH = (dnormed_BTH - normed_BTH * along_BT1) / root_BT1
    # RESULT
    return dx_BTH, dweight_H


def _root_mean_square(x_BTH: Array, epsilon: float) -> Array:
    root_BT1: Array = np.sqrt((x_BTH**2).mean(axis=-1, keepdims=True) + epsilon)
    return root_BT1


def dropout(x: Array, kept: Array | None, probability: float) -> Array:
    """Return kept elements divided by 1 - probability, else zero; applied to dy it is backward."""
    if kept is None:
        return x
    # COMPUTE
    scale = x.dtype.type(1 / (1 - probability))
    # RESULT
    return x * kept * scale


def kept_elements(
    draw: Draw | None,
    probability: float,
    operator: str,
    rows_M: Tokens,
    columns_K: Tokens,
    width: int,
) -> Array | None:
    """Return the dropout mask of an activation with `width` columns: (M, K); None for no dropout.

    The numbers of rows and columns are those in the full activation.
    """
    if draw is None or not probability:
        return None
    kept_MK: Array = draw.kept(probability, operator, rows_M[:, None] * width + columns_K)
    return kept_MK


def cross_entropy(logits_BTV: Array, targets_BT: Tokens) -> float:
    """Return the mean over all positions of -log of the target's softmax probability."""
    # COMPUTE
    logs_BTV = _log_softmax(logits_BTV)
    at_target_BT1 = np.take_along_axis(logs_BTV, targets_BT[..., None], axis=-1)
    # RESULT
    return -float(at_target_BT1.mean())


def cross_entropy_backward(logits_BTV: Array, targets_BT: Tokens) -> Array:
    """Return the gradient of the logits; the gradient of the loss itself is 1, so no argument."""
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
