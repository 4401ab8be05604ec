"""The activations of the transformer: NumPy functions, element by element, and their backward.

They have the form of `layers`: `y = f(x)` and `dx = f_backward(x, dy)`.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from primepar.models import ModelConfig
from primepar.reference.oracle.layers import Array

GELU_SCALE = math.sqrt(2 / math.pi)
GELU_CUBIC = 0.044715


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


def gelu_exact(x: Array) -> Array:
    """GELU: x times the share of the normal distribution that lies below x."""
    # COMPUTE
    y: Array = x * _below(x)
    # RESULT
    return y


def gelu_exact_backward(x: Array, dy: Array) -> Array:
    """Gradient of the input."""
    # AGAIN
    below = _below(x)
    # GRADIENTS
    density = np.exp(-0.5 * x**2) / math.sqrt(2 * math.pi)
    dx: Array = dy * (below + x * density)
    # RESULT
    return dx


def _below(x: Array) -> Array:
    erf = np.frompyfunc(math.erf, 1, 1)(x / math.sqrt(2)).astype(x.dtype)
    below: Array = 0.5 * (1 + erf)
    return below


def relu(x: Array) -> Array:
    """Give x where it is positive, else 0."""
    # COMPUTE
    y: Array = np.maximum(x, 0)
    # RESULT
    return y


def relu_backward(x: Array, dy: Array) -> Array:
    """Gradient of the input; at 0 it is 0."""
    # GRADIENTS
    dx: Array = dy * (x > 0)
    # RESULT
    return dx


def silu(x: Array) -> Array:
    """Give x times the logistic function of x."""
    # COMPUTE
    y: Array = x * _logistic(x)
    # RESULT
    return y


def silu_backward(x: Array, dy: Array) -> Array:
    """Gradient of the input."""
    # AGAIN
    share = _logistic(x)
    # GRADIENTS
    dx: Array = dy * share * (1 + x * (1 - share))
    # RESULT
    return dx


def _logistic(x: Array) -> Array:
    share: Array = 0.5 * (1 + np.tanh(0.5 * x))
    return share


Activation = tuple[Callable[[Array], Array], Callable[[Array, Array], Array]]
ACTIVATIONS: dict[str, Activation] = {
    "gelu_tanh": (gelu, gelu_backward),
    "gelu": (gelu_exact, gelu_exact_backward),
    "relu": (relu, relu_backward),
    "silu": (silu, silu_backward),
}
"""`ModelConfig.activation` -> forward and backward."""


def activation(config: ModelConfig, x: Array) -> Array:
    """Give act(x), or act(gate) * up where the columns are gate 0, up 0, gate 1, up 1, ..."""
    act, _ = ACTIVATIONS[config.activation]
    if not config.gated:
        return act(x)
    # COMPUTE
    gate, up = x[..., 0::2], x[..., 1::2]
    # RESULT
    return act(gate) * up


def activation_backward(config: ModelConfig, x: Array, dy: Array) -> Array:
    """Gradient of the columns."""
    act, act_backward = ACTIVATIONS[config.activation]
    if not config.gated:
        return act_backward(x, dy)
    # AGAIN
    gate, up = x[..., 0::2], x[..., 1::2]
    # GRADIENTS
    dx = np.empty_like(x)
    dx[..., 0::2] = act_backward(gate, dy * up)
    dx[..., 1::2] = dy * act(gate)
    # RESULT
    return dx
