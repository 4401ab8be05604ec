"""One linear layer with half the squared error as its loss, on one worker's batch.

A dim of length one in front numbers the worker; a model that all workers share has none.
"""

from __future__ import annotations

import torch

from primepar.operators import Site, StepInputs


def residual(
    site: Site,
    inputs: StepInputs,
    into: torch.Tensor,
    x: torch.Tensor,
    w: torch.Tensor,
    target: torch.Tensor,
) -> None:
    """Write the prediction less the target, `[1, M, K]`."""
    torch.sub(x @ w, target, out=into)


def gradient(
    site: Site, inputs: StepInputs, into: torch.Tensor, x: torch.Tensor, residual: torch.Tensor
) -> None:
    """Write the gradient of half the sum of squares with respect to the weight, `[1, N, K]`."""
    torch.matmul(x.transpose(1, 2), residual, out=into)


def part(site: Site, inputs: StepInputs, into: torch.Tensor, block: torch.Tensor) -> None:
    """Write a worker's block without the dim of workers, in the dtype of sums."""
    into.copy_(block[0])
