"""SUMMA on a rectangular mesh whose I leaves the last digit of N open, not the middle one."""

from __future__ import annotations

from primepar.partition.summa import SummaRectangular
from primepar.schedule.primitive import Slices, Value


class LastDigitOpen(SummaRectangular):
    def home(
        self, tensor: str, r: Value, a: Value, c: Value, b: Value, q: Value, u: Value, v: Value
    ) -> Slices:
        home = super().home(tensor, r, a, c, b, q, u, v)
        return dict(M=(r, a), N=(c, b)) if tensor == "I" else home
