"""What tells the attention of the transformer where a token stands: rotary embedding and ALiBi.

Legend: B batch, T positions, A heads, D elements of one head. A leading `d` is the gradient of the
loss by that array.
"""

from __future__ import annotations

import numpy as np

from primepar.reference.oracle.layers import Array


def rotary(x_BATD: Array, theta: float, position: int = 0) -> Array:
    """Element i and element i + D/2 of position t turned together by the angle t theta^(-2i / D).

    The first row is at `position`. Source: Su et al., RoFormer, arXiv 2104.09864; pairs as in the
    weights of Llama.
    """
    # COMPUTE
    cos_TD, sin_TD = _turns(x_BATD, theta, position)
    # RESULT
    return x_BATD * cos_TD + _quarter_turn(x_BATD) * sin_TD


def rotary_backward(theta: float, dx_BATD: Array, position: int = 0) -> Array:
    """Gradient of the input: turned back."""
    # AGAIN
    cos_TD, sin_TD = _turns(dx_BATD, theta, position)
    # RESULT
    return dx_BATD * cos_TD - _quarter_turn(dx_BATD) * sin_TD


def _turns(x_BATD: Array, theta: float, position: int) -> tuple[Array, Array]:
    positions, size = x_BATD.shape[-2:]
    speeds = theta ** (-np.arange(0, size, 2) / size)
    angles = np.tile((position + np.arange(positions))[:, None] * speeds, 2)
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
