"""Mean cross-entropy over a vocabulary that may be sharded, phase by phase.

Columns beyond the vocabulary are padding, with no probability and no gradient. Sums and
probabilities (shares) are in float32 at least. Where rows are whole on a rank, torch's own kernels
make the logarithms of the shares, and the loss.
Legend: R rows of a block, C columns of the vocabulary in it, the first N of them without padding.
"""

from __future__ import annotations

import torch
from torch.nn import functional

from primepar.distributed.kernels.common import PIECE, Line, wide_room
from primepar.operators import Site, StepInputs


def largest(site: Site, inputs: StepInputs, into_R: torch.Tensor, x_RC: torch.Tensor) -> None:
    """Write the largest logit of every row, `[R]`; minus infinity if all is padding."""
    known = _known(site, site.reads[0][1])
    if not known:
        into_R.fill_(-torch.inf)
    else:
        into_R.copy_(x_RC[:, :known].amax(1))


def sums(
    site: Site,
    inputs: StepInputs,
    sums_2R: torch.Tensor,
    x_RC: torch.Tensor,
    largest_R: torch.Tensor,
    target_R: torch.Tensor,
) -> None:
    """Write for every row, `[2, R]`, the sum of exp(logit), and the target's logit.

    The second is zero if the target is not in the block. The largest logit of the row is subtracted
    first.
    """
    columns = site.reads[0][1]
    if not (known := _known(site, columns)):
        sums_2R.zero_()
        return
    rows = max(1, PIECE.get(x_RC.device.type, 1 << 62) // known)
    column_R1, mine_R1 = _targets(target_R, columns, known)
    operands = x_RC[:, :known], largest_R[:, None], column_R1, mine_R1, sums_2R.t()
    for x_RN, largest_R1, target_R1, here_R1, sums_R2 in zip(
        *(torch.split(operand, rows) for operand in operands), strict=True
    ):
        shifted_RN = x_RN - largest_R1
        torch.mul(shifted_RN.gather(1, target_R1), here_R1, out=sums_R2[:, 1:])
        torch.sum(shifted_RN.exp_(), 1, out=sums_R2[:, 0])


def forward(site: Site, inputs: StepInputs, into_1: torch.Tensor, sums_2R: torch.Tensor) -> None:
    """Write the sum of the rows' losses, `[1]`; the program divides it by the step's rows."""
    torch.sum(sums_2R[0].log() - sums_2R[1], 0, keepdim=True, out=into_1)


def shares(
    site: Site,
    inputs: StepInputs,
    shares_RC: torch.Tensor,
    x_RC: torch.Tensor,
    largest_R: torch.Tensor,
    sums_2R: torch.Tensor,
) -> None:
    """Write the softmax of every row."""
    known = _known(site, site.reads[0][1])
    shares_RC[:, known:] = 0
    shares_RN = shares_RC[:, :known]
    torch.sub(x_RC[:, :known], largest_R[:, None], out=shares_RN)
    shares_RN.exp_().div_(sums_2R[0][:, None])


def backward(
    site: Site,
    inputs: StepInputs,
    into_RC: torch.Tensor,
    shares_RC: torch.Tensor,
    target_R: torch.Tensor,
) -> None:
    """Write the gradient of the rows' losses: the shares, minus 1 at the target, times their scale.

    The program divides it by the rows of the whole step.
    """
    columns = site.writes[1]
    column_R1, mine_R1 = _targets(target_R, columns, columns[1] - columns[0])
    at_target_R1 = mine_R1.to(shares_RC.dtype).neg_()
    # In half precision the difference is rounded, not the share.
    room_RC = wide_room(into_RC)
    if room_RC is not shares_RC:
        room_RC.copy_(shares_RC)
    room_RC.scatter_add_(1, column_R1, at_target_R1)
    if inputs.loss_scale is not None:
        room_RC.mul_(inputs.loss_scale)
    if room_RC is not into_RC:
        into_RC.copy_(room_RC)


def logs(site: Site, inputs: StepInputs, logs_RC: torch.Tensor, x_RC: torch.Tensor) -> None:
    """Write the logarithms of the shares of whole rows; `logs_RC` may be `x_RC`."""
    known = _known(site, site.reads[0][1])
    logs_RN = logs_RC[:, :known]
    torch.log_softmax(x_RC[:, :known], 1, dtype=logs_RC.dtype, out=logs_RN)
    logs_RC[:, known:] = -torch.inf


def whole_forward(
    site: Site,
    inputs: StepInputs,
    into_1: torch.Tensor,
    logs_RC: torch.Tensor,
    target_R: torch.Tensor,
) -> None:
    """Write the sum of the rows' losses, `[1]`, as `forward` does."""
    into_1.copy_(functional.nll_loss(logs_RC, target_R, reduction="sum"))


def whole_backward(
    site: Site,
    inputs: StepInputs,
    into_RC: torch.Tensor,
    logs_RC: torch.Tensor,
    target_R: torch.Tensor,
) -> None:
    """Write the gradient of the rows' losses, as `backward` does; `into_RC` may be `logs_RC`."""
    shares_RC = torch.exp(logs_RC, out=wide_room(into_RC))
    backward(site, inputs, into_RC, shares_RC, target_R)


def _known(site: Site, columns: Line) -> int:
    """Return the number of columns of a block that are not padding."""
    first, end = columns
    return max(0, min(end, site.step.model.vocabulary) - first)


def _targets(target_R: torch.Tensor, columns: Line, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the column of every target in a block of `size` columns, and whether it has it."""
    column_R1 = (target_R - columns[0])[:, None]
    inside_R1 = column_R1.clamp(0, size - 1)
    return inside_R1, column_R1 == inside_R1
