"""What is wrong with the data of a program: certainly, or as a question."""

from __future__ import annotations

from collections.abc import Iterable
from time import perf_counter
from typing import NamedTuple

from primepar.preflight.meaning.terms import GradientClaim
from primepar.schedule.evidence import Counterexample, InvolvedInstruction
from primepar.verify.report import PropertyResult


class DataFault(NamedTuple):
    """A sentence, the places, and whether it is certain."""

    sentence: str
    details: Counterexample
    certain: bool = True

    @classmethod
    def of_gradient(
        cls, rank: int, claim: GradientClaim, problem: str, certain: bool = True
    ) -> DataFault:
        """What is wrong with the gradient that the optimizer of one rank reads."""
        sentence = f"{place_of(rank, claim.name, claim)}: {problem}"
        return cls(sentence, details_of(claim.name, {rank: claim}), certain)

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


def place_of(rank: int, name: str, claim: GradientClaim) -> str:
    """Where an optimizer reads a gradient."""
    line = f" at {claim.source}" if claim.source else ""
    return f"rank {rank}, gradient of {name}{line}"


def details_of(name: str, claims: dict[int, GradientClaim]) -> Counterexample:
    """Where the optimizers of several ranks read a gradient, of which the first one is wrong."""
    events = tuple(
        InvolvedInstruction(
            rank, f"the optimizer reads the gradient of {name}", role="reads it",
            wrong=place == 0, source=claim.source,
        )
        for place, (rank, claim) in enumerate(claims.items())
    )  # fmt: skip
    return Counterexample("unfinished-sum", tuple(claims), (name,), events=events)
