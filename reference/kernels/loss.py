"""The kernels of the mean cross-entropy: a block of the logits has a slice of the vocabulary.

The padding of the vocabulary has probability 0, and so no gradient.
"""

from __future__ import annotations

import numpy as np

from primepar.operators import Site, StepInputs
from primepar.reference.kernels.extents import Kernel, inside, numbers
from primepar.reference.oracle.layers import Array, Tokens


def largest(site: Site, inputs: StepInputs, x_MV: Array) -> Array:
    """Return the largest logit of every row: (M)."""
    return np.asarray(_without_padding(site, x_MV).max(axis=1))


def sums(site: Site, inputs: StepInputs, x_MV: Array, largest_M: Array, targets_M: Tokens) -> Array:
    """Return two numbers of every row, after subtraction of its largest logit: (2, M).

    They are the sum of exponentials, and the target's logit (zero if it is not in the block).
    """
    x_MV = _without_padding(site, x_MV) - largest_M[:, None]
    rows, columns = inside(targets_M, site.reads[0], 1)
    target_M = np.zeros(len(x_MV), x_MV.dtype)
    target_M[rows] = x_MV[rows, columns]
    return np.stack([np.exp(x_MV).sum(axis=1), target_M])


def forward(site: Site, inputs: StepInputs, sums_2M: Array) -> Array:
    """Return the sum of these rows' losses: (1). The program divides it by the step's rows."""
    sum_M, target_M = sums_2M
    return np.asarray(np.sum(np.log(sum_M) - target_M, keepdims=True))


def shares(site: Site, inputs: StepInputs, x_MV: Array, largest_M: Array, sums_2M: Array) -> Array:
    """Return the softmax probabilities."""
    x_MV = _without_padding(site, x_MV) - largest_M[:, None]
    return np.asarray(np.exp(x_MV) / sums_2M[0][:, None])


def backward(site: Site, inputs: StepInputs, shares_MV: Array, targets_M: Tokens) -> Array:
    """Return the gradient of the rows' scaled losses; the program divides it by the step's rows."""
    dx_MV = shares_MV.copy()
    dx_MV[inside(targets_M, site.reads[0], 1)] -= 1
    return dx_MV * inputs.scale


def _without_padding(site: Site, x_MV: Array) -> Array:
    """Return the logits, with minus infinity in the padding of the vocabulary."""
    padding_V = numbers(site.reads[0], 1) >= site.step.model.vocabulary
    return np.where(padding_V, x_MV.dtype.type(-np.inf), x_MV)


LOSS: dict[str, Kernel] = {
    "loss.largest": largest,
    "loss.sums": sums,
    "loss.forward": forward,
    "loss.shares": shares,
    "loss.backward": backward,
}
