"""A walk on a square mesh: forward along N, backward along K, gradient along M."""

from __future__ import annotations

from primepar import Primitive, where
from primepar.schedule.primitive import Slices, Value


class Walk(Primitive):
    """Every tensor stays where the last step that used it left it."""

    axes = ("r", "c")

    def forward(self, r: Value, c: Value, t: Value, s: Value) -> Slices:
        return dict(M=r, N=(r + c + t) % s, K=c)

    def backward(self, r: Value, c: Value, t: Value, s: Value) -> Slices:
        return dict(M=r, N=(r + c - 1) % s, K=(c + t) % s)

    def gradient(self, r: Value, c: Value, t: Value, s: Value) -> Slices:
        last = where(t == s - 1, 1, 0)
        return dict(M=(r + t) % s, N=(r + c - 1 + last) % s, K=(c - 1 + last) % s)
