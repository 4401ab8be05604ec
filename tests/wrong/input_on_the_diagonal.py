"""SUMMA whose I is resident on the diagonal alone: its other blocks are nowhere."""

from __future__ import annotations

from primepar.partition.summa import Summa
from primepar.schedule.primitive import Slices, Value


class InputOnTheDiagonal(Summa):
    def home(self, tensor: str, r: Value, c: Value, s: Value) -> Slices:
        home = super().home(tensor, r, c, s)
        return dict(M=r, N=r) if tensor == "I" else home
