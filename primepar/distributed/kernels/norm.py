"""Layer norm and RMS norm, phase by phase: sums over the columns of a block, then normalization.

The program all-reduces the sums over the ranks that share a row, so they are divided by the width
of the model. Statistics and normalized rows are in float32 at least.
Legend: R rows and C columns of a block, S rows of sums.
"""

from __future__ import annotations

import torch

from primepar.distributed.kernels.common import widened, working_dtype
from primepar.operators import Site, StepInputs


def mean(site: Site, inputs: StepInputs, x_RC: torch.Tensor) -> torch.Tensor:
    """Return the sum of every row, `[R]`."""
    return x_RC.sum(1, dtype=working_dtype(x_RC.dtype))


def centre(site: Site, inputs: StepInputs, x_RC: torch.Tensor, sum_R: torch.Tensor) -> torch.Tensor:
    """Return the rows minus their means."""
    return x_RC - (sum_R / site.step.model.hidden)[:, None]


def square(site: Site, inputs: StepInputs, x_RC: torch.Tensor) -> torch.Tensor:
    """Return the sum of the squares of every row, `[R]`."""
    return widened(x_RC).square().sum(1)


def divide(
    site: Site, inputs: StepInputs, x_RC: torch.Tensor, square_R: torch.Tensor
) -> torch.Tensor:
    """Return the rows divided by the root of their mean square."""
    return x_RC * _scale(site, square_R)


def forward(
    site: Site,
    inputs: StepInputs,
    normed_RC: torch.Tensor,
    weight_C: torch.Tensor,
    bias_C: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the normalized rows times the weight, plus the bias if there is one."""
    if bias_C is None:
        return (normed_RC * weight_C).to(weight_C.dtype)
    return torch.addcmul(widened(bias_C), normed_RC, widened(weight_C)).to(weight_C.dtype)


def gradient(
    site: Site, inputs: StepInputs, dy_RC: torch.Tensor, normed_RC: torch.Tensor
) -> torch.Tensor:
    """Return the gradient of the weight from the block's rows: `[C]`."""
    return (dy_RC * normed_RC).sum(0)


def backward_sums(
    site: Site,
    inputs: StepInputs,
    dy_RC: torch.Tensor,
    weight_C: torch.Tensor,
    normed_RC: torch.Tensor,
) -> torch.Tensor:
    """Return sums of every row, `[S, R]`: of dnormed * normed, and for a layer norm of dnormed."""
    dy_RC, weight_C = widened(dy_RC), widened(weight_C)
    sums_SR = dy_RC.new_empty(site.writes[0][1], len(dy_RC))
    torch.mv(dy_RC * normed_RC, weight_C, out=sums_SR[0])
    if len(sums_SR) == 2:
        torch.mv(dy_RC, weight_C, out=sums_SR[1])
    return sums_SR


def backward(
    site: Site,
    inputs: StepInputs,
    dy_RC: torch.Tensor,
    weight_C: torch.Tensor,
    normed_RC: torch.Tensor,
    square_R: torch.Tensor,
    sums_SR: torch.Tensor,
) -> torch.Tensor:
    """Return the gradient of the rows."""
    means_SR1 = (sums_SR / site.step.model.hidden)[..., None]
    dx_RC = widened(dy_RC) * weight_C
    dx_RC.addcmul_(normed_RC, means_SR1[0], value=-1)
    if len(means_SR1) == 2:
        dx_RC -= means_SR1[1]
    return dx_RC.mul_(_scale(site, square_R)).to(dy_RC.dtype)


def _scale(site: Site, square_R: torch.Tensor) -> torch.Tensor:
    """Return one over the standard deviation of every row, `[R, 1]`."""
    model = site.step.model
    return (square_R / model.hidden).add_(model.epsilon).rsqrt_()[:, None]
