"""SUMMA that works with every second column of I: twice with the same where the side is even."""

from __future__ import annotations

from primepar.partition.summa import Summa
from primepar.schedule.primitive import Slices, Value


class EverySecondColumn(Summa):
    def forward(self, r: Value, c: Value, t: Value, s: Value) -> Slices:
        return dict(M=r, N=2 * t % s, K=c)
