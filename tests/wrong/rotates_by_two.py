"""The operator whose output stays, with rings of every second device."""

from __future__ import annotations

from primepar.partition.stationary import OutputStays
from primepar.schedule.primitive import Slices, Value


class RotatesByTwo(OutputStays):
    def forward(self, r: Value, c: Value, t: Value, s: Value) -> Slices:
        return dict(M=r, N=(r + c + 2 * t) % s, K=c)
