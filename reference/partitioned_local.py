"""The operators of a partitioned model that work on the block of every rank, and norms.

Every operator has one form: `forward` takes the blocks of its inputs in the layout of its input
and gives those of its output, and keeps what `backward` needs; `backward` takes the gradient of
the output and gives that of each input.

Legend: M rows of a block, H columns of a block; a leading `d` is a gradient.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from primepar.models import Operator
from primepar.reference.layers import Array, dropout
from primepar.reference.layers_activation import activation, activation_backward
from primepar.reference.partitioned_devices import Blocks
from primepar.reference.partitioned_step import Step


class Partitioned(Protocol):
    """One operator on all ranks during one step."""

    def forward(self, *inputs: Blocks) -> Blocks:
        """Give the blocks of the output."""
        ...

    def backward(self, dy: Blocks) -> tuple[Blocks, ...]:
        """Give the blocks of each input's gradient; those of the parameters go to the step."""
        ...


class PartitionedNorm:
    """Layer or RMS norm; its means go over the ranks that share rows."""

    def __init__(self, step: Step, operator: Operator) -> None:
        self.step, self.name, self.width = step, operator.name, operator.K
        self.sharing = step.ends(self.name).output.peers_along(1)
        self.weights = step.parameters[f"{self.name}.weight"]
        self.biases = step.parameters.get(f"{self.name}.bias")

    def forward(self, *inputs: Blocks) -> Blocks:
        """Give the normed rows, times weight plus bias."""
        (x,) = inputs
        if self.biases is not None:
            x = [x_MH - mean_M1 for x_MH, (mean_M1,) in zip(x, self._means(x), strict=True)]
        squares = self._means([x_MH**2 for x_MH in x])
        epsilon = self.step.plan.model.epsilon
        self.roots = [np.sqrt(square_M1 + epsilon) for (square_M1,) in squares]
        self.normed = [x_MH / root_M1 for x_MH, root_M1 in zip(x, self.roots, strict=True)]
        scaled = [n_MH * w_H for n_MH, w_H in zip(self.normed, self.weights, strict=True)]
        if self.biases is None:
            return scaled
        return [y_MH + bias_H for y_MH, bias_H in zip(scaled, self.biases, strict=True)]

    def backward(self, dy: Blocks) -> tuple[Blocks, ...]:
        """Give the gradient of the rows."""
        pairs = zip(dy, self.normed, strict=True)
        along: Blocks = [dy_MH * normed_MH for dy_MH, normed_MH in pairs]
        self.step.add_gradient(f"{self.name}.weight", [each.sum(axis=0) for each in along])
        if self.biases is not None:
            self.step.add_gradient(f"{self.name}.bias", [dy_MH.sum(axis=0) for dy_MH in dy])
        d: Blocks = [dy_MH * weight_H for dy_MH, weight_H in zip(dy, self.weights, strict=True)]
        along = [d_MH * normed_MH for d_MH, normed_MH in zip(d, self.normed, strict=True)]
        means = self._means(along, d) if self.biases is not None else self._means(along)
        return ([self._input(rank, d[rank], *means[rank]) for rank in range(len(d))],)

    def _input(self, rank: int, d_MH: Array, along_M1: Array, mean_M1: Array | float = 0) -> Array:
        dx_MH: Array = (d_MH - mean_M1 - self.normed[rank] * along_M1) / self.roots[rank]
        return dx_MH

    def _means(self, *tensors: Blocks) -> list[Array]:
        """Means of every row of each tensor: on each rank an array (tensors, M, 1)."""
        sums = [
            np.stack([x_MH.sum(axis=1, keepdims=True) for x_MH in blocks])
            for blocks in zip(*tensors, strict=True)
        ]
        return [total / self.width for total in self.step.devices.reduced(sums, self.sharing)]


class PartitionedActivation:
    """The activation, element by element or pair by pair."""

    def __init__(self, step: Step, operator: Operator) -> None:
        self.config = step.plan.model

    def forward(self, *inputs: Blocks) -> Blocks:
        """Give act(x), or act(gate) * up."""
        (self.x,) = inputs
        return [activation(self.config, x) for x in self.x]

    def backward(self, dy: Blocks) -> tuple[Blocks, ...]:
        """Give the gradient of the columns of fc1."""
        pairs = zip(self.x, dy, strict=True)
        return ([activation_backward(self.config, x, dy_MF) for x, dy_MF in pairs],)


class PartitionedAdd:
    """The stream and a branch, which is dropped in part."""

    def __init__(self, step: Step, operator: Operator) -> None:
        layout, self.probability = step.ends(operator.name).output, step.plan.model.dropout
        _, branch = operator.inputs
        self.kept = [
            step.kept(layout, rank, self.probability, branch, operator.K)
            for rank in range(layout.ranks)
        ]

    def forward(self, *inputs: Blocks) -> Blocks:
        """Give the sum."""
        stream, branch = inputs
        return [x + y for x, y in zip(stream, self._dropped(branch), strict=True)]

    def backward(self, dy: Blocks) -> tuple[Blocks, ...]:
        """Give the gradient of the stream and of the branch."""
        return dy, self._dropped(dy)

    def _dropped(self, blocks: Blocks) -> Blocks:
        pairs = zip(blocks, self.kept, strict=True)
        return [dropout(x, kept, self.probability) for x, kept in pairs]
