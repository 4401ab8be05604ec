"""PrimePar without the special last step of its gradient: dW ends next to W."""

from __future__ import annotations

from primepar.partition import PrimePar
from primepar.schedule.primitive import Slices, Value


class NoLastStep(PrimePar):
    def gradient(self, r: Value, c: Value, t: Value, s: Value) -> Slices:
        return dict(M=(r + t) % s, N=(r + c - 1) % s, K=(c - 1) % s)
