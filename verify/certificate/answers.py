"""Finds the answers of a certificate: the possible outcomes of each comparison, with factors.

`primepar.certify` checks all answers, so a wrong one loses a certificate, not soundness. A case
carries sample points that satisfy its facts. If the points have both outcomes, both are possible;
else the simplex method searches for factors that contradict the other one.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from math import gcd, lcm

import numpy as np
from numpy.typing import NDArray

from primepar.certify.cases import Answer, Case, Decision
from primepar.errors import CertificateError
from primepar.schedule.deadline import seconds_left
from primepar.schedule.polynomial_form import Form

LONGEST = 4
"""Number of values of a side among the sample points."""
MAX_POINTS = 300
MAX_ANSWERS = 20_000
MAX_PIVOTS = 5_000
"""Largest number of steps of the simplex method in one search for factors."""


def answers(holds: Callable[[Case], bool]) -> tuple[Answer, ...]:
    """The answer to each comparison of a claim. Raises `CertificateError` if the claim fails."""
    given: list[Answer] = []
    starts: list[list[Decision]] = [[]]
    while starts:
        # The checker reads answers in this order: a case to its end, then the newest one that is
        # open.
        case = _SampledCase(starts.pop(), given, starts)
        if not holds(case):
            raise CertificateError("expected a claim that holds in every case, got one that fails")
    return tuple(given)


class _SampledCase(Case):
    """A case with sample points that satisfy its facts."""

    def __init__(
        self, decisions: list[Decision], given: list[Answer], starts: list[list[Decision]]
    ) -> None:
        super().__init__(decisions, self._answered)
        self.given, self.starts = given, starts
        self.points: dict[str, NDArray[np.int64]] = {}
        self.count = 1

    def variable(self, name: str, first: int, limit: Form | None = None) -> Form:
        """A new name, with all of its values at every point."""
        ends = np.full(self.count, first + LONGEST) if limit is None else self._values_of(limit)
        # One row for each value of the name at each point before: s from 1 to 5 becomes (s, r) with
        # r < s, 15 rows.
        numbers = np.maximum(ends - first, 0)
        rows = np.repeat(np.arange(self.count), numbers)
        value = np.arange(len(rows)) - np.repeat(np.cumsum(numbers) - numbers, numbers) + first
        if len(rows) > MAX_POINTS:
            kept = np.random.default_rng(0).choice(len(rows), MAX_POINTS, replace=False)
            rows, value = rows[kept], value[kept]
        self.points = {key: axis[rows] for key, axis in self.points.items()} | {name: value}
        self.count = len(rows)
        return super().variable(name, first, limit)

    def quotient(self, name: Form, form: Form, divisor: int) -> None:
        """Set the value of a new name at every point."""
        ((text,),) = name.terms
        self.points[text] = self._values_of(form) // divisor

    def decide(self, form: Form) -> bool:
        """Whether a form is 0 or more; points with the other outcome are dropped."""
        outcome = super().decide(form)
        if form.constant is None:
            # Points stay those that satisfy all facts of this case: if both outcomes are among
            # them, both are possible, which needs no proof.
            kept = (self._values_of(form) >= 0) == outcome
            if not kept.all():
                self.points = {key: axis[kept] for key, axis in self.points.items()}
                self.count = int(kept.sum())
        return outcome

    def _values_of(self, form: Form) -> NDArray[np.int64]:
        return np.broadcast_to(np.asarray(form.at(self.points), np.int64), self.count)

    def _answered(self, case: Case, form: Form) -> Decision:
        answer = self._answer(form)
        self.given.append(answer)
        if len(self.given) > MAX_ANSWERS:
            raise CertificateError(f"expected at most {MAX_ANSWERS} answers to one claim")
        # This case goes on with yes. The one with no starts again, with the decisions up to here.
        if answer.outcome == "both":
            self.starts.append([*case.decisions, (False, True)])
        return answer.outcome != "no", answer.outcome == "both"

    def _answer(self, form: Form) -> Answer:
        seen = set((self._values_of(form) >= 0).tolist())
        facts = [self.reduced(fact).tightened() for fact in self.facts]
        # No point shows the opposite. It may still be possible at points that are not sampled, so
        # it counts only with factors that contradict it.
        if False not in seen:
            factors = contradiction([*facts, form.opposite().tightened()])
            if factors is not None:
                return Answer("yes", factors)
        if True not in seen:
            factors = contradiction([*facts, form.tightened()])
            if factors is not None:
                return Answer("no", factors)
        # Neither outcome is contradicted, so both are followed. A case without any point costs
        # answers, not soundness.
        return Answer("both")


def contradiction(forms: list[Form]) -> tuple[tuple[int, int], ...] | None:
    """Factors with which forms that are 0 or more add up to less than 0; the last has index -1.

    The first phase of the simplex method with Bland's rule. Rows have whole numbers and may be
    scaled by positive ones. For example, `r - 3` and `2 - r` add up to -1, so their factors are 1
    and 1.
    """
    # A product r * s is an unknown of its own: what follows so, follows for all values.
    atoms = sorted({term for form in forms for term in form.terms if term})
    # Unknown are the factors y >= 0: for each atom its factors add up to 0, and the constants to
    # -1. `goal` is how far the rows are from that; at 0 the factors are there.
    rows = [[*(form.terms.get(atom, 0) for form in forms), 0] for atom in atoms]
    rows.append([*(-form.terms.get((), 0) for form in forms), 1])
    basis: list[int | None] = [None] * len(rows)
    goal = [sum(column) for column in zip(*rows, strict=True)]
    for _ in range(MAX_PIVOTS):
        if goal[-1] <= 0:
            return _factors(rows, basis, len(forms))
        seconds_left()
        # Bland: the first index, so that the method cannot cycle.
        enters = next((index for index, gain in enumerate(goal[:-1]) if gain > 0), None)
        if enters is None:
            return None
        leaves = _leaving(rows, basis, enters)
        basis[leaves] = enters
        pivot = rows[leaves]
        rows = [row if row is pivot else _eliminated(row, pivot, enters) for row in rows]
        goal = _eliminated(goal, pivot, enters)
    return None


def _leaving(rows: list[list[int]], basis: list[int | None], enters: int) -> int:
    """The row with the tightest bound on the entering variable; of several, Bland's choice."""
    bounds = [
        (Fraction(row[-1], row[enters]), -1 if owner is None else owner, place)
        for place, (row, owner) in enumerate(zip(rows, basis, strict=True))
        if row[enters] > 0
    ]
    return min(bounds)[-1]


def _eliminated(row: list[int], pivot: list[int], index: int) -> list[int]:
    """A positive multiple of a row, plus a multiple of the pivot that makes a column 0."""
    if not row[index]:
        return row
    result = [a * pivot[index] - b * row[index] for a, b in zip(row, pivot, strict=True)]
    divisor = gcd(*result) or 1
    return [number // divisor for number in result]


def _factors(
    rows: list[list[int]], basis: list[int | None], count: int
) -> tuple[tuple[int, int], ...]:
    values = {
        owner: Fraction(row[-1], row[owner])
        for row, owner in zip(rows, basis, strict=True)
        if owner is not None and row[-1]
    }
    # A certificate has whole factors: 1/2 and 1/3 become 3 and 2, which contradict as well.
    scale = lcm(*(value.denominator for value in values.values()))
    factors = {-1 if index == count - 1 else index: value for index, value in values.items()}
    return tuple((index, int(value * scale)) for index, value in sorted(factors.items()))
