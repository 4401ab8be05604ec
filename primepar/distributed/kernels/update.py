"""The norm of the gradient, and AdamW or SGD element by element.

AdamW is algorithm 2 of Loshchilov and Hutter, ICLR 2019, in the order of operations of
torch.optim.AdamW.
"""

from __future__ import annotations

import math

import torch

from primepar.distributed.kernels.common import widened
from primepar.operators import Site, StepInputs


def squares(site: Site, inputs: StepInputs, *gradients: torch.Tensor) -> torch.Tensor:
    """Return the sum of the squares of some blocks, `[1]`, in float32 at least."""
    sums = [widened(gradient).square().sum() for gradient in gradients]
    return torch.stack(sums).sum(0, keepdim=True)


def norm(site: Site, inputs: StepInputs, *squares_1: torch.Tensor) -> torch.Tensor:
    """Return the root of the sum of the squares, `[1]`."""
    return torch.cat(squares_1).sum(0, keepdim=True).sqrt_()


def first_moment(
    site: Site,
    inputs: StepInputs,
    m: torch.Tensor,
    gradient: torch.Tensor,
    norm_1: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the running mean of the gradients with the first beta.

    With the gradient's norm `norm_1`, `gradient` is clipped first.
    """
    gradient = _clipped(site, gradient, norm_1)
    return widened(m).lerp(gradient, 1 - site.step.betas[0]).to(m.dtype)


def second_moment(
    site: Site,
    inputs: StepInputs,
    v: torch.Tensor,
    gradient: torch.Tensor,
    norm_1: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the running mean of the squared gradients with the second beta; see `first_moment`."""
    gradient, beta = _clipped(site, gradient, norm_1), site.step.betas[1]
    return (widened(v) * beta).addcmul_(gradient, gradient, value=1 - beta).to(v.dtype)


def _clipped(site: Site, gradient: torch.Tensor, norm_1: torch.Tensor | None) -> torch.Tensor:
    """Return the gradient in the dtype of sums, scaled to at most the allowed norm."""
    if norm_1 is None:
        return widened(gradient)
    assert site.step.clip is not None
    return gradient * (site.step.clip / norm_1).clamp_(max=1)


def sgd(
    site: Site,
    inputs: StepInputs,
    w: torch.Tensor,
    gradient: torch.Tensor,
    norm_1: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the new parameter of plain SGD; see `first_moment` for the gradient's norm."""
    return widened(w).sub(_clipped(site, gradient, norm_1), alpha=inputs.rate).to(w.dtype)


def adamw(
    site: Site, inputs: StepInputs, w: torch.Tensor, m: torch.Tensor, v: torch.Tensor
) -> torch.Tensor:
    """Return the new parameter; weight decay applies to the weights of linear operators."""
    step, rate = site.step, inputs.rate
    beta1, beta2 = step.betas
    root = math.sqrt(1 - beta2**inputs.number)
    deviation = widened(v).sqrt().div_(root).add_(step.epsilon)
    operator = step.operators.get(site.name.removesuffix(".weight"))
    decays = operator is not None and operator.kind == "linear"
    kept = 1 - rate * step.decay if decays else 1.0
    size = rate / (1 - beta1**inputs.number)
    return (widened(w) * kept).addcdiv_(widened(m), deviation, value=-size).to(w.dtype)
