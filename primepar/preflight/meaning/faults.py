"""What is wrong with the data of a program: certainly, or as a question."""

from __future__ import annotations

from collections.abc import Iterable
from time import perf_counter
from typing import NamedTuple

from primepar.schedule.evidence import Counterexample
from primepar.verify.report import PropertyResult


class DataFault(NamedTuple):
    """A sentence, the places, and whether it is certain."""

    sentence: str
    details: Counterexample
    certain: bool = True

    def result(self, name: str, start: float) -> PropertyResult:
        """The verdict on a property that was asked since `start`: refuted, or unknown."""
        seconds = perf_counter() - start
        if self.certain:
            return PropertyResult(
                name, "refuted", seconds, counterexample=self.sentence, details=self.details
            )
        return PropertyResult(name, "unknown", seconds, reason=self.sentence, details=self.details)


def worst(faults: Iterable[DataFault]) -> DataFault | None:
    """The first fault that is certain, else the first one, if there is any."""
    first: DataFault | None = None
    for fault in faults:
        first = first or fault
        if fault.certain:
            return fault
    return first
