"""One linear layer with half the squared error as its loss, on one worker's batch.

A dim of length one in front numbers the worker; a model that all workers share has none.
"""

from __future__ import annotations

import torch

from primepar.distributed.kernels.common import widened
from primepar.operators import Site, StepInputs


def residual(
    site: Site, inputs: StepInputs, x: torch.Tensor, w: torch.Tensor, target: torch.Tensor
) -> torch.Tensor:
    """Return the prediction less the target, `[1, M, K]`."""
    return x @ w - target


def gradient(
    site: Site, inputs: StepInputs, x: torch.Tensor, residual: torch.Tensor
) -> torch.Tensor:
    """Return the gradient of half the sum of squares with respect to the weight, `[1, N, K]`."""
    return x.transpose(1, 2) @ residual


def part(site: Site, inputs: StepInputs, block: torch.Tensor) -> torch.Tensor:
    """Return a worker's block without the dim of workers, in the dtype of sums."""
    return widened(block[0]).clone()
