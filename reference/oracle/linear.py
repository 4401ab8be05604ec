"""The oracle: one linear operator on one device, in the three lines of PrimePar's equation 1.

Legend: B batch (may be absent), M sequence, N input hidden, K output hidden.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


class LinearStep(NamedTuple):
    """Result of one training step of a linear operator: `O`, `dI` and `dW`."""

    O: Array
    dI: Array
    dW: Array


def linear(I_MN: Array, W_NK: Array) -> Array:
    """Return the output O of shape (M, K), or (B, M, K) if I has a batch dim."""
    return np.asarray(I_MN @ W_NK)


def linear_backward(I_MN: Array, W_NK: Array, dO_MK: Array) -> tuple[Array, Array]:
    """Return the gradients (dI, dW) from the gradient of the output; dW sums over B and M."""
    N, K = W_NK.shape
    dI_MN = dO_MK @ W_NK.T
    dW_NK = I_MN.reshape(-1, N).T @ dO_MK.reshape(-1, K)
    return np.asarray(dI_MN), np.asarray(dW_NK)


def linear_step(I_MN: Array, W_NK: Array, dO_MK: Array) -> LinearStep:
    """Return forward, backward and gradient of one linear operator."""
    return LinearStep(linear(I_MN, W_NK), *linear_backward(I_MN, W_NK, dO_MK))
