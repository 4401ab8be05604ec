"""PrimePar whose backward forgets to split K."""

from __future__ import annotations

from primepar.partition import PrimePar
from primepar.schedule.primitive import Slices, Value


class BackwardForgetsK(PrimePar):
    def backward(self, r: Value, c: Value, t: Value, s: Value) -> Slices:
        return dict(M=r, N=(r + c - 1) % s)
