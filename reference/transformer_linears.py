"""What the transformer asks of its linear operators, and the ones on one device.

Legend: M rows, batch and positions merged; N input hidden; K output hidden.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from primepar.models import ModelConfig
from primepar.reference.dense import linear, linear_backward
from primepar.reference.layers import Array


class LinearOperator(Protocol):
    """What the transformer asks of a linear operator: it keeps what its backward needs."""

    def forward(self, I_MN: Array, W_NK: Array) -> Array:
        """Give O_MK."""
        ...

    def backward(self, dO_MK: Array) -> tuple[Array, Array]:
        """Give dI_MN and dW_NK of the last forward."""
        ...


class DenseLinear:
    """A linear operator on one device."""

    def forward(self, I_MN: Array, W_NK: Array) -> Array:
        """Give O_MK."""
        self._kept = I_MN, W_NK
        return linear(I_MN, W_NK)

    def backward(self, dO_MK: Array) -> tuple[Array, Array]:
        """Give dI_MN and dW_NK of the last forward."""
        return linear_backward(*self._kept, dO_MK)


def dense_linears(config: ModelConfig) -> Mapping[str, LinearOperator]:
    """Every linear operator of the model on one device."""
    return {name: DenseLinear() for name in config.linear_shapes}
