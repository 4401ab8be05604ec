"""The kernels of the mean cross-entropy: a block of the logits has a slice of the vocabulary.

Padding of the vocabulary gets no probability, and so no gradient.
"""

from __future__ import annotations

import numpy as np

from primepar.operators import Site, StepInputs
from primepar.reference.kernels.extents import Kernel, inside, numbers
from primepar.reference.oracle.layers import Array, Tokens


def largest(site: Site, inputs: StepInputs, x_MV: Array) -> Array:
    """Give the largest logit of every row: (M)."""
    return np.asarray(_without_padding(site, x_MV).max(axis=1))


def sums(site: Site, inputs: StepInputs, x_MV: Array, largest_M: Array, targets_M: Tokens) -> Array:
    """Give two numbers of every row, whose logits are less the largest: (2, M).

    The sum of their exponentials, and the logit of the target, zero where that is not here.
    """
    x_MV = _without_padding(site, x_MV) - largest_M[:, None]
    rows, columns = inside(targets_M, site.reads[0], 1)
    at_M = np.zeros(len(x_MV), x_MV.dtype)
    at_M[rows] = x_MV[rows, columns]
    return np.stack([np.exp(x_MV).sum(axis=1), at_M])


def forward(site: Site, inputs: StepInputs, sums_2M: Array) -> Array:
    """Give the part of the mean over all rows of the step that is of these: (1)."""
    sum_M, at_M = sums_2M
    losses = np.sum(np.log(sum_M) - at_M, keepdims=True)
    return np.asarray(losses / _rows(site))


def shares(site: Site, inputs: StepInputs, x_MV: Array, largest_M: Array, sums_2M: Array) -> Array:
    """Give the probabilities of softmax."""
    x_MV = _without_padding(site, x_MV) - largest_M[:, None]
    return np.asarray(np.exp(x_MV) / sums_2M[0][:, None])


def backward(site: Site, inputs: StepInputs, shares_MV: Array, targets_M: Tokens) -> Array:
    """Give the gradient of the logits."""
    dx_MV = shares_MV.copy()
    dx_MV[inside(targets_M, site.reads[0], 1)] -= 1
    return dx_MV / _rows(site)


def _rows(site: Site) -> int:
    return site.step.batch * site.step.positions


def _without_padding(site: Site, x_MV: Array) -> Array:
    """The logits, minus infinity where the vocabulary is padded."""
    padding_V = numbers(site.reads[0], 1) >= site.step.model.vocabulary
    return np.where(padding_V, x_MV.dtype.type(-np.inf), x_MV)


LOSS: dict[str, Kernel] = {
    "loss.largest": largest,
    "loss.sums": sums,
    "loss.forward": forward,
    "loss.shares": shares,
    "loss.backward": backward,
}
