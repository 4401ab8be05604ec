"""The operators of the transformer but the linear one, each a NumPy function and its backward.

Every pair has one form: `y = f(x, ...)` and `dx, ... = f_backward(x, ..., dy)`. The backward takes
those arguments of f that it needs, then the gradient of what f gave; it gives the gradient of
every real-valued argument, in order. Nothing is kept between the two: what a backward needs of the
forward pass it computes again. Bodies go in one order: COMPUTE, RESULT in a forward; AGAIN (what
the forward computed), GRADIENTS, RESULT in a backward.

Those of the attention, of positions in it and the activations are in `layers_attention`,
`layers_positions` and `layers_activation`.

Legend: B batch, T positions, H hidden, V vocabulary. A leading `d` is the gradient of the loss by
that array.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from primepar.models.dropout import Draw

Array = NDArray[np.floating[Any]]
Tokens = NDArray[np.integer[Any]]

EPSILON = 1e-5
"""What layer norm adds to the variance, as in GPT-2."""


def embedding(tokens_BT: Tokens, token_VH: Array, position_TH: Array | None = None) -> Array:
    """Sum of the vector of each token and, if there is one, the vector of its position."""
    # COMPUTE
    x_BTH: Array = token_VH[tokens_BT]
    if position_TH is not None:
        x_BTH = x_BTH + position_TH[: tokens_BT.shape[1]]
    # RESULT
    return x_BTH


def embedding_backward(
    tokens_BT: Tokens, token_VH: Array, position_TH: Array | None, dx_BTH: Array
) -> tuple[Array, ...]:
    """Gradients of the tables; a token that comes twice gathers both of its gradients."""
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
    """Every row shifted to mean 0, scaled to variance 1, then times weight plus bias."""
    # COMPUTE
    normed_BTH, _ = _normalized(x_BTH, epsilon)
    # RESULT
    return normed_BTH * weight_H + bias_H


def layer_norm_backward(
    x_BTH: Array, weight_H: Array, dy_BTH: Array, epsilon: float = EPSILON
) -> tuple[Array, Array, Array]:
    """Gradients of the input, the weight and the bias."""
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
    """Every row scaled to a mean square of 1, then times weight."""
    # COMPUTE
    root_BT1 = _root_mean_square(x_BTH, epsilon)
    # RESULT
    return x_BTH / root_BT1 * weight_H


def rms_norm_backward(
    x_BTH: Array, weight_H: Array, dy_BTH: Array, epsilon: float = EPSILON
) -> tuple[Array, Array]:
    """Gradients of the input and the weight."""
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
    """What is kept divided by 1 - probability, the rest zero; its backward is itself, of dy."""
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
    """Which elements of an activation of `width` columns a dropout keeps: (M, K); None for all.

    The rows and columns are those of the whole activation.
    """
    if draw is None or not probability:
        return None
    kept_MK: Array = draw.kept(probability, operator, rows_M[:, None] * width + columns_K)
    return kept_MK


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
