"""The transformer's operators, except linear and attention: each a NumPy function and its backward.

Every pair has one form: `y = f(x, ...)` and `dx, ... = f_backward(x, ..., dy)`. The backward takes
the arguments of f that it needs, then the gradient of the result of f. It returns the gradients of
all real-valued arguments, in order. Nothing is stored between the two: the backward computes again
what it needs. Example: RMS norm is y = x / r, with r the root of the mean of x^2. A larger x
makes r larger too, so its backward subtracts from dy the part of it that is along y.

Legend: B batch, T positions, H hidden, V vocabulary. A leading `d` marks the gradient of the loss
with respect to that array.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from primepar.models import ModelConfig
from primepar.models.dropout import Draw

Array = NDArray[np.floating[Any]]
Tokens = NDArray[np.integer[Any]]

EPSILON = 1e-5
"""Added to the variance in layer norm, as in GPT-2."""


def embedding(tokens_BT: Tokens, token_VH: Array, position_TH: Array | None = None) -> Array:
    """Return the row of each token plus, if there is a table, the row of its position."""
    x_BTH: Array = token_VH[tokens_BT]
    if position_TH is not None:
        x_BTH = x_BTH + position_TH[: tokens_BT.shape[1]]
    return x_BTH


def embedding_backward(
    tokens_BT: Tokens, token_VH: Array, position_TH: Array | None, dx_BTH: Array
) -> tuple[Array, ...]:
    """Return the gradients of the tables; the gradients of equal tokens are summed."""
    positions = tokens_BT.shape[1]
    dtoken_VH = np.zeros_like(token_VH)
    np.add.at(dtoken_VH, tokens_BT, dx_BTH)  # += by index would keep one of two equal tokens
    if position_TH is None:
        return (dtoken_VH,)
    dposition_TH = np.zeros_like(position_TH)
    dposition_TH[:positions] = dx_BTH.sum(axis=0)
    return dtoken_VH, dposition_TH


def layer_norm(x_BTH: Array, weight_H: Array, bias_H: Array, epsilon: float = EPSILON) -> Array:
    """Return every row, shifted to mean 0, scaled to variance 1, times weight plus bias."""
    normed_BTH, _ = _normalized(x_BTH, epsilon)
    return normed_BTH * weight_H + bias_H


def layer_norm_backward(
    x_BTH: Array, weight_H: Array, dy_BTH: Array, epsilon: float = EPSILON
) -> tuple[Array, Array, Array]:
    """Return the gradients of the input, the weight and the bias."""
    normed_BTH, deviation_BT1 = _normalized(x_BTH, epsilon)
    dweight_H = (dy_BTH * normed_BTH).sum(axis=(0, 1))
    dbias_H = dy_BTH.sum(axis=(0, 1))
    dnormed_BTH = dy_BTH * weight_H
    # As in the header's example, for the deviation; and a shift of the whole row changes nothing,
    # so the gradient has mean 0.
    along_BT1 = (dnormed_BTH * normed_BTH).mean(axis=-1, keepdims=True)
    mean_BT1 = dnormed_BTH.mean(axis=-1, keepdims=True)
    dx_BTH = (dnormed_BTH - mean_BT1 - normed_BTH * along_BT1) / deviation_BT1
    return dx_BTH, dweight_H, dbias_H


def _normalized(x_BTH: Array, epsilon: float) -> tuple[Array, Array]:
    centred_BTH = x_BTH - x_BTH.mean(axis=-1, keepdims=True)
    variance_BT1 = (centred_BTH**2).mean(axis=-1, keepdims=True)
    deviation_BT1 = np.sqrt(variance_BT1 + epsilon)
    return centred_BTH / deviation_BT1, deviation_BT1


def rms_norm(x_BTH: Array, weight_H: Array, epsilon: float = EPSILON) -> Array:
    """Return every row, scaled to a mean square of 1, times weight."""
    root_BT1 = _root_mean_square(x_BTH, epsilon)
    return x_BTH / root_BT1 * weight_H


def rms_norm_backward(
    x_BTH: Array, weight_H: Array, dy_BTH: Array, epsilon: float = EPSILON
) -> tuple[Array, Array]:
    """Return the gradients of the input and the weight."""
    root_BT1 = _root_mean_square(x_BTH, epsilon)
    normed_BTH = x_BTH / root_BT1
    dweight_H = (dy_BTH * normed_BTH).sum(axis=(0, 1))
    dnormed_BTH = dy_BTH * weight_H
    # r depends on x: dr / dx = y / H, so each row loses its part along y.
    along_BT1 = (dnormed_BTH * normed_BTH).mean(axis=-1, keepdims=True)
    dx_BTH = (dnormed_BTH - normed_BTH * along_BT1) / root_BT1
    return dx_BTH, dweight_H


def _root_mean_square(x_BTH: Array, epsilon: float) -> Array:
    return np.asarray(np.sqrt((x_BTH**2).mean(axis=-1, keepdims=True) + epsilon))


def dropout(x: Array, kept: Array | None, probability: float) -> Array:
    """Return kept elements divided by 1 - probability, else zero; applied to dy it is backward."""
    if kept is None:
        return x
    scale = x.dtype.type(1 / (1 - probability))
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
    return np.asarray(draw.kept(probability, operator, rows_M[:, None] * width + columns_K))


def cross_entropy(logits_BTV: Array, targets_BT: Tokens) -> float:
    """Return the mean over all positions of -log of the target's softmax probability."""
    logs_BTV = _log_softmax(logits_BTV)
    at_target_BT1 = np.take_along_axis(logs_BTV, targets_BT[..., None], axis=-1)
    return -float(at_target_BT1.mean())


def cross_entropy_backward(logits_BTV: Array, targets_BT: Tokens) -> Array:
    """Return the gradient of the logits; the gradient of the loss itself is 1, so no argument."""
    # The softmax, minus 1 at the target: the gradient of log(sum(exp(x))) - x[target].
    dlogits_BTV: Array = np.exp(_log_softmax(logits_BTV))
    at_target_BT1 = np.take_along_axis(dlogits_BTV, targets_BT[..., None], axis=-1)
    np.put_along_axis(dlogits_BTV, targets_BT[..., None], at_target_BT1 - 1, axis=-1)
    return dlogits_BTV / targets_BT.size


def _log_softmax(logits_BTV: Array) -> Array:
    # Without its maximum exp of a row cannot overflow; the quotient stays the same.
    shifted_BTV = logits_BTV - logits_BTV.max(axis=-1, keepdims=True)
    return np.asarray(shifted_BTV - np.log(np.exp(shifted_BTV).sum(axis=-1, keepdims=True)))


GELU_SCALE = math.sqrt(2 / math.pi)
GELU_CUBIC = 0.044715


def gelu(x: Array) -> Array:
    """GPT-2's GELU: x / 2 times 1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)), element by element."""
    return 0.5 * x * (1 + _bend(x))


def gelu_backward(x: Array, dy: Array) -> Array:
    """Return the gradient of the input."""
    bend = _bend(x)
    slope = GELU_SCALE * (1 + 3 * GELU_CUBIC * x**2)
    return dy * 0.5 * (1 + bend + x * (1 - bend**2) * slope)


def _bend(x: Array) -> Array:
    return np.asarray(np.tanh(GELU_SCALE * (x + GELU_CUBIC * x**3)))


def gelu_exact(x: Array) -> Array:
    """GELU: x times the probability that a standard normal variable is below x."""
    return x * _below(x)


def gelu_exact_backward(x: Array, dy: Array) -> Array:
    """Return the gradient of the input."""
    below = _below(x)
    density = np.exp(-0.5 * x**2) / math.sqrt(2 * math.pi)
    return np.asarray(dy * (below + x * density))


def _below(x: Array) -> Array:
    erf = np.frompyfunc(math.erf, 1, 1)(x / math.sqrt(2)).astype(x.dtype)
    return np.asarray(0.5 * (1 + erf))


def relu(x: Array) -> Array:
    """Return x where it is positive, else 0."""
    return np.maximum(x, 0)


def relu_backward(x: Array, dy: Array) -> Array:
    """Return the gradient of the input; at 0 it is 0."""
    return dy * (x > 0)


def silu(x: Array) -> Array:
    """Return x times the logistic function of x."""
    return x * _logistic(x)


def silu_backward(x: Array, dy: Array) -> Array:
    """Return the gradient of the input."""
    share = _logistic(x)
    return dy * share * (1 + x * (1 - share))


def _logistic(x: Array) -> Array:
    return np.asarray(0.5 * (1 + np.tanh(0.5 * x)))


Activation = tuple[Callable[[Array], Array], Callable[[Array, Array], Array]]
ACTIVATIONS: dict[str, Activation] = {
    "gelu_tanh": (gelu, gelu_backward),
    "gelu": (gelu_exact, gelu_exact_backward),
    "relu": (relu, relu_backward),
    "silu": (silu, silu_backward),
}
"""`ModelConfig.activation` -> forward and backward."""


def activation(config: ModelConfig, x: Array) -> Array:
    """Return act(x), or act(gate) * up for columns gate 0, up 0, gate 1, up 1, ..."""
    act, _ = ACTIVATIONS[config.activation]
    if not config.gated:
        return act(x)
    gate, up = x[..., 0::2], x[..., 1::2]
    return act(gate) * up


def activation_backward(config: ModelConfig, x: Array, dy: Array) -> Array:
    """Return the gradient of the columns."""
    act, act_backward = ACTIVATIONS[config.activation]
    if not config.gated:
        return act_backward(x, dy)
    gate, up = x[..., 0::2], x[..., 1::2]
    dx = np.empty_like(x)
    dx[..., 0::2] = act_backward(gate, dy * up)
    dx[..., 1::2] = dy * act(gate)
    return dx
