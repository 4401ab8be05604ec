"""Layer norm and RMS norm, phase by phase: statistics of the rows, then normalization.

The columns of a row are divided into P equal parts. A layer norm has mean and variance of each,
`[2, R, P]`. The mean of the row is that of the means, its variance the mean of the variances plus
the variance of the means (Chan, Golub and LeVeque, 1979): no large squares are subtracted. An RMS
norm has the sum of the squares, `[R]`, which the program all-reduces.
Statistics and normalized rows are in float32 at least.
Legend: R rows and C columns of a block, P parts of a row, S rows of sums.
"""

from __future__ import annotations

import torch

from primepar.distributed.kernels.common import widened
from primepar.operators import Site, StepInputs


def moments(site: Site, inputs: StepInputs, x_RC: torch.Tensor) -> torch.Tensor:
    """Return mean and variance of every row's columns, `[2, R, 1]`."""
    variance_R, mean_R = torch.var_mean(widened(x_RC), 1, correction=0)
    return torch.stack((mean_R, variance_R))[..., None]


def square(site: Site, inputs: StepInputs, x_RC: torch.Tensor) -> torch.Tensor:
    """Return the sum of the squares of every row, `[R]`."""
    return widened(x_RC).square().sum(1)


def normalize(
    site: Site, inputs: StepInputs, x_RC: torch.Tensor, statistics: torch.Tensor
) -> torch.Tensor:
    """Return the rows, minus their means in a layer norm, times one over their deviation."""
    scale_R1 = _scale(site, statistics)
    if statistics.dim() == 1:
        return x_RC * scale_R1
    return (x_RC - statistics[0].mean(1, keepdim=True)).mul_(scale_R1)


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
    statistics: torch.Tensor,
    sums_SR: torch.Tensor,
) -> torch.Tensor:
    """Return the gradient of the rows."""
    means_SR1 = (sums_SR / site.step.model.hidden)[..., None]
    dx_RC = widened(dy_RC) * weight_C
    dx_RC.addcmul_(normed_RC, means_SR1[0], value=-1)
    if len(means_SR1) == 2:
        dx_RC -= means_SR1[1]
    return dx_RC.mul_(_scale(site, statistics)).to(dy_RC.dtype)


def _scale(site: Site, statistics: torch.Tensor) -> torch.Tensor:
    """Return one over the standard deviation of every row, `[R, 1]`."""
    model = site.step.model
    if statistics.dim() == 1:
        variance_R = statistics / model.hidden
    else:
        mean_RP, variance_RP = statistics
        variance_R = variance_RP.mean(1).add_(mean_RP.var(1, correction=0))
    return variance_R.add_(model.epsilon).rsqrt_()[:, None]
