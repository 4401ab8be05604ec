"""The kernels of a linear operator: one product, and its bias."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from primepar.operators import Site, StepInputs
from primepar.reference.kernels.extents import Kernel
from primepar.reference.oracle.layers import Array
from primepar.schedule.meaning import Phase
from primepar.schedule.operators import tensor_dims
from primepar.schedule.signature import Template

SMALL = 4096
"""Elements of a block below which looking for a faster way to multiply takes longer than it."""


def product(site: Site, inputs: StepInputs, *blocks: Array) -> Array:
    """Product of two blocks, summed over the dims that the output does not have.

    The order of the dims of each is that of the phase's templates: O_MK = I_MN W_NK, and of the
    table of a tied head W_KN. Raises `ValueError` for shapes that do not fit.
    """
    return multiply(site.phase, blocks)


def multiply(phase: Phase, blocks: Sequence[Array]) -> Array:
    """The product of a phase. Raises `ValueError` for shapes that do not fit."""
    *reads, writes = (_dims(phase, each) for each in (*phase.reads, phase.writes))
    optimize = max(map(np.size, blocks)) > SMALL
    return np.asarray(np.einsum(f"{','.join(reads)}->{writes}", *blocks, optimize=optimize))


def _dims(phase: Phase, template: Template) -> str:
    """The dims of a block; of I, W and O also those that no grid cuts, and so no index has."""
    if template.tensor in ("I", "W", "O", "dI", "dW", "dO"):
        dims = tensor_dims(template.tensor)
        return "".join(dim for dim in dims if dim != "B" or "B" in phase.dims)
    return "".join(dim for dim, _ in template.entries)


def bias_forward(site: Site, inputs: StepInputs, y_MK: Array, bias_K: Array) -> Array:
    """Give the product plus the bias."""
    return y_MK + bias_K


def bias_gradient(site: Site, inputs: StepInputs, dy_MK: Array) -> Array:
    """Give the gradient of a bias by these rows: (K)."""
    return np.asarray(dy_MK.sum(axis=0))


LINEAR: dict[str, Kernel] = {
    "linear.forward": product,
    "linear.backward": product,
    "linear.gradient": product,
    "bias.forward": bias_forward,
    "bias.gradient": bias_gradient,
}
