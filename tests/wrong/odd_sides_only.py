"""PrimePar with rows two apart: no device has the next W where the side is even."""

from __future__ import annotations

from primepar import where
from primepar.partition import PrimePar
from primepar.schedule.primitive import Slices, Value


class OddSidesOnly(PrimePar):
    def forward(self, r: Value, c: Value, t: Value, s: Value) -> Slices:
        return dict(M=r, N=(2 * r + c + t) % s, K=c)

    def backward(self, r: Value, c: Value, t: Value, s: Value) -> Slices:
        return dict(M=r, N=(2 * r + c - 1) % s, K=(c + t) % s)

    def gradient(self, r: Value, c: Value, t: Value, s: Value) -> Slices:
        last = where(t == s - 1, 1, 0)
        return dict(M=(r + t) % s, N=(2 * r + c - 1 + last) % s, K=(c - 1 + last) % s)
