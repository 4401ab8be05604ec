"""Finds the answers of a certificate: which outcomes a comparison can have, and why no other.

Whatever is found here is checked by `primepar.certify`, so a wrong answer costs a certificate only.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from math import gcd, lcm

import numpy as np
from numpy.typing import NDArray

from primepar.certify.cases import Answer, Case, Taken
from primepar.errors import CertificateError
from primepar.schedule.polynomial_form import Form
from primepar.verify.deadline import seconds_left

LONGEST = 4
"""Sides of the points that are tried before factors are looked for."""
MOST_POINTS = 300
MOST_ANSWERS = 20_000


def answers(holds: Callable[[Case], bool]) -> tuple[Answer, ...]:
    """What to answer at each comparison of a claim. Raises `CertificateError` if it fails."""
    found: list[Answer] = []
    ready: list[list[Taken]] = [[]]
    while ready:
        case = _Finding(ready.pop(), found, ready)
        if not holds(case):
            raise CertificateError("expected a claim that holds in every case, got one that fails")
    return tuple(found)


class _Finding(Case):
    """A case with some points in it."""

    def __init__(self, taken: list[Taken], found: list[Answer], ready: list[list[Taken]]) -> None:
        super().__init__(taken, self._answered)
        self.found, self.ready = found, ready
        self.points: dict[str, NDArray[np.int64]] = {}
        self.count = 1

    def variable(self, name: str, first: int, limit: Form | None = None) -> Form:
        """A name, with all its values at every point."""
        ends = np.full(self.count, first + LONGEST) if limit is None else self._values_of(limit)
        numbers = np.maximum(ends - first, 0)
        rows = np.repeat(np.arange(self.count), numbers)
        value = np.arange(len(rows)) - np.repeat(np.cumsum(numbers) - numbers, numbers) + first
        if len(rows) > MOST_POINTS:
            kept = np.random.default_rng(0).choice(len(rows), MOST_POINTS, replace=False)
            rows, value = rows[kept], value[kept]
        self.points = {each: axis[rows] for each, axis in self.points.items()} | {name: value}
        self.count = len(rows)
        return super().variable(name, first, limit)

    def quotient(self, name: Form, form: Form, divisor: int) -> None:
        """A new name has its value at every point."""
        ((text,),) = name.terms
        self.points[text] = self._values_of(form) // divisor

    def decide(self, form: Form) -> bool:
        """Whether a form is 0 or more; the points where it is not so are left."""
        outcome = super().decide(form)
        if form.constant is None:
            kept = (self._values_of(form) >= 0) == outcome
            if not kept.all():
                self.points = {each: axis[kept] for each, axis in self.points.items()}
                self.count = int(kept.sum())
        return outcome

    def _values_of(self, form: Form) -> NDArray[np.int64]:
        total = np.zeros(self.count, np.int64)
        for term, factor in form.terms.items():
            part = np.full(self.count, factor)
            for each in term:
                part = part * self.points[each]
            total += part
        return total

    def _answered(self, case: Case, form: Form) -> Taken:
        answer = self._answer(form)
        self.found.append(answer)
        if len(self.found) > MOST_ANSWERS:
            raise CertificateError(f"expected at most {MOST_ANSWERS} answers to one claim")
        if answer.outcome == "both":
            self.ready.append([*case.taken, (False, True)])
        return answer.outcome != "no", answer.outcome == "both"

    def _answer(self, form: Form) -> Answer:
        seen = set((self._values_of(form) >= 0).tolist())
        known = [self.reduced(each).tightened() for each in self.known]
        if False not in seen:
            factors = contradiction([*known, form.opposite().tightened()])
            if factors is not None:
                return Answer("yes", factors)
        if True not in seen:
            factors = contradiction([*known, form.tightened()])
            if factors is not None:
                return Answer("no", factors)
        return Answer("both")


def contradiction(forms: list[Form]) -> tuple[tuple[int, int], ...] | None:
    """Factors with which forms that are 0 or more add up to less; the last is at place -1.

    The first phase of the simplex method with Bland's rule, in whole numbers: a row may be scaled.
    """
    atoms = sorted({term for form in forms for term in form.terms if term})
    rows = [[*(form.terms.get(atom, 0) for form in forms), 0] for atom in atoms]
    rows.append([*(-form.terms.get((), 0) for form in forms), 1])
    basis: list[int | None] = [None] * len(rows)
    goal = [sum(column) for column in zip(*rows, strict=True)]
    while goal[-1] > 0:
        seconds_left()
        enters = next((at for at, gain in enumerate(goal[:-1]) if gain > 0), None)
        if enters is None:
            return None
        leaves = _leaving(rows, basis, enters)
        basis[leaves] = enters
        pivot = rows[leaves]
        rows = [row if row is pivot else _eliminated(row, pivot, enters) for row in rows]
        goal = _eliminated(goal, pivot, enters)
    return _factors(rows, basis, len(forms))


def _leaving(rows: list[list[int]], basis: list[int | None], enters: int) -> int:
    """The row that bounds what enters most; of several that of the first variable."""
    bounds = [
        (Fraction(row[-1], row[enters]), -1 if owner is None else owner, place)
        for place, (row, owner) in enumerate(zip(rows, basis, strict=True))
        if row[enters] > 0
    ]
    return min(bounds)[-1]


def _eliminated(row: list[int], pivot: list[int], at: int) -> list[int]:
    """A row without the variable of a column, by a positive multiple of itself."""
    if not row[at]:
        return row
    made = [a * pivot[at] - b * row[at] for a, b in zip(row, pivot, strict=True)]
    shared = gcd(*made) or 1
    return [each // shared for each in made]


def _factors(
    rows: list[list[int]], basis: list[int | None], count: int
) -> tuple[tuple[int, int], ...]:
    found = {
        owner: Fraction(row[-1], row[owner])
        for row, owner in zip(rows, basis, strict=True)
        if owner is not None and row[-1]
    }
    whole = lcm(*(each.denominator for each in found.values()))
    places = {-1 if place == count - 1 else place: each for place, each in found.items()}
    return tuple((place, int(each * whole)) for place, each in sorted(places.items()))
