"""Two steps for every slice of N."""

from __future__ import annotations

from primepar.partition import PrimePar
from primepar.schedule.primitive import Slices, Value


class Halves(PrimePar):
    def forward(self, r: Value, c: Value, t: Value, s: Value) -> Slices:
        return dict(M=r, N=(r + c + t) % s // 2, K=c)
