"""The kernels of one linear layer with half the squared error as its loss, on one worker's batch.

A dim of length one in front numbers the worker; a model that all workers share has none.
"""

from __future__ import annotations

import numpy as np

from primepar.operators import Site, StepInputs
from primepar.reference.kernels.extents import Kernel
from primepar.reference.oracle.layers import Array


def residual(site: Site, inputs: StepInputs, x_WMN: Array, w_NK: Array, target_WMK: Array) -> Array:
    """Return the prediction less the target: (1, M, K)."""
    return x_WMN @ w_NK - target_WMK


def gradient(site: Site, inputs: StepInputs, x_WMN: Array, residual_WMK: Array) -> Array:
    """Return the gradient of half the sum of squares with respect to the weight: (1, N, K)."""
    return np.swapaxes(x_WMN, 1, 2) @ residual_WMK


def part(site: Site, inputs: StepInputs, block_W: Array) -> Array:
    """Return a worker's block without the dim of workers."""
    return np.array(block_W[0])


REGRESSION: dict[str, Kernel] = {
    "regression.residual": residual,
    "regression.gradient": gradient,
    "workers.average": part,
}
