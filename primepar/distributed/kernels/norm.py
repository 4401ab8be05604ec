"""Layer norm and RMS norm, phase by phase: sums over the columns of a block, then normalization.

The program all-reduces the sums over the ranks that share a row, so they are divided by the width
of the model. Statistics and normalized rows are in float32 at least.
Legend: R rows and C columns of a block, S rows of sums.
"""

from __future__ import annotations

import torch

from primepar.distributed.kernels.common import wide_room, widened
from primepar.operators import Site, StepInputs


def mean(site: Site, inputs: StepInputs, into_R: torch.Tensor, x_RC: torch.Tensor) -> None:
    """Write the sum of every row, `[R]`."""
    torch.sum(x_RC, 1, dtype=into_R.dtype, out=into_R)


def centre(
    site: Site,
    inputs: StepInputs,
    into_RC: torch.Tensor,
    x_RC: torch.Tensor,
    sum_R: torch.Tensor,
) -> None:
    """Write the rows minus their means."""
    torch.sub(x_RC, (sum_R / site.step.model.hidden)[:, None], out=into_RC)


def square(site: Site, inputs: StepInputs, into_R: torch.Tensor, x_RC: torch.Tensor) -> None:
    """Write the sum of the squares of every row, `[R]`."""
    torch.sum(widened(x_RC).square(), 1, out=into_R)


def divide(
    site: Site,
    inputs: StepInputs,
    into_RC: torch.Tensor,
    x_RC: torch.Tensor,
    square_R: torch.Tensor,
) -> None:
    """Write the rows divided by the root of their mean square."""
    torch.mul(x_RC, _scale(site, square_R), out=into_RC)


def forward(
    site: Site,
    inputs: StepInputs,
    into_RC: torch.Tensor,
    normed_RC: torch.Tensor,
    weight_C: torch.Tensor,
    bias_C: torch.Tensor | None = None,
) -> None:
    """Write the normalized rows times the weight, plus the bias if there is one."""
    if bias_C is None:
        torch.mul(normed_RC, weight_C, out=into_RC)
    else:
        torch.addcmul(widened(bias_C), normed_RC, widened(weight_C), out=into_RC)


def gradient(
    site: Site,
    inputs: StepInputs,
    into_C: torch.Tensor,
    dy_RC: torch.Tensor,
    normed_RC: torch.Tensor,
) -> None:
    """Write the gradient of the weight from the block's rows: `[C]`."""
    torch.sum(dy_RC * normed_RC, 0, out=into_C)


def backward_sums(
    site: Site,
    inputs: StepInputs,
    sums_SR: torch.Tensor,
    dy_RC: torch.Tensor,
    weight_C: torch.Tensor,
    normed_RC: torch.Tensor,
) -> None:
    """Write sums of every row, `[S, R]`: of dnormed * normed, and for a layer norm of dnormed."""
    dy_RC, weight_C = widened(dy_RC), widened(weight_C)
    torch.mv(dy_RC * normed_RC, weight_C, out=sums_SR[0])
    if len(sums_SR) == 2:
        torch.mv(dy_RC, weight_C, out=sums_SR[1])


def backward(
    site: Site,
    inputs: StepInputs,
    into_RC: torch.Tensor,
    dy_RC: torch.Tensor,
    weight_C: torch.Tensor,
    normed_RC: torch.Tensor,
    square_R: torch.Tensor,
    sums_SR: torch.Tensor,
) -> None:
    """Write the gradient of the rows."""
    means_SR1 = (sums_SR / site.step.model.hidden)[..., None]
    dx_RC = torch.mul(widened(dy_RC), weight_C, out=wide_room(into_RC))
    dx_RC.addcmul_(normed_RC, means_SR1[0], value=-1)
    if len(means_SR1) == 2:
        dx_RC -= means_SR1[1]
    torch.mul(dx_RC, _scale(site, square_R), out=into_RC)


def _scale(site: Site, square_R: torch.Tensor) -> torch.Tensor:
    """Return one over the standard deviation of every row, `[R, 1]`."""
    model = site.step.model
    return (square_R / model.hidden).add_(model.epsilon).rsqrt_()[:, None]
