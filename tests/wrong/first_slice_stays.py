"""Sequence parallelism that sends home the first slice of O alone."""

from __future__ import annotations

from primepar.partition.sequence_parallel import SequenceColumn
from primepar.schedule.primitive import Slices, Value


class FirstSliceStays(SequenceColumn):
    def home(self, tensor: str, d: Value, s: Value) -> Slices:
        home = super().home(tensor, d, s)
        return dict(K=0) if tensor == "O" else home
