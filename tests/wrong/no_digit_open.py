"""SUMMA on a rectangular mesh whose I names every digit of N: each device holds one block of u."""

from __future__ import annotations

from primepar.partition.summa import SummaRectangular
from primepar.schedule.primitive import Slices, Value


class NoDigitOpen(SummaRectangular):
    def home(
        self, tensor: str, r: Value, a: Value, c: Value, b: Value, q: Value, u: Value, v: Value
    ) -> Slices:
        home = super().home(tensor, r, a, c, b, q, u, v)
        return dict(M=(r, a), N=(c, a, b)) if tensor == "I" else home
