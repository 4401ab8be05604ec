"""PrimePar whose first row of devices takes its slices without the skew."""

from __future__ import annotations

from primepar import where
from primepar.partition import PrimePar
from primepar.schedule.primitive import Slices, Value


class FirstRowAlone(PrimePar):
    def forward(self, r: Value, c: Value, t: Value, s: Value) -> Slices:
        return dict(M=r, N=where(r == 0, t, (r + c + t) % s), K=c)
