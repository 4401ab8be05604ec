"""PrimePar whose backward starts on the row below: dO is not there."""

from __future__ import annotations

from primepar.partition import PrimePar
from primepar.schedule.primitive import Slices, Value


class AnotherRow(PrimePar):
    def backward(self, r: Value, c: Value, t: Value, s: Value) -> Slices:
        return dict(M=(r + 1) % s, N=(r + c - 1) % s, K=(c + t) % s)
