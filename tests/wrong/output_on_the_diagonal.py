"""SUMMA whose O is at home on the diagonal alone: the other sums have nowhere to go."""

from __future__ import annotations

from primepar.partition.summa import Summa
from primepar.schedule.primitive import Slices, Value


class OutputOnTheDiagonal(Summa):
    def home(self, tensor: str, r: Value, c: Value, s: Value) -> Slices:
        home = super().home(tensor, r, c, s)
        return dict(M=r, K=r) if tensor == "O" else home
