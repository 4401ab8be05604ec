"""A linear operator as a module: `O = I W` by its two programs, with this rank's part of W."""

from __future__ import annotations

from functools import cache

import torch
from torch import nn

from primepar.distributed import Mesh, scatter_tensor
from primepar.distributed.modules.linear import Schedules, partitioned_product
from primepar.operators.single_operator import resident_layout
from primepar.schedule import Layout, Linear


class LinearLayer(nn.Module):
    """On this rank's part of the input, over (M, N) in layout `source`, that of the output."""

    def __init__(self, mesh: Mesh, weight_NK: torch.Tensor, source: Layout | None = None) -> None:
        super().__init__()
        self.mesh, (self.N, self.K) = mesh, weight_NK.shape
        self.home = resident_layout(mesh.movement, "forward", "W")
        self.output = resident_layout(mesh.movement, "forward", "O", last=True)
        self.source = self.output if source is None else source
        self.weight = nn.Parameter(scatter_tensor(mesh, self.home, weight_NK))
        self.schedules = cache(self._schedules)

    def _schedules(self, rows: int) -> Schedules:
        return Schedules(self.mesh, Linear(M=rows, N=self.N, K=self.K), self.source)

    def forward(self, x_MN: torch.Tensor) -> torch.Tensor:
        rows, _ = self.source.whole_shape(self.mesh.rank, (len(x_MN), 1))
        return partitioned_product(x_MN, self.weight, self.schedules(rows))
