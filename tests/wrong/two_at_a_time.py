"""PrimePar with a forward that walks two slices a step: twice the same where the side is even."""

from __future__ import annotations

from primepar.partition import PrimePar
from primepar.schedule.primitive import Slices, Value


class TwoAtATime(PrimePar):
    def forward(self, r: Value, c: Value, t: Value, s: Value) -> Slices:
        return dict(M=r, N=(r + c + 2 * t) % s, K=c)
