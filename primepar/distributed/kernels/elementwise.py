"""Activations, additions and sums, element by element.

Legend: R rows and C columns of a block, F columns of the activation's output.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from primepar.distributed.kernels.common import drop_out
from primepar.operators import Site, StepInputs

Forward = Callable[..., torch.Tensor]
Backward = Callable[..., torch.Tensor]
_NN, _ATEN = torch._C._nn, torch.ops.aten
ACTIVATIONS: dict[str, tuple[Forward, Backward]] = {
    "gelu": (_NN.gelu, _ATEN.gelu_backward.grad_input),
    "gelu_tanh": (
        partial(_NN.gelu, approximate="tanh"),
        partial(_ATEN.gelu_backward.grad_input, approximate="tanh"),
    ),
    "relu": (
        partial(torch.clamp_min, min=0),
        partial(_ATEN.threshold_backward.grad_input, threshold=0),
    ),
    "silu": (_NN.silu, _ATEN.silu_backward.grad_input),
}
"""`ModelConfig.activation` -> f(x, out=y), and f(dy, x, grad_input=dx)."""


def activate(site: Site, inputs: StepInputs, into_RF: torch.Tensor, x_RC: torch.Tensor) -> None:
    """Write the activation; a gated one maps each pair of columns (gate, up) to one column."""
    model = site.step.model
    act, _ = ACTIVATIONS[model.activation]
    if not model.gated:
        act(x_RC, out=into_RF)
        return
    gate_RF, up_RF = x_RC.reshape(len(x_RC), -1, 2).unbind(2)
    act(gate_RF.contiguous(), out=into_RF)
    into_RF *= up_RF


def activate_backward(
    site: Site,
    inputs: StepInputs,
    into_RC: torch.Tensor,
    x_RC: torch.Tensor,
    dy_RF: torch.Tensor,
) -> None:
    """Write the gradient of the input."""
    model = site.step.model
    act, act_backward = ACTIVATIONS[model.activation]
    if not model.gated:
        act_backward(dy_RF, x_RC, grad_input=into_RC)
        return
    # Contiguous copies: with a stride of two, torch takes several times longer.
    gate_RF, up_RF = (
        x_RC.reshape(len(x_RC), -1, 2).permute(2, 0, 1).clone(memory_format=torch.contiguous_format)
    )
    dx_RF2 = into_RC.view(*dy_RF.shape, 2)
    up_RF *= dy_RF
    dx_RF2[:, :, 0] = act_backward(up_RF, gate_RF, grad_input=torch.empty_like(up_RF))
    torch.mul(act(gate_RF, out=up_RF), dy_RF, out=dx_RF2[:, :, 1])


def add(
    site: Site,
    inputs: StepInputs,
    into_RC: torch.Tensor,
    stream_RC: torch.Tensor,
    branch_RC: torch.Tensor,
) -> None:
    """Write the residual stream plus the branch after dropout."""
    if inputs.draw is None or not site.step.model.dropout:
        torch.add(stream_RC, branch_RC, out=into_RC)
        return
    add_backward(site, inputs, into_RC, branch_RC)
    into_RC += stream_RC


def add_backward(
    site: Site, inputs: StepInputs, into_RC: torch.Tensor, dy_RC: torch.Tensor
) -> None:
    """Write the gradient of the branch: dropout with the name of the branch's operator."""
    dropped, probability = site.operator.inputs[1], site.step.model.dropout
    drop_out(into_RC, dy_RC, inputs.draw, probability, dropped, site.writes, site.operator.K)


def fan_in(site: Site, inputs: StepInputs, into: torch.Tensor, *blocks: torch.Tensor) -> None:
    """Write the sum of the blocks; of one block a copy."""
    first, *rest = blocks
    if not rest:
        into.copy_(first)
        return
    torch.add(first, rest[0], out=into)
    for block in rest[1:]:
        into += block
