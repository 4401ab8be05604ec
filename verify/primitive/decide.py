"""Decides the claims of a primitive: expressions for what is to be found, and Z3's answers.

Expressions are found at points of small meshes first. Z3 then proves the claim with them, or gives
a point where they are wrong. If something else is right there, the search goes on with that point;
if nothing is, the claim is wrong, and the point is a counterexample.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from time import perf_counter

from primepar.certify.claims import Claim, Subject, claims
from primepar.errors import SymbolicError
from primepar.verify.deadline import UnansweredError
from primepar.verify.primitive.claims_on_mesh import Point, choices
from primepar.verify.primitive.witness import Found, NoWitnessError, Points, find
from primepar.verify.primitive.z3_question import Questions

LONGEST = 5
"""Sides of the meshes on which expressions are found first."""
MOST = 40
"""Points of one mesh."""
ROUNDS = 60
"""How often Z3 may give another point."""
SHARE = 0.4
"""Of the time that is left, what one claim may take: those that come after it have some, too."""


@dataclass(frozen=True)
class Decision:
    """How a claim ended: with expressions, at a point where it is wrong, or for a reason."""

    claim: Claim
    seconds: float
    found: Found
    point: Point | None = None
    reason: str | None = None

    @property
    def is_proved(self) -> bool:
        """Whether Z3 proved the claim."""
        return self.point is None and self.reason is None

    @property
    def place(self) -> str:
        """Where it is wrong, `s=2, r=0`."""
        return ", ".join(f"{name}={at}" for name, at in (self.point or {}).items())


def decisions(subject: Subject, deadline: float) -> Iterator[Decision]:
    """Every claim about a primitive, decided; `deadline` is a time of `perf_counter`."""
    names = subject.primitive.side_names
    questions = Questions(names, deadline)
    longest = LONGEST if len(names) < 3 else 3
    lengths = product(range(1, longest + 1), repeat=len(names))
    meshes = [dict(zip(names, mesh, strict=True)) for mesh in lengths]
    for claim in claims(subject):
        start = perf_counter()
        questions.deadline = start + SHARE * (deadline - start)
        found: Found = {}
        point, reason = None, None
        try:
            found, point = _decided(claim, questions, meshes)
        except (SymbolicError, UnansweredError) as error:
            reason = str(error)
        yield Decision(claim, perf_counter() - start, found, point, reason)


def _decided(
    claim: Claim, questions: Questions, meshes: list[dict[str, int]]
) -> tuple[Found, Point | None]:
    if not claim.found:
        return {}, questions.counterexample(claim, {})
    points = Points.of(claim, meshes, MOST)
    for _ in range(ROUNDS):
        try:
            found = find(points)
        except NoWitnessError as error:
            return {}, error.point
        wrong = questions.counterexample(claim, found)
        if wrong is None or not choices(claim, wrong):
            return found, wrong
        points = points.with_rows([wrong])
    raise SymbolicError("no expression was found for what is wanted")
