"""PrimePar that stops after its first step."""

from __future__ import annotations

from primepar.partition import PrimePar
from primepar.schedule.primitive import Value


class OneStep(PrimePar):
    def steps(self, s: Value) -> Value:
        return 1
