"""SUMMA on a mesh that is not square: N has a row of homes too few or too many."""

from __future__ import annotations

from primepar import Primitive
from primepar.schedule.primitive import Slices, Value


class OblongSumma(Primitive):
    axes = {"r": "p", "c": "q"}

    def forward(self, r: Value, c: Value, t: Value, p: Value, q: Value) -> Slices:
        return dict(M=r, N=t, K=c)

    def home(self, tensor: str, r: Value, c: Value, p: Value, q: Value) -> Slices:
        return {"I": dict(M=r, N=c), "W": dict(N=r, K=c), "O": dict(M=r, K=c)}[tensor]
