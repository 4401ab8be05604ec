"""The two ends of a partitioned model, whose vocabulary may be cut: embedding and loss.

Legend: M rows of a block, H columns of a block, V rows of the vocabulary in a block.
"""

from __future__ import annotations

import numpy as np

from primepar.models import Operator
from primepar.plan.layouts import lookup, part, summed_rows
from primepar.reference.layers import Array, Tokens, dropout
from primepar.reference.partitioned_devices import Blocks
from primepar.reference.partitioned_step import Step


class PartitionedEmbedding:
    """Each rank looks up what it holds of the token table; partial rows are summed."""

    def __init__(self, step: Step, operator: Operator) -> None:
        self.step, self.width = step, operator.K
        self.lookup = lookup(step.plan)
        self.layout = step.ends("embedding").output
        self.positions = step.parameters.get("embedding.position")
        self.probability = step.plan.model.embedding_dropout
        self.kept = [
            step.kept(self.layout, rank, self.probability, "embedding", self.width)
            for rank in range(step.plan.ranks)
        ]

    def forward(self, *inputs: Blocks) -> Blocks:
        """Give the rows of the tokens, with their positions."""
        tables = self.step.parameters["embedding.token"]
        found = [self._looked_up(rank, table_VH) for rank, table_VH in enumerate(tables)]
        x = self._summed(found)
        if self.positions is not None:
            x = [x_MH + self._position(rank) for rank, x_MH in enumerate(x)]
        return self._dropped(x)

    def backward(self, dy: Blocks) -> tuple[Blocks, ...]:
        """Leave the gradients of the tables; that of a tied head is there, and is added once."""
        dy = self._dropped(dy)
        if self.positions is not None:
            parts = [self._position_gradient(rank, dy_MH) for rank, dy_MH in enumerate(dy)]
            self.step.add_gradient("embedding.position", parts)
        tied = self.step.gradients.get("embedding.token")
        dy = self.step.devices.redistributed(dy, self.layout, part(self.lookup, (0, 2)))
        self.step.add_gradient(
            "embedding.token", [self._table_gradient(rank, dy_MH) for rank, dy_MH in enumerate(dy)]
        )
        if tied is not None:
            own = self.step.gradients["embedding.token"]
            summed: Blocks = [a + b for a, b in zip(own, tied, strict=True)]
            self.step.gradients["embedding.token"] = summed
        return ()

    def _summed(self, found: Blocks) -> Blocks:
        """Sum partial rows in parts; sums that lie elsewhere in the output go there."""
        devices, kept = self.step.devices, summed_rows(self.step.plan)
        count = kept.grid[0] // self.lookup.grid[0]
        parts = [row % count for ((row, _),) in kept.held]
        sums = devices.summed_in_parts(found, self.lookup.peers_along(1), parts)
        return devices.redistributed(sums, kept, self.layout)

    def _local(self, rank: int) -> tuple[Tokens, Tokens]:
        """Of a rank's rows those whose token it holds, and where in its block of the table."""
        ((row, slice_, _),) = self.lookup.held[rank]
        rows = self.step.rows // self.lookup.grid[0]
        size = self.step.vocabulary // self.lookup.grid[1]
        tokens_M = self.step.tokens_M[row * rows : (row + 1) * rows] - slice_ * size
        (here,) = np.nonzero((tokens_M >= 0) & (tokens_M < size))
        return here, tokens_M[here]

    def _looked_up(self, rank: int, table_VH: Array) -> Array:
        here, tokens = self._local(rank)
        rows = self.step.rows // self.lookup.grid[0]
        x_MH = np.zeros((rows, table_VH.shape[1]), table_VH.dtype)
        x_MH[here] = table_VH[tokens]
        return x_MH

    def _table_gradient(self, rank: int, dy_MH: Array) -> Array:
        here, tokens = self._local(rank)
        dtable_VH = np.zeros_like(self.step.parameters["embedding.token"][rank])
        np.add.at(dtable_VH, tokens, dy_MH[here])
        return dtable_VH

    def _position(self, rank: int) -> Array:
        assert self.positions is not None
        rows_M = self.step.block_rows(self.layout, rank) % self.step.positions
        x_MH: Array = self.positions[rank][rows_M]
        return x_MH

    def _position_gradient(self, rank: int, dy_MH: Array) -> Array:
        assert self.positions is not None
        gradient = np.zeros_like(self.positions[rank])
        rows_M = self.step.block_rows(self.layout, rank) % self.step.positions
        np.add.at(gradient, rows_M, dy_MH)
        return gradient

    def _dropped(self, blocks: Blocks) -> Blocks:
        pairs = zip(blocks, self.kept, strict=True)
        return [dropout(x, kept, self.probability) for x, kept in pairs]


class PartitionedLoss:
    """Mean cross-entropy; a row's largest logit, sum and target go over the ranks that share it."""

    def __init__(self, step: Step, operator: Operator) -> None:
        self.step = step
        self.layout = step.ends(operator.name).input
        self.sharing = self.layout.peers_along(1)

    def forward(self, *inputs: Blocks) -> Blocks:
        """Give the loss, the same number on every rank."""
        (x,) = inputs
        devices = self.step.devices
        x = [self._masked(rank, x_MV) for rank, x_MV in enumerate(x)]
        largest = devices.reduced([x_MV.max(axis=1) for x_MV in x], self.sharing, "max")
        x = [x_MV - most_M[:, None] for x_MV, most_M in zip(x, largest, strict=True)]
        pairs = [
            np.stack([np.exp(x_MV).sum(axis=1), self._at_target(rank, x_MV)])
            for rank, x_MV in enumerate(x)
        ]
        totals = devices.reduced(pairs, self.sharing)
        self.shares = [
            np.exp(x_MV) / sum_M[:, None] for x_MV, (sum_M, _) in zip(x, totals, strict=True)
        ]
        losses = [np.sum(np.log(sum_M) - at_M, keepdims=True) for sum_M, at_M in totals]
        summed = devices.reduced(losses, self.layout.peers_along(0))
        return [total / self.step.rows for total in summed]

    def backward(self, dy: Blocks) -> tuple[Blocks, ...]:
        """Give the gradient of the logits times dy; that of the padding is zero."""
        gradients = []
        for rank, (share_MV, scale) in enumerate(zip(self.shares, dy, strict=True)):
            rows, columns = self._targets(rank)
            dx_MV = share_MV.copy()
            dx_MV[rows, columns] -= 1
            gradients.append(dx_MV * (scale / self.step.rows).astype(dx_MV.dtype))
        return (gradients,)

    def _masked(self, rank: int, x_MV: Array) -> Array:
        """The logits, minus infinity where the vocabulary is padded."""
        padding = self._columns(rank) >= self.step.plan.model.vocabulary
        return np.where(padding, x_MV.dtype.type(-np.inf), x_MV)

    def _columns(self, rank: int) -> Tokens:
        return self.step.block_columns(self.layout, rank, self.step.vocabulary)

    def _targets(self, rank: int) -> tuple[Tokens, Tokens]:
        """Of a rank's rows those whose target is among its columns, and which column it is."""
        columns = self._columns(rank)
        targets_M = self.step.targets_M[self.step.block_rows(self.layout, rank)] - columns[0]
        (here,) = np.nonzero((targets_M >= 0) & (targets_M < len(columns)))
        return here, targets_M[here]

    def _at_target(self, rank: int, x_MV: Array) -> Array:
        rows, columns = self._targets(rank)
        at_M = np.zeros(len(x_MV), x_MV.dtype)
        at_M[rows] = x_MV[rows, columns]
        return at_M
