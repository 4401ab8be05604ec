"""Checks that ranks with the same rows have the same gradient of a parameter that stays whole."""

from __future__ import annotations

import torch
import torch.distributed as dist

from primepar.distributed.parallel.boundaries import Boundaries
from primepar.errors import PlanError

TOLERANCE = 1e-2
"""Relative difference of two sums; a gradient of a part of the heads differs by far more."""


class GradientCheck:
    """Called with the first gradient of a parameter, on all ranks.

    A parameter that is used inside a region has there the gradient of this rank's columns only. A
    mask that ranks draw from different seeds has a similar effect. Both are wrong without a sign,
    so the sums of the gradient and of its absolute values are compared.
    """

    def __init__(self, name: str, boundaries: Boundaries) -> None:
        self.name, self.stream = name, boundaries.stream
        self._is_checked = boundaries.stream.ranks == boundaries.row_groups

    def __call__(self, gradient: torch.Tensor) -> None:
        """Raise `PlanError` on all ranks if ranks with the same rows disagree."""
        if self._is_checked:
            return
        self._is_checked = True
        wide = gradient.detach().to(torch.promote_types(gradient.dtype, torch.float32))
        sums = torch.stack([wide.sum(), wide.abs().sum()])
        by_rank = [torch.empty_like(sums) for _ in range(self.stream.ranks)]
        dist.all_gather(by_rank, sums)
        first: dict[object, torch.Tensor] = {}
        for rank, held in enumerate(self.stream.held):
            expected = first.setdefault(held, by_rank[rank])
            if (by_rank[rank] - expected).abs().max() > TOLERANCE * expected[1]:
                raise PlanError(
                    f"{self.name}: expected the same gradient on ranks with the same rows, got "
                    f"another on rank {rank}: use it outside of regions, and give these ranks one "
                    "torch.manual_seed for dropout"
                )
