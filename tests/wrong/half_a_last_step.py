"""PrimePar whose last gradient step moves on in N and forgets K."""

from __future__ import annotations

from primepar import where
from primepar.partition import PrimePar
from primepar.schedule.primitive import Slices, Value


class HalfALastStep(PrimePar):
    def gradient(self, r: Value, c: Value, t: Value, s: Value) -> Slices:
        last = where(t == s - 1, 1, 0)
        return dict(M=(r + t) % s, N=(r + c - 1 + last) % s, K=(c - 1) % s)
