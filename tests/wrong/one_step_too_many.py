"""PrimePar that starts over after its last step."""

from __future__ import annotations

from primepar.partition import PrimePar
from primepar.schedule.primitive import Value


class OneStepTooMany(PrimePar):
    def steps(self, s: Value) -> Value:
        return s + 1
