"""Finds, for what a claim wants found, an expression of what is given.

Nothing here is trusted: Z3 and the checker of certificates decide whether the expressions are
right. They are built as decision trees. At one point at which no expression is right yet, a value
is looked up on that mesh. The digits that must match there are equations, affine near the point;
solved for the found names, they give expressions. Where those are wrong at other points, a
comparison that separates such a point from the first becomes the condition of a `where`.

    PrimePar's W at the next step needs `(at_r + at_c + t) % s == (r + c + t + 1) % s` and
    `at_c == c`. Near a point that gives `at_c = c` and `at_r = r + 1`; round the axis it is
    `(r + 1) % s`.
    That is right at all points, so the tree is this leaf. A map with `where(r < 2, ...)` in it has
    two leaves, and `r < 2` is one of the comparisons that can separate them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import prod

import numpy as np

from primepar.certify.cases import Case
from primepar.certify.claims import Claim
from primepar.errors import SymbolicError
from primepar.schedule.expression import Condition, Number, evaluate, every, name
from primepar.schedule.polynomial_form import Form
from primepar.verify.primitive.claims_on_mesh import Array, Point, choices, column, grid, limits

Found = dict[str, Number]
"""An expression for every name that is to be found."""
DEEPEST = 40
"""Comparisons on one way through a tree."""
PROBES = 4
"""Points for which expressions are tried, of which the one that is right most often is taken."""


class NoWitnessError(Exception):
    """There is a point at which nothing can be found: the claim is wrong there."""

    def __init__(self, point: Point) -> None:
        super().__init__(str(point))
        self.point = point


@dataclass
class Points:
    """Points of a claim, as one array for every given name."""

    claim: Claim
    values: dict[str, Array] = field(default_factory=dict)

    @classmethod
    def of(cls, claim: Claim, meshes: Iterable[Mapping[str, int]], most: int) -> Points:
        """All points of some meshes; of a large one `most`, always the same ones."""
        rows: list[Point] = []
        random = np.random.default_rng(0)
        for sides in meshes:
            counts = limits(claim, sides)[0]
            number = prod(max(count, 0) for count in counts.values())
            chosen = np.arange(number)
            if number > most:
                chosen = np.sort(random.choice(number, most, replace=False))
            values = grid(counts)
            rows += [
                {**sides, **{each: int(axis[at]) for each, axis in values.items()}} for at in chosen
            ]
        return cls(claim).with_rows(rows)

    def with_rows(self, rows: list[Point]) -> Points:
        """These points and some more."""
        given = [each for each, _ in self.claim.given]
        old = self.values or {each: np.zeros(0, np.int64) for each in given}
        new = {each: np.array([row[each] for row in rows], np.int64) for each in given}
        return Points(self.claim, {each: np.append(old[each], new[each]) for each in given})

    def __len__(self) -> int:
        return len(next(iter(self.values.values()))) if self.values else 1

    def at(self, place: int) -> Point:
        """One of the points."""
        return {each: int(axis[place]) for each, axis in self.values.items()}

    def right(self, found: Found) -> Array:
        """At which points the claim holds with these expressions."""
        count = len(self)
        taken = {each: column(node, self.values, count) for each, node in found.items()}
        room = [(node >= 0) & (node < limit) for node, limit in
                ((name(each), limit) for each, limit in self.claim.found)]  # fmt: skip
        body = every((*room, self.claim.body))
        return np.broadcast_to(np.asarray(evaluate(body, {**self.values, **taken})), count)


def find(points: Points) -> Found:
    """Expressions that are right at all these points.

    Raises `NoWitnessError` for a point where the claim is wrong, `SymbolicError` if no tree that
    is small enough is found.
    """
    if not len(points):
        return {each: 0 for each, _ in points.claim.found}
    return _tree(points, np.arange(len(points)), [], 0)


def _tree(points: Points, places: Array, known: list[_Candidate], depth: int) -> Found:
    for candidate in known:
        if points.right(candidate.found)[places].all():
            return candidate.found
    if depth > DEEPEST:
        raise SymbolicError("what is wanted depends on too many comparisons")
    spread = sorted({int(places[len(places) * part // PROBES]) for part in range(PROBES)})
    tried = [_Candidate.at(points.claim, points.at(place)) for place in (*spread, int(places[-1]))]
    known += tried
    candidate = max(tried, key=lambda one: int(points.right(one.found)[places].sum()))
    right = points.right(candidate.found)[places]
    if right.all():
        return candidate.found
    condition, holds = _separated(points, places, candidate, right)
    then = _tree(points, places[holds], known, depth + 1)
    otherwise = _tree(points, places[~holds], known, depth + 1)
    return {
        each: then[each]
        if str(then[each]) == str(otherwise[each])
        else condition.__where__(then[each], otherwise[each])
        for each in then
    }


def _separated(
    points: Points, places: Array, candidate: _Candidate, right: Array
) -> tuple[Condition, Array]:
    """The condition of the candidate that most points where it is wrong do not fulfil.

    Conditions of the map come before those of the ends of an axis, and these before quotients.
    """
    values = {each: axis[places] for each, axis in points.values.items()}
    for conditions in candidate.conditions:
        best: tuple[int, Condition, Array] | None = None
        for condition in conditions:
            holds = np.broadcast_to(np.asarray(evaluate(condition, values)), len(places))
            gained = int((~holds & ~right).sum()) - int((~holds & right).sum())
            if (~holds & ~right).any() and (best is None or gained > best[0]):
                best = gained, condition, holds
        if best is not None:
            return best[1], best[2]
    raise SymbolicError("what is wanted is no affine form in any of the cases")


@dataclass(frozen=True)
class _Candidate:
    """Expressions that are right at a point, and conditions that hold there, sort by sort."""

    found: Found
    conditions: tuple[tuple[Condition, ...], ...]

    @classmethod
    def at(cls, claim: Claim, point: Point) -> _Candidate:
        """Solve what must match, as it is near the point."""
        possible = choices(claim, point)
        if not possible:
            raise NoWitnessError(point)
        own = {each: point.get(each.removeprefix("at_")) for each, _ in claim.found}
        chosen = max(possible, key=lambda one: sum(one[each] == own[each] for each in one))
        path = _Path({**point, **chosen}, list(chosen))
        names = {each: Form.named(each) for each in (*point, *chosen)}
        equations = [path.value(match.there, names).plus(path.value(match.wanted, names), -1)
                     for match in claim.matches]  # fmt: skip
        path.holds(claim.condition, names)
        solved, left = _solve(path, [*path.equations, *equations], point, chosen, claim)
        path.resolve(solved)
        rooms = {each: path.value(limit, names) for each, limit in claim.found}
        found, inside = {}, []
        for each, _ in claim.found:
            if not path.is_given(solved[each]):
                raise SymbolicError("what is wanted depends on a quotient that no digit gives")
            found[each], wraps = path.around(solved[each], rooms[each])
            room = rooms[each].plus(solved[each], -1).plus(Form.of(-1))
            inside += [] if wraps else [solved[each], room]
        known = {**{each: name(each) for each in point}, **found}
        sorts = ([*left, *path.literals], inside, path.wrapped)
        return cls(found, tuple(
            tuple(_once(evaluate(path.condition(form), known) for form in forms
                        if form.constant is None))
            for forms in sorts
        ))  # fmt: skip


def _once(conditions: Iterable[Condition | bool]) -> Iterable[Condition]:
    """The conditions without repetitions; what is always true is none."""
    return {str(one): one for one in conditions if isinstance(one, Condition)}.values()


class _Path(Case):
    """The way that one concrete point takes through the cases of a claim."""

    def __init__(self, point: Point, unknown: list[str]) -> None:
        super().__init__((), lambda *_: (True, False))
        self.point, self.unknown = dict(point), unknown
        self.literals: list[Form] = []
        """What holds at the point, as forms that are 0 or more."""
        self.wrapped: list[Form] = []
        """The same of quotients."""
        self._is_dividing = False
        self.quotients: dict[str, tuple[Form, int]] = {}
        self.equations: list[Form] = []
        """Equations that conditions of the map ask of unknown names."""
        self.divisions: list[Form] = []
        """Equations of quotients that depend on unknown names."""
        self.parts: dict[str, Number] = {}
        """Names of quotients, as expressions."""

    def decide(self, form: Form) -> bool:
        """As it is at the point."""
        value = at_point(form, self.point)
        if form.constant is None:
            noted = self.wrapped if self._is_dividing else self.literals
            noted.append(form if value >= 0 else form.opposite())
        return value >= 0

    def divided(self, form: Form, divisor: Form) -> tuple[Form, Form]:
        """Quotient and remainder at the point."""
        self._is_dividing = True
        found = super().divided(form, divisor)
        self._is_dividing = False
        return found

    def equal(self, one: Form, other: Form) -> bool:
        """As it is at the point; nothing is solved for."""
        form = one.plus(other, -1)
        value = at_point(form, self.point)
        if value == 0 and not self.is_given(form) and not self._is_dividing:
            self.equations.append(form)
        elif value == 0:
            self.divisions += [form] if self._is_dividing else []
            self.literals += [form, Form({}).plus(form, -1)]
        else:
            self.literals.append(form.plus(Form.of(-1)) if value > 0 else form.opposite())
        return value == 0

    def quotient(self, name: Form, form: Form, divisor: int) -> None:
        """A new name has a value, and an expression."""
        ((text,),) = name.terms
        self.point[text] = at_point(form, self.point) // divisor
        self.quotients[text] = form, divisor
        self.parts[text] = self.expression(form) // divisor
        if not self.is_given(form):
            self.unknown.append(text)

    def resolve(self, solved: Mapping[str, Form]) -> None:
        """Give an expression to each quotient whose form is known now that names are solved for."""
        for text, (form, divisor) in self.quotients.items():
            for each, value in solved.items():
                form = form.replaced(each, value)
            if text in self.unknown and self.is_given(form):
                self.parts[text] = self.expression(form) // divisor
                self.unknown.remove(text)

    def around(self, form: Form, room: Form) -> tuple[Number, bool]:
        """An expression of a form; round the axis, where its limit is one side. And whether it is.

        Round the axis one expression is right on both sides of the end: `(c + 1) % s`.
        """
        terms = list(room.terms.items())
        if len(form.terms) == 1 and sum(form.terms.values()) == 1 and () not in form.terms:
            return self.expression(form), False
        if form.constant is None and len(terms) == 1 and terms[0][1] == 1 and len(terms[0][0]) == 1:
            left = Form({term: factor for term, factor in form.terms.items()
                         if term != terms[0][0]})  # fmt: skip
            whole = self.expression(left)
            return (whole if isinstance(whole, int) and whole == 0 else
                    whole % self.expression(room)), True  # fmt: skip
        return self.expression(form), False

    def expression(self, form: Form) -> Number:
        """A form as an expression of what is given, positive terms first."""
        total: Number = 0
        for term, factor in sorted(
            form.terms.items(), key=lambda item: (item[1] < 0, not item[0], item[0])
        ):
            part: Number = abs(factor) if not term or abs(factor) > 1 else 1
            for each in term:
                one = self.parts.get(each, name(each))
                part = one if isinstance(part, int) and part == 1 else one * part
            if isinstance(total, int) and total == 0:
                total = part if factor > 0 else -part
            else:
                total = total + part if factor > 0 else total - part
        return total

    def is_given(self, form: Form) -> bool:
        """Whether a form depends on no unknown name."""
        return not any(each in self.unknown for term in form.terms for each in term)

    def condition(self, form: Form) -> Condition | bool:
        """That a form is 0 or more, with positive terms on both sides."""
        above = Form({term: factor for term, factor in form.terms.items() if factor > 0})
        return self.expression(above) >= self.expression(above.plus(form, -1))


def at_point(form: Form, point: Mapping[str, int]) -> int:
    """The value of a form."""
    total = 0
    for term, factor in form.terms.items():
        for each in term:
            factor *= point[each]
        total += factor
    return total


def _solve(
    path: _Path, equations: list[Form], point: Point, chosen: Point, claim: Claim
) -> tuple[dict[str, Form], list[Form]]:
    """The equations solved for the unknown names, near forms for names that none gives.

    And what must be 0 or more, where an equation is of given names alone.
    """
    solved: dict[str, Form] = {}
    left: list[Form] = []
    for place, form in enumerate([*equations, *path.divisions]):
        is_division = place >= len(equations)
        for each, value in solved.items():
            form = form.replaced(each, value)
        open_ = {each for term in form.terms for each in term} & {*path.unknown} - solved.keys()
        if is_division and not open_.isdisjoint(path.quotients):
            continue  # It would give a name by a quotient that depends on it.
        units = [each for each in path.unknown if abs(form.terms.get((each,), 0)) == 1]
        alone = [each for each in units if sum(each in term for term in form.terms) == 1]
        if alone:
            factor = form.terms[alone[0],]
            rest = form.plus(Form({(alone[0],): -factor}))
            value = Form({}).plus(rest, -factor)
            solved = {each: old.replaced(alone[0], value) for each, old in solved.items()}
            solved[alone[0]] = value
        else:
            left += [form, Form({}).plus(form, -1)]
    names = {each: Form.named(each) for each in point}
    for each, limit in claim.found:
        if each not in solved:
            value = _free(path.value(limit, names), each, point, chosen[each])
            solved = {other: old.replaced(each, value) for other, old in solved.items()}
            solved[each] = value
    return solved, left


def _free(limit: Form, each: str, point: Point, value: int) -> Form:
    """A form for a name that no equation gives: the device's own coordinate, or the near end."""
    own = each.removeprefix("at_")
    if point.get(own) == value:
        return Form.named(own)
    if value > 0 and at_point(limit, point) == value + 1:
        return limit.plus(Form.of(-1))
    return Form.of(value)
