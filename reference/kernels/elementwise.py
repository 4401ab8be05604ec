"""The kernels that go element by element: activation, addition with dropout, sums of gradients."""

from __future__ import annotations

from primepar.operators import Site, StepInputs
from primepar.reference.kernels.extents import Kernel, dropped
from primepar.reference.oracle.activations import activation, activation_backward
from primepar.reference.oracle.layers import Array


def activation_of(site: Site, inputs: StepInputs, x_MK: Array) -> Array:
    """Give act(x), or act(gate) * up, of which a block has pairs side by side."""
    return activation(site.step.model, x_MK)


def activation_gradient(site: Site, inputs: StepInputs, x_MK: Array, dy_MF: Array) -> Array:
    """Give the gradient of the input."""
    return activation_backward(site.step.model, x_MK, dy_MF)


def add(site: Site, inputs: StepInputs, stream_MH: Array, branch_MH: Array) -> Array:
    """Give the stream plus what the dropout keeps of the branch."""
    return stream_MH + add_gradient(site, inputs, branch_MH)


def add_gradient(site: Site, inputs: StepInputs, dy_MH: Array) -> Array:
    """Give the gradient of the branch, dropped as the branch was."""
    _, branch = site.operator.inputs
    probability = site.step.model.dropout
    return dropped(site, inputs, dy_MH, site.writes, branch, probability)


def fan_in(site: Site, inputs: StepInputs, *gradients: Array) -> Array:
    """Give the sum of the gradients of a tensor that several operators read."""
    first, *others = gradients
    total = first.copy()
    for other in others:
        total += other
    return total


ELEMENTWISE: dict[str, Kernel] = {
    "activation.forward": activation_of,
    "activation.backward": activation_gradient,
    "add.forward": add,
    "add.backward": add_gradient,
    "sum.fan-in": fan_in,
}
