"""Three-dimensional tensor parallelism whose O takes its rows from the axis of its columns."""

from __future__ import annotations

from primepar.partition.three_d import ThreeD
from primepar.schedule.primitive import Slices, Value


class WrongAxis(ThreeD):
    def home(self, tensor: str, i: Value, j: Value, l: Value, s: Value) -> Slices:
        home = super().home(tensor, i, j, l, s)
        return dict(M=(j, l), K=j) if tensor == "O" else home
