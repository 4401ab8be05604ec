"""Rows of W forward, columns backward: one hop mends it between two devices, not three."""

from __future__ import annotations

from primepar import Primitive
from primepar.schedule.primitive import Slices, Value


class RowThenColumn(Primitive):
    axes = ("d",)

    def steps(self, s: Value) -> Value:
        return 1

    def forward(self, d: Value, t: Value, s: Value) -> Slices:
        return dict(N=d)

    def backward(self, d: Value, t: Value, s: Value) -> Slices:
        return dict(K=d)
