"""The first device leaves a partial sum, and another one of the same block comes on top of it."""

from __future__ import annotations

from primepar import Primitive, where
from primepar.schedule.primitive import Slices, Value


class ComesBack(Primitive):
    axes = ("d",)

    def steps(self, s: Value) -> Value:
        return 4

    def forward(self, d: Value, t: Value, s: Value) -> Slices:
        first = where((t == 0) | (t == 3), 0, 1)
        return dict(N=t, K=where(d == 0, first, where(t == 2, 0, 2)))
