"""The linear operators of the transformer on emulated devices.

Legend: B batch, M rows, N input hidden, K output hidden.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from primepar.errors import ShapeError
from primepar.models import ModelConfig
from primepar.reference.layers import Array
from primepar.reference.linear import EmulatedLinear
from primepar.reference.transformer_linears import LinearOperator
from primepar.schedule import Linear, Sequence


@dataclass
class BatchedLinear:
    """An emulated linear operator whose sequence splits B: the transformer's rows are cut up.

    Raises `ShapeError` for rows that are not those of its batch.
    """

    emulated: EmulatedLinear

    def forward(self, I_MN: Array, W_NK: Array) -> Array:
        """Give O_MK."""
        return _merged(self.emulated.forward(self._cut(I_MN), W_NK))

    def backward(self, dO_MK: Array) -> tuple[Array, Array]:
        """Give dI_MN and dW_NK of the last forward."""
        dI_BMN, dW_NK = self.emulated.backward(self._cut(dO_MK))
        return _merged(dI_BMN), dW_NK

    def _cut(self, rows: Array) -> Array:
        operator = self.emulated.operator
        if len(rows) != operator.B * operator.M:
            raise ShapeError(
                f"tokens: expected {operator.B} texts of {operator.M} tokens, got {len(rows)} "
                "tokens in all: give emulated_linears the batch, and whole contexts to the model"
            )
        return rows.reshape(operator.B, operator.M, -1)


def _merged(batches: Array) -> Array:
    return batches.reshape(-1, batches.shape[-1])


def emulated_linears(
    config: ModelConfig, sequence: Sequence, batch: int
) -> Mapping[str, LinearOperator]:
    """Every linear operator of the model on the emulated devices of `sequence`.

    They take `batch` texts as long as the context. Raises `ShapeError` naming the linear operator
    that the sequence does not divide.
    """
    linears: dict[str, LinearOperator] = {}
    for name, weight in config.linear_shapes.items():
        try:
            linears[name] = _emulated_linear(config, sequence, batch, weight)
        except ShapeError as error:
            raise ShapeError(f"{name} with sequence {sequence}: {error}") from None
    return linears


def _emulated_linear(
    config: ModelConfig, sequence: Sequence, batch: int, weight: tuple[int, int]
) -> LinearOperator:
    inputs, outputs = weight
    if "B" not in sequence.grid:
        return EmulatedLinear(sequence, Linear(M=batch * config.context, N=inputs, K=outputs))
    operator = Linear(M=config.context, N=inputs, K=outputs, B=batch)
    return BatchedLinear(EmulatedLinear(sequence, operator))
