"""The kernels of layer norm and RMS norm; statistics of a row are of the columns of one block.

A layer norm has mean and variance of P equal parts of a row, (2, M, P). The variance of the row is
the mean of the variances plus the variance of the means. An RMS norm has the sum of squares, (M).
"""

from __future__ import annotations

import numpy as np

from primepar.operators import Site, StepInputs
from primepar.reference.kernels.extents import Kernel
from primepar.reference.oracle.layers import Array


def moments(site: Site, inputs: StepInputs, x_MH: Array) -> Array:
    """Return mean and variance of every row: (2, M, 1)."""
    return np.stack([x_MH.mean(axis=1), x_MH.var(axis=1)])[..., None]


def square(site: Site, inputs: StepInputs, x_MH: Array) -> Array:
    """Return the sum of the squares of every row: (M)."""
    return np.asarray((x_MH**2).sum(axis=1))


def normalize(site: Site, inputs: StepInputs, x_MH: Array, statistics: Array) -> Array:
    """Return every row, minus its mean in a layer norm, divided by its deviation."""
    if statistics.ndim == 3:
        x_MH = x_MH - statistics[0].mean(axis=1, keepdims=True)
    return x_MH / _root(site, statistics)


def forward(
    site: Site, inputs: StepInputs, normed_MH: Array, weight_H: Array, bias_H: Array | None = None
) -> Array:
    """Return the normalized rows times weight plus bias."""
    scaled_MH = normed_MH * weight_H
    return scaled_MH if bias_H is None else scaled_MH + bias_H


def gradient(site: Site, inputs: StepInputs, dy_MH: Array, normed_MH: Array) -> Array:
    """Return these rows' terms in the gradient of the weight: (H)."""
    return np.asarray((dy_MH * normed_MH).sum(axis=0))


def backward_sums(
    site: Site, inputs: StepInputs, dy_MH: Array, weight_H: Array, normed_MH: Array
) -> Array:
    """Return the sums of every row for backward: (2, M); for RMS norm (1, M).

    They are the sum of dnormed * normed and, for a layer norm, the sum of dnormed.
    """
    dnormed_MH = dy_MH * weight_H
    sums = [(dnormed_MH * normed_MH).sum(axis=1)]
    if _centred(site.writes[0]):
        sums.append(dnormed_MH.sum(axis=1))
    return np.stack(sums)


def backward(
    site: Site,
    inputs: StepInputs,
    dy_MH: Array,
    weight_H: Array,
    normed_MH: Array,
    statistics: Array,
    sums_2M: Array,
) -> Array:
    """Return the gradient of the rows."""
    means_2M1 = sums_2M[..., None] / site.step.model.hidden
    dx_MH: Array = dy_MH * weight_H - normed_MH * means_2M1[0]
    if _centred(site.reads[-1][0]):
        dx_MH = dx_MH - means_2M1[1]
    return dx_MH / _root(site, statistics)


def _centred(rows: tuple[int, int]) -> bool:
    """Return whether the number of sums is that of a layer norm, two; an RMS norm has one."""
    first, end = rows
    return end - first == 2


def _root(site: Site, statistics: Array) -> Array:
    model = site.step.model
    if statistics.ndim == 3:
        mean_MP, variance_MP = statistics
        variance_M = variance_MP.mean(axis=1) + mean_MP.var(axis=1)
    else:
        variance_M = statistics / model.hidden
    return np.asarray(np.sqrt(variance_M + model.epsilon))[:, None]


NORM: dict[str, Kernel] = {
    "norm.moments": moments,
    "norm.square": square,
    "norm.normalize": normalize,
    "norm.forward": forward,
    "norm.gradient": gradient,
    "norm.backward.sums": backward_sums,
    "norm.backward": backward,
}
