"""The oracle: one linear operator on one device, in the three lines of PrimePar's equation 1.

Legend: B batch (may be absent), M sequence, N input hidden, K output hidden.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


class LinearStep(NamedTuple):
    """What one training step of a linear operator makes: `O`, `dI` and `dW`."""

    O: Array
    dI: Array
    dW: Array


def linear(I_MN: Array, W_NK: Array) -> Array:
    """Output O of shape (M, K), or (B, M, K) where I has a batch dim."""
    return np.asarray(I_MN @ W_NK)


def linear_backward(I_MN: Array, W_NK: Array, dO_MK: Array) -> tuple[Array, Array]:
    """Gradients (dI, dW) from the gradient of the output; dW is summed over B and M."""
    N, K = W_NK.shape
    dI_MN = dO_MK @ W_NK.T
    dW_NK = I_MN.reshape(-1, N).T @ dO_MK.reshape(-1, K)
    return np.asarray(dI_MN), np.asarray(dW_NK)


def linear_step(I_MN: Array, W_NK: Array, dO_MK: Array) -> LinearStep:
    """Forward, backward and gradient of one linear operator."""
    return LinearStep(linear(I_MN, W_NK), *linear_backward(I_MN, W_NK, dO_MK))
