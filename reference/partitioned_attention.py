"""The attention of a partitioned model: every rank's queries, and all keys before them.

A rank has whole sequences, or a part of one. Of that the other parts lie on other ranks: forward
gathers keys and values over these, before heads share them, and keeps them; backward sums their
gradients over the same ranks, each of which is left its own part.

Legend: M rows and C columns of a block of qkv, B sequences and T positions of it, S positions of
whole sequences, G key/value heads, D elements of one head, H columns of a block of the output. A
leading `d` is a gradient.
"""

from __future__ import annotations

import numpy as np

from primepar.models import Operator
from primepar.plan.layouts import sequence_lines
from primepar.reference.layers import Array
from primepar.reference.layers_attention import (
    Part,
    attend_to,
    attend_to_backward,
    operands,
    operands_backward,
)
from primepar.reference.partitioned_devices import Blocks
from primepar.reference.partitioned_step import Step


class PartitionedAttention:
    """Attention on the key/value groups and on the rows of every rank."""

    def __init__(self, step: Step, operator: Operator) -> None:
        self.step, self.name = step, operator.name
        self.layout = step.ends(self.name).output
        self.lines = sequence_lines(self.layout, step.rows // step.positions)
        self.parts = [self._part(rank) for rank in range(self.layout.ranks)]
        self.positions = step.positions // len(self.lines[0])

    def forward(self, *inputs: Blocks) -> Blocks:
        """Give the heads side by side."""
        (x,) = inputs
        pairs = zip(self.parts, x, strict=True)
        own = [operands(part, self._sequences(x_MC)) for part, x_MC in pairs]
        gathered = self.step.devices.gathered(
            [_rows_first(k_BGTD, v_BGTD) for _, k_BGTD, v_BGTD in own], self.lines
        )
        self.kept = [
            (q_BATD, *_rows_last(kv_S2BGD))
            for (q_BATD, _, _), kv_S2BGD in zip(own, gathered, strict=True)
        ]
        return [
            _rows(attend_to(part, *kept, self.step.draw, self.name))
            for part, kept in zip(self.parts, self.kept, strict=True)
        ]

    def backward(self, dy: Blocks) -> tuple[Blocks, ...]:
        """Give the gradient of the columns of qkv."""
        gradients = [
            attend_to_backward(part, *kept, self._sequences(dy_MH), self.step.draw, self.name)
            for part, kept, dy_MH in zip(self.parts, self.kept, dy, strict=True)
        ]
        places = {rank: place for line in self.lines for place, rank in enumerate(line)}
        summed = self.step.devices.summed_in_parts(
            [_rows_first(dk_BGSD, dv_BGSD) for _, dk_BGSD, dv_BGSD in gradients],
            self.lines,
            [places[rank] for rank in range(self.layout.ranks)],
        )
        ends = zip(self.parts, gradients, summed, strict=True)
        dx = [
            _rows(operands_backward(part, dq_BATD, *_rows_last(dkv_T2BGD)))
            for part, (dq_BATD, _, _), dkv_T2BGD in ends
        ]
        return (dx,)

    def _part(self, rank: int) -> Part:
        config = self.step.plan.model
        groups = self.step.block_columns(self.layout, rank, config.kv_heads)
        row = int(self.step.block_rows(self.layout, rank)[0])
        sequence, position = divmod(row, self.step.positions)
        return Part(config, int(groups[0]), len(groups), sequence, position)

    def _sequences(self, x_MC: Array) -> Array:
        return x_MC.reshape(-1, self.positions, x_MC.shape[-1])


def _rows(x_BTC: Array) -> Array:
    return x_BTC.reshape(-1, x_BTC.shape[-1])


def _rows_first(k_BGTD: Array, v_BGTD: Array) -> Array:
    """Key and value as one block (T, 2, B, G, D), which can be cut and joined along its rows."""
    return np.moveaxis(np.stack([k_BGTD, v_BGTD]), -2, 0)


def _rows_last(kv_T2BGD: Array) -> tuple[Array, Array]:
    """Key and value (B, G, T, D) out of such a block."""
    k_BGTD, v_BGTD = np.moveaxis(kv_T2BGD, 0, -2)
    return k_BGTD, v_BGTD
