"""The devices of a row all do the same."""

from __future__ import annotations

from primepar import Primitive
from primepar.schedule.primitive import Slices, Value


class Twins(Primitive):
    axes = ("r", "c")

    def forward(self, r: Value, c: Value, t: Value, s: Value) -> Slices:
        return dict(M=r, N=(r + t) % s, K=r)
