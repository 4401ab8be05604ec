"""The norm of the gradient, and AdamW or SGD element by element.

AdamW is algorithm 2 of Loshchilov and Hutter, ICLR 2019, in the order of operations of
torch.optim.AdamW. The new block of a parameter or moment may have the memory of the old one.
"""

from __future__ import annotations

import math

import torch

from primepar.distributed.kernels.common import wide_room, widened, working_dtype
from primepar.operators import Site, StepInputs


def squares(site: Site, inputs: StepInputs, into_1: torch.Tensor, *gradients: torch.Tensor) -> None:
    """Write the sum of the squares of some blocks, `[1]`, in float32 at least."""
    sums = [widened(gradient).square().sum() for gradient in gradients]
    torch.sum(torch.stack(sums), 0, keepdim=True, out=into_1)


def norm(site: Site, inputs: StepInputs, into_1: torch.Tensor, *squares_1: torch.Tensor) -> None:
    """Write the root of the sum of the squares, `[1]`, over the scale of the loss."""
    torch.sum(torch.cat(squares_1), 0, keepdim=True, out=into_1).sqrt_().div_(inputs.scale)


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
    gradient, room = _clipped(site, inputs, gradient, norm_1), _room(into, inputs)
    made = torch.lerp(widened(m), gradient, 1 - site.step.adamw.beta1, out=room)
    _write(into, made, m, inputs, norm_1)


def second_moment(
    site: Site,
    inputs: StepInputs,
    into: torch.Tensor,
    v: torch.Tensor,
    gradient: torch.Tensor,
    norm_1: torch.Tensor | None = None,
) -> None:
    """Write the running mean of the squared gradients with the second beta; see `first_moment`."""
    gradient, beta = _clipped(site, inputs, gradient, norm_1), site.step.adamw.beta2
    made = torch.mul(widened(v), beta, out=_room(into, inputs))
    _write(into, made.addcmul_(gradient, gradient, value=1 - beta), v, inputs, norm_1)


def _room(into: torch.Tensor, inputs: StepInputs) -> torch.Tensor:
    """Return where to compute: the block, or other memory for a short type, or if it may stay."""
    if inputs.loss_scale is None:
        return wide_room(into)
    return torch.empty_like(into, dtype=working_dtype(into.dtype))


def _write(
    into: torch.Tensor,
    made: torch.Tensor,
    old: torch.Tensor,
    inputs: StepInputs,
    norm_1: torch.Tensor | None,
) -> None:
    """Write what was made, or with a loss scale `old` where the gradient's norm is not finite."""
    if inputs.loss_scale is not None and norm_1 is not None:
        made = torch.where(norm_1.isfinite(), made, widened(old))
    if made is not into:
        into.copy_(made)


def _clipped(
    site: Site, inputs: StepInputs, gradient: torch.Tensor, norm_1: torch.Tensor | None
) -> torch.Tensor:
    """Return the gradient in the dtype of sums and without loss scale, of the allowed norm."""
    gradient, clip = widened(gradient), site.step.clip
    if inputs.loss_scale is not None:
        gradient = gradient / inputs.loss_scale
    if norm_1 is None or clip is None:
        return gradient
    return gradient * (clip / norm_1).clamp_(max=1)


def sgd(
    site: Site,
    inputs: StepInputs,
    into: torch.Tensor,
    w: torch.Tensor,
    gradient: torch.Tensor,
    norm_1: torch.Tensor | None = None,
) -> None:
    """Write the new parameter of plain SGD; see `first_moment` for the gradient's norm."""
    gradient = _clipped(site, inputs, gradient, norm_1)
    made = torch.sub(widened(w), gradient, alpha=inputs.rate, out=_room(into, inputs))
    _write(into, made, w, inputs, norm_1)


def adamw(
    site: Site,
    inputs: StepInputs,
    into: torch.Tensor,
    w: torch.Tensor,
    m: torch.Tensor,
    v: torch.Tensor,
    norm_1: torch.Tensor | None = None,
) -> None:
    """Write the new parameter; see `Site.decays` for what decays."""
    constants, rate = site.step.adamw, inputs.rate
    root = math.sqrt(1 - constants.beta2**inputs.number)
    deviation = widened(v).sqrt().div_(root).add_(constants.epsilon)
    kept = 1 - rate * constants.decay if site.decays else 1.0
    size = rate / (1 - constants.beta1**inputs.number)
    made = torch.mul(widened(w), kept, out=_room(into, inputs))
    _write(into, made.addcdiv_(widened(m), deviation, value=-size), w, inputs, norm_1)


def master(site: Site, inputs: StepInputs, into: torch.Tensor, wide: torch.Tensor) -> None:
    """Write the new parameter: its new copy, rounded."""
    into.copy_(wide)
