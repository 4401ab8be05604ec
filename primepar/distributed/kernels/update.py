"""The norm of the gradient, and AdamW or SGD element by element.

AdamW is algorithm 2 of Loshchilov and Hutter, ICLR 2019, in the order of operations of
torch.optim.AdamW. The new block of a parameter or moment may have the memory of the old one.
"""

from __future__ import annotations

import math

import torch

from primepar.distributed.kernels.common import wide_room, widened
from primepar.operators import Site, StepInputs


def squares(site: Site, inputs: StepInputs, into_1: torch.Tensor, *gradients: torch.Tensor) -> None:
    """Write the sum of the squares of some blocks, `[1]`, in float32 at least."""
    sums = [widened(gradient).square().sum() for gradient in gradients]
    torch.sum(torch.stack(sums), 0, keepdim=True, out=into_1)


def norm(site: Site, inputs: StepInputs, into_1: torch.Tensor, *squares_1: torch.Tensor) -> None:
    """Write the root of the sum of the squares, `[1]`."""
    torch.sum(torch.cat(squares_1), 0, keepdim=True, out=into_1).sqrt_()


def first_moment(
    site: Site,
    inputs: StepInputs,
    into: torch.Tensor,
    m: torch.Tensor,
    gradient: torch.Tensor,
    norm_1: torch.Tensor | None = None,
) -> None:
    """Write the running mean of the gradients with the first beta.

    With the gradient's norm `norm_1`, `gradient` is clipped first.
    """
    gradient, room = _clipped(site, gradient, norm_1), wide_room(into)
    _rounded(into, torch.lerp(widened(m), gradient, 1 - site.step.betas[0], out=room))


def second_moment(
    site: Site,
    inputs: StepInputs,
    into: torch.Tensor,
    v: torch.Tensor,
    gradient: torch.Tensor,
    norm_1: torch.Tensor | None = None,
) -> None:
    """Write the running mean of the squared gradients with the second beta; see `first_moment`."""
    gradient, beta = _clipped(site, gradient, norm_1), site.step.betas[1]
    room = torch.mul(widened(v), beta, out=wide_room(into))
    _rounded(into, room.addcmul_(gradient, gradient, value=1 - beta))


def _rounded(into: torch.Tensor, room: torch.Tensor) -> None:
    """Write what was computed in the dtype of sums; nothing is to be done in that dtype."""
    if room is not into:
        into.copy_(room)


def _clipped(site: Site, gradient: torch.Tensor, norm_1: torch.Tensor | None) -> torch.Tensor:
    """Return the gradient in the dtype of sums, scaled to at most the allowed norm."""
    if norm_1 is None:
        return widened(gradient)
    assert site.step.clip is not None
    return gradient * (site.step.clip / norm_1).clamp_(max=1)


def sgd(
    site: Site,
    inputs: StepInputs,
    into: torch.Tensor,
    w: torch.Tensor,
    gradient: torch.Tensor,
    norm_1: torch.Tensor | None = None,
) -> None:
    """Write the new parameter of plain SGD; see `first_moment` for the gradient's norm."""
    torch.sub(widened(w), _clipped(site, gradient, norm_1), alpha=inputs.rate, out=into)


def adamw(
    site: Site,
    inputs: StepInputs,
    into: torch.Tensor,
    w: torch.Tensor,
    m: torch.Tensor,
    v: torch.Tensor,
) -> None:
    """Write the new parameter; weight decay applies to the weights of linear operators."""
    step, rate = site.step, inputs.rate
    beta1, beta2 = step.betas
    root = math.sqrt(1 - beta2**inputs.number)
    deviation = widened(v).sqrt().div_(root).add_(step.epsilon)
    kept = 1 - rate * step.decay if site.decays else 1.0
    size = rate / (1 - beta1**inputs.number)
    room = torch.mul(widened(w), kept, out=wide_room(into))
    _rounded(into, room.addcdiv_(widened(m), deviation, value=-size))


def master(site: Site, inputs: StepInputs, into: torch.Tensor, wide: torch.Tensor) -> None:
    """Write the new parameter: its new copy, rounded."""
    into.copy_(wide)
