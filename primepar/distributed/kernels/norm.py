"""Layer norm and RMS norm, phase by phase: statistics of the rows, then normalization.

The columns of a row are divided into P equal parts. A layer norm has mean and variance of each,
`[2, R, P]`. The mean of the row is that of the means, its variance the mean of the variances plus
the variance of the means (Chan, Golub and LeVeque, 1979): no large squares are subtracted. An RMS
norm has the sum of the squares, `[R]`, which the program all-reduces.
Statistics and normalized rows are in float32 at least.

Where rows are whole on a rank, a layer norm is torch's own, one kernel for each result. What
torch allocates is returned, and is the block.
Legend: R rows and C columns of a block, P parts of a row, S rows of sums.
"""

from __future__ import annotations

from functools import lru_cache

import torch

from primepar.distributed.kernels.common import wide_room, widened
from primepar.operators import Site, StepInputs


def moments(site: Site, inputs: StepInputs, into_2R1: torch.Tensor, x_RC: torch.Tensor) -> None:
    """Write mean and variance of every row's columns, `[2, R, 1]`.

    The mean of what is left after a first mean corrects its rounding. On a CPU this takes less than
    a tenth of the time of `torch.var_mean`.
    """
    x_RC = widened(x_RC)
    first_R1 = x_RC.mean(1, keepdim=True)
    rest_RC = x_RC - first_R1
    rounding_R1 = rest_RC.mean(1, keepdim=True)
    torch.add(first_R1, rounding_R1, out=into_2R1[0])
    torch.mean(rest_RC.square_(), 1, keepdim=True, out=into_2R1[1])
    into_2R1[1].addcmul_(rounding_R1, rounding_R1, value=-1)


def square(site: Site, inputs: StepInputs, into_R: torch.Tensor, x_RC: torch.Tensor) -> None:
    """Write the sum of the squares of every row, `[R]`."""
    torch.sum(widened(x_RC).square(), 1, out=into_R)


def normalize(
    site: Site,
    inputs: StepInputs,
    into_RC: torch.Tensor,
    x_RC: torch.Tensor,
    statistics: torch.Tensor,
) -> None:
    """Write the rows, minus their means in a layer norm, times one over their deviation."""
    scale_R1 = _scale(site, statistics)
    if statistics.dim() == 1:
        torch.mul(x_RC, scale_R1, out=into_RC)
    else:
        torch.sub(x_RC, _mean(statistics[0]), out=into_RC).mul_(scale_R1)


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
    statistics: torch.Tensor,
    sums_SR: torch.Tensor,
) -> None:
    """Write the gradient of the rows."""
    means_SR1 = (sums_SR / site.step.model.hidden)[..., None]
    dx_RC = torch.mul(widened(dy_RC), weight_C, out=wide_room(into_RC))
    dx_RC.addcmul_(normed_RC, means_SR1[0], value=-1)
    if len(means_SR1) == 2:
        dx_RC -= means_SR1[1]
    torch.mul(dx_RC, _scale(site, statistics), out=into_RC)


def _scale(site: Site, statistics: torch.Tensor) -> torch.Tensor:
    """Return one over the standard deviation of every row, `[R, 1]`."""
    model = site.step.model
    if statistics.dim() == 1:
        variance_R = statistics / model.hidden
    else:
        mean_RP, variance_RP = statistics
        variance_R = variance_RP.mean(1)
        if mean_RP.shape[1] > 1:
            variance_R += (mean_RP - _mean(mean_RP)).square_().mean(1)
    return variance_R.add_(model.epsilon).rsqrt_()[:, None]


def _mean(mean_RP: torch.Tensor) -> torch.Tensor:
    """Return the mean of every row, `[R, 1]`, from those of its parts."""
    return mean_RP if mean_RP.shape[1] == 1 else mean_RP.mean(1, keepdim=True)


def row_statistics(
    site: Site, inputs: StepInputs, into_2R: torch.Tensor, x_RC: torch.Tensor
) -> None:
    """Write mean, and one over the standard deviation, of every whole row, `[2, R]`."""
    # On a CPU `torch.var_mean` takes 200 times as long.
    _, mean_R1, scale_R1 = _whole_rows(site, x_RC)
    torch.stack((mean_R1[:, 0], scale_R1[:, 0]), out=into_2R)


def normalize_rows(site: Site, inputs: StepInputs, x_RC: torch.Tensor) -> torch.Tensor:
    """Return whole rows, minus their means, times one over their deviation."""
    return _whole_rows(site, x_RC)[0]


def weight_gradient(
    site: Site, inputs: StepInputs, dy_RC: torch.Tensor, normed_RC: torch.Tensor
) -> torch.Tensor:
    """Return the sum over the rows for the weight's gradient, `[C]`, in float32 at least."""
    return _gradient(1, dy_RC, normed_RC, normed_RC[0])


def layer_norm_backward(
    site: Site,
    inputs: StepInputs,
    dy_RC: torch.Tensor,
    weight_C: torch.Tensor,
    normed_RC: torch.Tensor,
    statistics_2R: torch.Tensor,
) -> torch.Tensor:
    """Return the gradient of whole rows."""
    dx_RC = _gradient(0, dy_RC, normed_RC, widened(weight_C))
    return dx_RC.mul_(statistics_2R[1][:, None]).to(dy_RC.dtype)


def _whole_rows(site: Site, x_RC: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return normalized rows, means `[R, 1]`, and one over the deviations."""
    model = site.step.model
    return torch.native_layer_norm(widened(x_RC), (model.hidden,), None, None, model.epsilon)


def _gradient(
    which: int, dy_RC: torch.Tensor, normed_RC: torch.Tensor, weight_C: torch.Tensor
) -> torch.Tensor:
    """Return the gradient of rows (0) that are normalized already, or of the weight (1).

    Of the weight torch needs shape and dtype alone for its gradient.
    """
    rows, hidden = normed_RC.shape
    zero_R1, one_R1 = _statistics_of_normed(rows, normed_RC.dtype, normed_RC.device)
    mask = [which == 0, which == 1, False]
    gradients = torch.ops.aten.native_layer_norm_backward(
        widened(dy_RC), normed_RC, (hidden,), zero_R1, one_R1, weight_C, None, mask
    )
    gradient: torch.Tensor = gradients[which]
    return gradient


@lru_cache(maxsize=64)
def _statistics_of_normed(
    rows: int, dtype: torch.dtype, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return mean and scale of rows that are normalized, `[R, 1]`."""
    like = torch.empty(rows, 1, dtype=dtype, device=device)
    return torch.zeros_like(like), torch.ones_like(like)
