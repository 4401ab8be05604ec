"""SUMMA whose W is at home two rows apart: half of the rows are nowhere where the side is even."""

from __future__ import annotations

from primepar.partition.summa import Summa
from primepar.schedule.primitive import Slices, Value


class EverySecondRow(Summa):
    def home(self, tensor: str, r: Value, c: Value, s: Value) -> Slices:
        home = super().home(tensor, r, c, s)
        return dict(N=2 * r % s, K=c) if tensor == "W" else home
