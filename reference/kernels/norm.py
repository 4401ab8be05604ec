"""The kernels of layer norm and RMS norm; sums over a row are of the columns of one block."""

from __future__ import annotations

import numpy as np

from primepar.operators import Site, StepInputs
from primepar.reference.kernels.extents import Kernel
from primepar.reference.oracle.layers import Array


def mean(site: Site, inputs: StepInputs, x_MH: Array) -> Array:
    """Give the sum of every row: (M)."""
    return np.asarray(x_MH.sum(axis=1))


def centre(site: Site, inputs: StepInputs, x_MH: Array, sum_M: Array) -> Array:
    """Give every row less its mean."""
    return x_MH - sum_M[:, None] / site.step.model.hidden


def square(site: Site, inputs: StepInputs, x_MH: Array) -> Array:
    """Give the sum of the squares of every row: (M)."""
    return np.asarray((x_MH**2).sum(axis=1))


def divide(site: Site, inputs: StepInputs, x_MH: Array, square_M: Array) -> Array:
    """Give every row divided by the root of its mean square."""
    return x_MH / _root(site, square_M)


def forward(
    site: Site, inputs: StepInputs, normed_MH: Array, weight_H: Array, bias_H: Array | None = None
) -> Array:
    """Give the normed rows times weight plus bias."""
    scaled_MH = normed_MH * weight_H
    return scaled_MH if bias_H is None else scaled_MH + bias_H


def gradient(site: Site, inputs: StepInputs, dy_MH: Array, normed_MH: Array) -> Array:
    """Give the gradient of the weight by these rows: (H)."""
    return np.asarray((dy_MH * normed_MH).sum(axis=0))


def backward_sums(
    site: Site, inputs: StepInputs, dy_MH: Array, weight_H: Array, normed_MH: Array
) -> Array:
    """Give what backward sums of every row, along it and, in a layer norm, its mean: (2, M)."""
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
    square_M: Array,
    sums_2M: Array,
) -> Array:
    """Give the gradient of the rows."""
    means_2M1 = sums_2M[..., None] / site.step.model.hidden
    dx_MH: Array = dy_MH * weight_H - normed_MH * means_2M1[0]
    if _centred(site.reads[-1][0]):
        dx_MH = dx_MH - means_2M1[1]
    return dx_MH / _root(site, square_M)


def _centred(rows: tuple[int, int]) -> bool:
    """Whether a layer norm has sums of so many kinds; an RMS norm has one."""
    first, end = rows
    return end - first == 2


def _root(site: Site, square_M: Array) -> Array:
    model = site.step.model
    return np.asarray(np.sqrt(square_M / model.hidden + model.epsilon))[:, None]


NORM: dict[str, Kernel] = {
    "norm.mean": mean,
    "norm.centre": centre,
    "norm.square": square,
    "norm.divide": divide,
    "norm.forward": forward,
    "norm.gradient": gradient,
    "norm.backward.sums": backward_sums,
    "norm.backward": backward,
}
