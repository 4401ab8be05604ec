"""PrimePar that walks two slices a step where the side is more than 3."""

from __future__ import annotations

from primepar import where
from primepar.partition import PrimePar
from primepar.schedule.primitive import Slices, Value


class Late(PrimePar):
    def forward(self, r: Value, c: Value, t: Value, s: Value) -> Slices:
        return dict(M=r, N=(r + c + t + where(s > 3, t, 0)) % s, K=c)
