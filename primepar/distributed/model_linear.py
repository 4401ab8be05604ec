"""Linear operators of a model: with a bias, and with the token table as the weight.

Legend: R rows and C columns of this rank's block of the output; V vocabulary, H hidden.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import nn
from torch.autograd.function import once_differentiable

from primepar.distributed.linear import PartitionedLinear
from primepar.distributed.mesh import Mesh
from primepar.distributed.model_edge import Way
from primepar.distributed.stream import Stream, working_dtype
from primepar.plan import part
from primepar.schedule import Layout


class BiasedLinear(PartitionedLinear):
    """`O = I W + b`, or without a bias; `output` is where O lies."""

    def __init__(
        self,
        mesh: Mesh,
        weight_NK: torch.Tensor,
        source: Layout,
        name: str,
        output: Stream,
        bias_C: nn.Parameter | None,
    ) -> None:
        super().__init__(mesh, weight_NK, source, name)
        self.stream, self.bias = output, bias_C

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Multiply and add."""
        y_RC = super().forward(x)
        if self.bias is None:
            return y_RC
        apply: Callable[..., torch.Tensor] = _AddBias.apply
        return apply(y_RC, self.bias, self.stream)


class _AddBias(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, y_RC: torch.Tensor, bias_C: torch.Tensor, stream: Stream) -> torch.Tensor:
        """Add, once the product is summed; nothing is sent."""
        ctx.stream = stream
        return y_RC + bias_C

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """The bias's gradient is summed over the ranks with other rows, copies left out."""
        (dy_RC,) = gradients
        dbias_C = dy_RC.sum(0, dtype=working_dtype(dy_RC.dtype))
        ctx.stream.mesh.all_reduce(dbias_C, ctx.stream.same_columns, "bias")
        return dy_RC, dbias_C.to(dy_RC.dtype), None


class TiedHead(PartitionedLinear):
    """The head whose weight is the token table, fetched from the embedding for every forward.

    `table` gives this rank's block `[V, H]` cut as in `place`; the gradient goes back to it.
    """

    def __init__(
        self,
        mesh: Mesh,
        table_VH: torch.Tensor,
        source: Layout,
        name: str,
        table: Callable[[], torch.Tensor],
        place: Layout,
    ) -> None:
        super().__init__(mesh, table_VH.T, source, name)
        del self.weight  # a parameter no more: what forward fetches takes its name
        self._table = table
        self._fetch = Way(mesh, place, part(self.home, (1, 0)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Fetch the weight and multiply."""
        if not self.away:
            weight_HV = self._fetch(self._table()).T.contiguous()
            self.weight = cast("nn.Parameter", weight_HV)
        return super().forward(x)
