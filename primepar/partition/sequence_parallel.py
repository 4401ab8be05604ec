"""Sequence parallelism: one-dimensional tensor parallelism whose activations stay sharded along M.

Source: Korthikanti et al., arXiv 2205.05198.

The column operator gathers I along the axis and scatters dI; the row operator scatters O and
gathers dO. The gathered I is not kept: it is gathered again for dW; dO is gathered once for dI and
dW.

Sent per device over d:  column $3 (d - 1) / d MN$ elements, row $2 (d - 1) / d MK$ elements.
Held per device:         $1 / d$ of each tensor between phases; at most the whole of the one that is
                         gathered and $1 / d$ of all gradients in addition.
"""

from __future__ import annotations

from primepar.schedule.primitive import Primitive, Slices, Value


class SequenceColumn(Primitive):
    """K=d in every phase; homes: I [d, :], W [:, d], O [:, d]."""

    axes = ("d",)
    label = "Ks"

    def steps(self, s: Value) -> Value:
        return 1

    def forward(self, d: Value, t: Value, s: Value) -> Slices:
        return dict(K=d)

    def home(self, tensor: str, d: Value, s: Value) -> Slices:
        return {"I": dict(M=d), "W": dict(K=d), "O": dict(K=d)}[tensor]

    def sent(self, M: Value, N: Value, K: Value, s: Value) -> Value:
        return 3 * (s - 1) * M * N / s

    def held(self, M: Value, N: Value, K: Value, s: Value) -> Value:
        return ((s + 1) * M * N + 2 * N * K + 2 * M * K) / s


class SequenceRow(Primitive):
    """N=d in every phase; homes: I [:, d], W [d, :], O [d, :]."""

    axes = ("d",)
    label = "Ns"

    def steps(self, s: Value) -> Value:
        return 1

    def forward(self, d: Value, t: Value, s: Value) -> Slices:
        return dict(N=d)

    def home(self, tensor: str, d: Value, s: Value) -> Slices:
        return {"I": dict(N=d), "W": dict(N=d), "O": dict(M=d)}[tensor]

    def sent(self, M: Value, N: Value, K: Value, s: Value) -> Value:
        return 2 * (s - 1) * M * K / s

    def held(self, M: Value, N: Value, K: Value, s: Value) -> Value:
        return (2 * M * N + 2 * N * K + (s + 1) * M * K) / s
