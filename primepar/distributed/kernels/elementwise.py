"""Activations, additions and sums, element by element.

Legend: R rows and C columns of a block, F columns of the activation's output.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch.nn import functional

from primepar.distributed.kernels.common import drop_out
from primepar.operators import Site, StepInputs

Forward = Callable[[torch.Tensor], torch.Tensor]
Backward = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
_ATEN = torch.ops.aten
ACTIVATIONS: dict[str, tuple[Forward, Backward]] = {
    "gelu": (functional.gelu, _ATEN.gelu_backward),
    "gelu_tanh": (
        partial(functional.gelu, approximate="tanh"),
        partial(_ATEN.gelu_backward, approximate="tanh"),
    ),
    "relu": (functional.relu, partial(_ATEN.threshold_backward, threshold=0)),
    "silu": (functional.silu, _ATEN.silu_backward),
}
"""`ModelConfig.activation` -> f(x), and the gradient of x as f(dy, x)."""


def activate(site: Site, inputs: StepInputs, x_RC: torch.Tensor) -> torch.Tensor:
    """Return the activation; a gated one maps each pair of columns (gate, up) to one column."""
    model = site.step.model
    act, _ = ACTIVATIONS[model.activation]
    if not model.gated:
        return act(x_RC)
    gate_RF, up_RF = x_RC.reshape(len(x_RC), -1, 2).unbind(2)
    return act(gate_RF.contiguous()).mul_(up_RF)


def activate_backward(
    site: Site, inputs: StepInputs, x_RC: torch.Tensor, dy_RF: torch.Tensor
) -> torch.Tensor:
    """Return the gradient of the input."""
    model = site.step.model
    act, act_backward = ACTIVATIONS[model.activation]
    if not model.gated:
        return act_backward(dy_RF, x_RC)
    # Contiguous copies: with a stride of two, torch takes several times longer.
    gate_RF, up_RF = (
        x_RC.reshape(len(x_RC), -1, 2).permute(2, 0, 1).clone(memory_format=torch.contiguous_format)
    )
    dx_RF2 = x_RC.new_empty(*dy_RF.shape, 2)
    dx_RF2[:, :, 0] = act_backward(up_RF.mul_(dy_RF), gate_RF)
    torch.mul(act(gate_RF), dy_RF, out=dx_RF2[:, :, 1])
    return dx_RF2.view(x_RC.shape)


def add(
    site: Site, inputs: StepInputs, stream_RC: torch.Tensor, branch_RC: torch.Tensor
) -> torch.Tensor:
    """Return the residual stream plus the branch after dropout."""
    if inputs.draw is None or not site.step.model.dropout:
        return stream_RC + branch_RC
    return _branch(site, inputs, branch_RC).add_(stream_RC)


def add_backward(site: Site, inputs: StepInputs, dy_RC: torch.Tensor) -> torch.Tensor:
    """Return the gradient of the branch."""
    return _branch(site, inputs, dy_RC)


def _branch(site: Site, inputs: StepInputs, x_RC: torch.Tensor) -> torch.Tensor:
    """Apply dropout with the name of the operator that produced the branch."""
    dropped = site.operator.inputs[1]
    return drop_out(
        x_RC, inputs.draw, site.step.model.dropout, dropped, site.writes, site.operator.K
    )


def fan_in(site: Site, inputs: StepInputs, *blocks: torch.Tensor) -> torch.Tensor:
    """Return the sum of the blocks, in the widest of their dtypes; of one block a copy."""
    first, *rest = blocks
    if not rest:
        return first.clone()
    total, others = first + rest[0], rest[1:]
    for block in others:
        total += block
    return total
