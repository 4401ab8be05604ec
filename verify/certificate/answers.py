"""Finds the answers of a certificate: which outcomes a comparison can have, and why no other.

Whatever is found here is checked by `primepar.certify`, so a wrong answer costs a certificate only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction
from math import gcd, lcm
from random import Random

from primepar.certify.cases import Answer, Case, Linear, Taken
from primepar.errors import CertificateError
from primepar.verify.deadline import seconds_left

LONGEST = 4
"""Sides of the points that are tried before factors are looked for."""
MOST_POINTS = 200
MOST_ANSWERS = 20_000

Point = dict[str, int]


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
        self.points: list[Point] = [{}]
        self._random = Random(0)

    def fresh(self, name: str, first: int, limit: Linear | None = None) -> Linear:
        """A variable, with all its values at every point."""
        ends = [LONGEST if limit is None else value(limit, point) for point in self.points]
        made = [
            {**point, name: at}
            for point, end in zip(self.points, ends, strict=True)
            for at in range(first, end)
        ]
        self.points = self._random.sample(made, min(len(made), MOST_POINTS))
        return super().fresh(name, first, limit)

    def decide(self, form: Linear) -> bool:
        """Whether a form is 0 or more; the points where it is not so are left."""
        outcome = super().decide(form)
        if form.factors:
            self.points = [p for p in self.points if (value(form, p) >= 0) == outcome]
        return outcome

    def _answered(self, case: Case, form: Linear) -> Taken:
        answer = self._answer(form)
        self.found.append(answer)
        if len(self.found) > MOST_ANSWERS:
            raise CertificateError(f"expected at most {MOST_ANSWERS} answers to one claim")
        if answer.outcome == "both":
            self.ready.append([*case.taken, (False, True)])
        return answer.outcome != "no", answer.outcome == "both"

    def _answer(self, form: Linear) -> Answer:
        seen = {value(form, point) >= 0 for point in self.points}
        if False not in seen:
            factors = contradiction([*self.known, -form - 1])
            if factors is not None:
                return Answer("yes", factors)
        if True not in seen:
            factors = contradiction([*self.known, form])
            if factors is not None:
                return Answer("no", factors)
        return Answer("both")


def value(form: Linear, point: Mapping[str, int]) -> int:
    """A form at a point."""
    return form.constant + sum(times * point[name] for name, times in form.factors.items())


def contradiction(forms: list[Linear]) -> tuple[tuple[int, int], ...] | None:
    """Factors with which forms that are 0 or more add up to less; the last is at place -1.

    The first phase of the simplex method with Bland's rule, in whole numbers: a row may be scaled.
    """
    names = sorted({name for form in forms for name in form.factors})
    rows = [[*(form.factors.get(name, 0) for form in forms), 0] for name in names]
    rows.append([*(-form.constant for form in forms), 1])
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
    return tuple(
        (-1 if place == count - 1 else place, int(each * whole))
        for place, each in sorted(found.items())
    )
