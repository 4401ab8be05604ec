"""Two P in one sequence with one time index, as Algorithm 1 of PrimePar prints it."""

from __future__ import annotations

from primepar import Primitive, where
from primepar.schedule.primitive import Slices, Value


class OneTimeIndex(Primitive):
    axes = ("r1", "c1", "r2", "c2")

    def forward(self, r1: Value, c1: Value, r2: Value, c2: Value, t: Value, s: Value) -> Slices:
        return dict(M=(r1, r2), N=((r1 + c1 + t) % s, (r2 + c2 + t) % s), K=(c1, c2))

    def backward(self, r1: Value, c1: Value, r2: Value, c2: Value, t: Value, s: Value) -> Slices:
        return dict(
            M=(r1, r2),
            N=((r1 + c1 - 1) % s, (r2 + c2 - 1) % s),
            K=((c1 + t) % s, (c2 + t) % s),
        )

    def gradient(self, r1: Value, c1: Value, r2: Value, c2: Value, t: Value, s: Value) -> Slices:
        last = where(t == s - 1, 1, 0)
        return dict(
            M=((r1 + t) % s, (r2 + t) % s),
            N=((r1 + c1 - 1 + last) % s, (r2 + c2 - 1 + last) % s),
            K=((c1 - 1 + last) % s, (c2 - 1 + last) % s),
        )
