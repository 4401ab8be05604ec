"""The kernels at the end of a step: the norm of the gradient, clipping, AdamW and SGD.

Both optimizers are element-wise, so any blocks work.
"""

from __future__ import annotations

import math

import numpy as np

from primepar.operators import Site, StepInputs
from primepar.reference.kernels.layers import Kernel
from primepar.reference.oracle.layers import Array


def squares(site: Site, inputs: StepInputs, *gradients: Array) -> Array:
    """Return the sum of the squares of some gradients: (1)."""
    return np.asarray(sum(np.sum(gradient**2) for gradient in gradients)).reshape(1)


def norm(site: Site, inputs: StepInputs, *squares_1: Array) -> Array:
    """Return the norm of the whole gradient, without the scale of the loss: (1)."""
    return np.asarray(np.sqrt(np.sum(squares_1, axis=0)) / inputs.scale)


def first(
    site: Site, inputs: StepInputs, moment: Array, gradient: Array, norm_1: Array | None = None
) -> Array:
    """Return the new first moment; the gradient is clipped if its norm is given."""
    if _skipped(inputs, norm_1):
        return moment
    beta = site.step.adamw.beta1
    return beta * moment + (1 - beta) * _clipped(site, inputs, gradient, norm_1)


def second(
    site: Site, inputs: StepInputs, moment: Array, gradient: Array, norm_1: Array | None = None
) -> Array:
    """Return the new second moment; the gradient is clipped if its norm is given."""
    if _skipped(inputs, norm_1):
        return moment
    beta = site.step.adamw.beta2
    return beta * moment + (1 - beta) * _clipped(site, inputs, gradient, norm_1) ** 2


def adamw(
    site: Site,
    inputs: StepInputs,
    parameter: Array,
    first: Array,
    second: Array,
    norm_1: Array | None = None,
) -> Array:
    """Return the new parameter, like torch.optim.AdamW."""
    if _skipped(inputs, norm_1):
        return parameter
    constants, number = site.step.adamw, inputs.number
    decay = constants.decay if site.decays else 0.0
    deviation = np.sqrt(second) / math.sqrt(1 - constants.beta2**number) + constants.epsilon
    step_size = inputs.rate / (1 - constants.beta1**number)
    return parameter * (1 - inputs.rate * decay) - step_size * first / deviation


def sgd(
    site: Site, inputs: StepInputs, parameter: Array, gradient: Array, norm_1: Array | None = None
) -> Array:
    """Return the new parameter of plain SGD; the gradient is clipped if its norm is given."""
    if _skipped(inputs, norm_1):
        return parameter
    return parameter - inputs.rate * _clipped(site, inputs, gradient, norm_1)


def _skipped(inputs: StepInputs, norm_1: Array | None) -> bool:
    """Return whether the step has a loss scale and its gradient is not finite."""
    return inputs.loss_scale is not None and norm_1 is not None and not np.isfinite(norm_1).all()


def _clipped(site: Site, inputs: StepInputs, gradient: Array, norm_1: Array | None) -> Array:
    """Return the gradient without loss scale, scaled down to the allowed norm if it is larger."""
    clip, gradient = site.step.clip, gradient / inputs.scale
    if norm_1 is None or clip is None:
        return gradient
    return gradient * (clip / np.maximum(norm_1, clip))


def master(site: Site, inputs: StepInputs, copy: Array) -> Array:
    """Return the new parameter: its new copy, of the same precision here."""
    return copy


UPDATE: dict[str, Kernel] = {
    "clip.squares": squares,
    "clip.norm": norm,
    "first.update": first,
    "second.update": second,
    "adamw.update": adamw,
    "sgd.update": sgd,
    "master.update": master,
}
