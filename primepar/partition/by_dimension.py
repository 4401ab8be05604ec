"""Partition by dimension: one tensor dim is cut along one device axis, in one step.

Source: PrimePar, section 3.1; splitting K and N are the column- and row-parallel linear operators
of Megatron-LM (Shoeybi et al., arXiv 1909.08053), splitting B or M is data parallelism.

A tensor without the dim is whole on every device, and the phase that sums over the dim ends with
an all-reduce: O for N, dI for K, dW for M and B.

Sent per device by a ring all-reduce over d devices:  $2 (d - 1) / d$  elements per element reduced.
Held per device:  $1 / d$ of the two tensors that have the dim, all of the third; with all of their
                  gradients twice that.
"""

from __future__ import annotations

from typing import ClassVar

from primepar.schedule.primitive import Primitive, Slices, Value


class _ByDimension(Primitive):
    axes = ("d",)
    dim: ClassVar[str]

    def steps(self, s: Value) -> Value:
        return 1

    def forward(self, d: Value, t: Value, s: Value) -> Slices:
        return {self.dim: d}

    def sent(self, M: Value, N: Value, K: Value, d: Value) -> Value:
        reduced = {"B": N * K, "M": N * K, "N": M * K, "K": M * N}[self.dim]
        return 2 * (d - 1) * reduced / d

    def held(self, M: Value, N: Value, K: Value, d: Value) -> Value:
        whole = {"B": N * K, "M": N * K, "N": M * K, "K": M * N}[self.dim]
        cut = M * N + N * K + M * K - whole
        return 2 * whole + 2 * cut / d


class ByBatch(_ByDimension):
    """B = d in every phase: data parallelism over the batch; dW is reduced."""

    dim = label = "B"


class BySequence(_ByDimension):
    """M = d in every phase: data parallelism over rows; dW is reduced."""

    dim = label = "M"


class ByInput(_ByDimension):
    """N = d in every phase: Megatron's row-parallel linear operator; O is reduced."""

    dim = label = "N"


class ByOutput(_ByDimension):
    """K = d in every phase: Megatron's column-parallel linear operator; dI is reduced."""

    dim = label = "K"


class Replicated(Primitive):
    """Every device holds all and does the same; nothing is cut. For operators that are not linear.

    A linear operator would do its products twice, so only a plan knows this primitive.
    """

    axes = ("d",)
    label = "R"

    def steps(self, s: Value) -> Value:
        return 1

    def forward(self, d: Value, t: Value, s: Value) -> Slices:
        return {}
