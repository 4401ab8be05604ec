"""Decides the claims of a primitive: finds expressions for the witnesses, and asks Z3.

A claim is evaluated on all small meshes first: most wrong maps are wrong on two devices a side, and
Z3 has no question then. Expressions that are right at points of these meshes are found next. Z3
proves the claim with them, or gives a point where they are wrong. If other values are right there,
the search continues with that point (counterexample-guided synthesis). If none are, the claim is
wrong, and the point is a counterexample.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from time import perf_counter

from primepar.certify.claims import Claim, Subject, claims
from primepar.errors import ClaimError, SymbolicError
from primepar.schedule.deadline import UnansweredError, in_time
from primepar.schedule.expression import evaluate
from primepar.verify.primitive.claims_on_mesh import Point, choices, failing
from primepar.verify.primitive.witness import NoWitnessError, Points, Witnesses, find
from primepar.verify.primitive.z3_question import Questions

LONGEST = 5
"""Largest side of the meshes on which a claim is evaluated and expressions are found first."""
MAX_POINTS_ON_MESH = 40
"""Largest number of points of one mesh."""
ROUNDS = 60
"""Largest number of points that Z3 may add."""


@dataclass(frozen=True)
class Decision:
    """The result of a claim: expressions of witnesses, a point where it is wrong, or a reason."""

    claim: Claim
    seconds: float
    witnesses: Witnesses
    point: Point | None = None
    reason: str | None = None

    @property
    def is_proved(self) -> bool:
        """Whether Z3 proved the claim."""
        return self.point is None and self.reason is None

    @property
    def place(self) -> str:
        """The point where it is wrong, `s=2, r=0`."""
        return ", ".join(f"{name}={value}" for name, value in (self.point or {}).items())


def decisions(subject: Subject) -> Iterator[Decision]:
    """Yield the decision of every claim; after the deadline it has only a reason."""
    names = subject.primitive.side_names
    questions = Questions(names)
    # Three sides up to 5 are 125 meshes, the largest of them of 125 devices.
    longest = LONGEST if len(names) < 3 else 3
    lengths = product(range(1, longest + 1), repeat=len(names))
    meshes = [dict(zip(names, mesh, strict=True)) for mesh in lengths]
    wrong: set[str] = set()
    for claim in claims(subject):
        start = perf_counter()
        # Its properties are refuted already, and Z3 takes longest for what is wrong.
        if wrong.issuperset(claim.properties) and not claim.is_precondition:
            yield Decision(claim, 0.0, {}, reason="a small mesh refutes what it is about")
            continue
        witnesses: Witnesses = {}
        point, reason = None, None
        try:
            point = next(filter(None, (failing(claim, sides) for sides in in_time(meshes))), None)
            if point is None:
                witnesses, point = _decided(claim, questions, meshes)
            # Where no step is left, `steps` is wrong and nothing else: the other claims are about
            # nothing.
            elif not is_idle(subject, point):
                wrong |= set(claim.properties)
        except (SymbolicError, UnansweredError, ClaimError) as error:
            reason = str(error)
        yield Decision(claim, perf_counter() - start, witnesses, point, reason)


def is_idle(subject: Subject, sides: Point) -> bool:
    """Whether a phase has no step on a mesh."""
    return bool(evaluate(subject.maps.steps, sides) < 1)


def _decided(
    claim: Claim, questions: Questions, meshes: list[dict[str, int]]
) -> tuple[Witnesses, Point | None]:
    """`claim` holds on the small `meshes`."""
    if not claim.witnesses:
        return {}, questions.counterexample(claim, {})
    points = Points.of(claim, meshes, MAX_POINTS_ON_MESH)
    for _ in in_time(range(ROUNDS)):
        try:
            witnesses = find(points)
        except NoWitnessError as error:
            return {}, error.point
        # The loop of counterexample-guided synthesis: expressions for the points so far, Z3's point
        # where they are wrong, and again. Each round adds a point, so none comes twice.
        wrong = questions.counterexample(claim, witnesses)
        # At Z3's point no device at all has the block: then no expressions help.
        if wrong is None or not choices(claim, wrong):
            return witnesses, wrong
        points = points.with_rows([wrong])
    raise SymbolicError("no expressions were found for the witnesses")
