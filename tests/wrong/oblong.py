"""Cannon's ring on a mesh that is not square: no device of a shorter row has the next I."""

from __future__ import annotations

from primepar import Primitive
from primepar.schedule.primitive import Slices, Value


class Oblong(Primitive):
    axes = {"r": "p", "c": "q"}

    def forward(self, r: Value, c: Value, t: Value, p: Value, q: Value) -> Slices:
        return dict(M=r, N=(r + c + t) % p, K=c)
