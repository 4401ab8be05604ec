"""W stays and sums travel, but for an even side dI is left on the way in backward."""

from __future__ import annotations

from primepar import Primitive
from primepar.schedule.primitive import Slices, Value


class SumLeftBehind(Primitive):
    axes = ("r", "c")

    def forward(self, r: Value, c: Value, t: Value, s: Value) -> Slices:
        return dict(M=(r + c + t) % s, N=r, K=c)

    def backward(self, r: Value, c: Value, t: Value, s: Value) -> Slices:
        return dict(M=(r + c - 1 + t) % s, N=(r - c) % s, K=c)

    def gradient(self, r: Value, c: Value, t: Value, s: Value) -> Slices:
        return dict(M=(r + c - 2 + t) % s, N=r, K=c)
