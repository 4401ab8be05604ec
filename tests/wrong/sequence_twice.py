"""Sequence parallelism that splits the rows of I twice along one axis."""

from __future__ import annotations

from primepar.partition.sequence_parallel import SequenceColumn
from primepar.schedule.primitive import Slices, Value


class SequenceTwice(SequenceColumn):
    def home(self, tensor: str, d: Value, s: Value) -> Slices:
        home = super().home(tensor, d, s)
        return dict(M=(d, d)) if tensor == "I" else home
