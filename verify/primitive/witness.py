"""Finds expressions of the given names for the witnesses of a claim.

Nothing here is trusted: Z3 and the checker of certificates decide whether the expressions are
right. They are built as decision trees. At a point where no expression is right yet, values of the
witnesses are found by trying all of them on that mesh. The digits that must match are equations,
which are affine near the point; solved for the witnesses, they give expressions. If those are wrong
at other points, a comparison that separates such a point from the first becomes the condition of a
`where`.

    PrimePar's W at the next step needs `(at_r + at_c + t) % s == (r + c + t + 1) % s` and
    `at_c == c`. Near a point that gives `at_c = c` and `at_r = r + 1`; with the wrap at the end of
    the axis it is `(r + 1) % s`. That is right at all points, so the tree is one leaf. A map with
    `where(r < 2, ...)` has two leaves, and `r < 2` is a comparison that can separate them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import prod

import numpy as np

from primepar.certify.cases import Case
from primepar.certify.claims import Claim
from primepar.errors import SymbolicError
from primepar.schedule.expression import LARGEST, Condition, Number, evaluate, every, name, same
from primepar.schedule.polynomial_form import Form
from primepar.verify.primitive.claims_on_mesh import Array, Point, choices, column, limits

Witnesses = dict[str, Number]
"""An expression for every witness of a claim."""
MAX_DEPTH = 40
"""Largest number of comparisons on a path through a tree."""
PROBES = 4
"""Number of points for which expressions are tried; the one that is right most often is kept."""


class NoWitnessError(Exception):
    """There is a point without a witness: the claim is wrong there."""

    def __init__(self, point: Point) -> None:
        super().__init__(str(point))
        self.point = point


@dataclass
class Points:
    """Points of a claim, as one array for each given name."""

    claim: Claim
    values: dict[str, Array] = field(default_factory=dict)

    @classmethod
    def of(cls, claim: Claim, meshes: Iterable[Mapping[str, int]], most: int) -> Points:
        """All points of some meshes; of a large mesh a fixed random sample of `most`."""
        rows: list[Point] = []
        random = np.random.default_rng(0)
        for sides in meshes:
            counts = limits(claim, sides)[0]
            shape = tuple(max(count, 0) for count in counts.values())
            number = prod(shape)
            if number >= LARGEST:
                raise SymbolicError(f"a claim has {number} cases at {sides}")
            # A point of a mesh is a number whose digits, in the radices of the given names, are its
            # coordinates: so a sample of numbers is one of points, and no list of all points is
            # made.
            chosen = np.arange(min(number, most))
            if number > most:
                chosen = np.sort(random.choice(number, most, replace=False))
            axes = np.unravel_index(chosen, shape) if shape else ()
            values = dict(zip(counts, axes, strict=True))
            rows += [
                {**sides, **{name: int(axis[row]) for name, axis in values.items()}}
                for row in range(len(chosen))
            ]
        return cls(claim).with_rows(rows)

    def with_rows(self, rows: list[Point]) -> Points:
        """These points and additional ones."""
        given = [name for name, _ in self.claim.given]
        old = self.values or {name: np.zeros(0, np.int64) for name in given}
        new = {name: np.array([row[name] for row in rows], np.int64) for name in given}
        return Points(self.claim, {name: np.append(old[name], new[name]) for name in given})

    def __len__(self) -> int:
        return len(next(iter(self.values.values()))) if self.values else 1

    def at(self, place: int) -> Point:
        """The point at a position."""
        return {name: int(axis[place]) for name, axis in self.values.items()}

    def right(self, witnesses: Witnesses) -> Array:
        """For each point, whether the claim holds with these expressions."""
        count = len(self)
        columns = {key: column(node, self.values, count) for key, node in witnesses.items()}
        # A device off the mesh would make every claim true that asks for some device.
        room = [(node >= 0) & (node < limit) for node, limit in
                ((name(key), limit) for key, limit in self.claim.witnesses)]  # fmt: skip
        body = every((*room, self.claim.body))
        return np.broadcast_to(np.asarray(evaluate(body, {**self.values, **columns})), count)


def find(points: Points) -> Witnesses:
    """Return expressions that are right at all these points.

    Raises `NoWitnessError` for a point where the claim is wrong, `SymbolicError` if no small enough
    tree is found.
    """
    if not len(points):
        return {key: 0 for key, _ in points.claim.witnesses}
    return _tree(points, np.arange(len(points)), [], 0)


def _tree(
    points: Points, places: Array, known: list[tuple[_Candidate, Array]], depth: int
) -> Witnesses:
    """`known` are candidates with the points, of all, at which each is right."""
    # Often a tree above has solved this case already: `(r + 1) % s` of the first leaf.
    for candidate, right_at in known:
        if right_at[places].all():
            return candidate.witnesses
    if depth > MAX_DEPTH:
        raise SymbolicError(f"a witness depends on more than {MAX_DEPTH} comparisons")
    spread = sorted({int(places[len(places) * part // PROBES]) for part in range(PROBES)})
    tried = [_Candidate.at(points.claim, points.at(place)) for place in (*spread, int(places[-1]))]
    judged = [(candidate, points.right(candidate.witnesses)) for candidate in tried]
    known += judged
    candidate, right_at = max(judged, key=lambda pair: int(pair[1][places].sum()))
    right = right_at[places]
    if right.all():
        return candidate.witnesses
    # Where the condition does not hold, another leaf must be right. At least one wrong point goes
    # there, and the candidate's own point stays here: both sides get smaller.
    condition, holds = _separated(points, places, candidate, right)
    then = _tree(points, places[holds], known, depth + 1)
    otherwise = _tree(points, places[~holds], known, depth + 1)
    return {
        key: then[key]
        if same(then[key], otherwise[key])
        else condition.__where__(then[key], otherwise[key])
        for key in then
    }


def _separated(
    points: Points, places: Array, candidate: _Candidate, right: Array
) -> tuple[Condition, Array]:
    """The condition of the candidate that fails at most of the points where it is wrong.

    Conditions of the map are tried first, then those of the ends of an axis, then quotients.
    """
    values = {key: axis[places] for key, axis in points.values.items()}
    for conditions in candidate.conditions:
        best: tuple[int, Condition, Array] | None = None
        for condition in conditions:
            holds = np.broadcast_to(np.asarray(evaluate(condition, values)), len(places))
            # Wrong points that the condition sends away, less right ones that it would send with
            # them.
            gained = int((~holds & ~right).sum()) - int((~holds & right).sum())
            if (~holds & ~right).any() and (best is None or gained > best[0]):
                best = gained, condition, holds
        if best is not None:
            return best[1], best[2]
    raise SymbolicError("a witness is not affine in some case")


@dataclass(frozen=True)
class _Candidate:
    """Expressions that are right at a point, and conditions that hold there, in three groups."""

    witnesses: Witnesses
    point: Point
    path: _Path
    groups: tuple[list[Form], ...]
    """The conditions as forms that are 0 or more."""

    @cached_property
    def conditions(self) -> list[tuple[Condition, ...]]:
        """The conditions as expressions: few candidates are asked for theirs."""
        known = {**{key: name(key) for key in self.point}, **self.witnesses}
        return [
            tuple(
                _once(
                    evaluate(self.path.condition(form), known)
                    for form in forms
                    if form.constant is None
                )
            )
            for forms in self.groups
        ]

    @classmethod
    def at(cls, claim: Claim, point: Point) -> _Candidate:
        """Solve the equations of the matching digits near the point."""
        possible = choices(claim, point)
        if not possible:
            raise NoWitnessError(point)
        device = {key: point.get(key.removeprefix("at_")) for key, _ in claim.witnesses}
        # Of several holders the nearest: at_c = c, if the device is in the column of the block,
        # gives an equation that is also right at other points; a far one mostly is not.
        chosen = max(possible, key=lambda values: sum(values[key] == device[key] for key in values))
        # The maps are followed at this one point, but as forms: `%` takes the quotient that it has
        # here, so each digit that must match is one affine equation in r, c, t and the unknown
        # at_r, at_c.
        path = _Path({**point, **chosen}, list(chosen))
        names = {key: Form.named(key) for key in (*point, *chosen)}
        equations = [path.value(match.held, names).plus(path.value(match.needed, names), -1)
                     for match in claim.matches]  # fmt: skip
        path.holds(claim.condition, names)
        solved, left = _solve(path, [*path.equations, *equations], point, chosen, claim)
        path.resolve(solved)
        rooms = {key: path.value(limit, names) for key, limit in claim.witnesses}
        witnesses, inside = {}, []
        for key, _ in claim.witnesses:
            if not path.is_given(solved[key]):
                raise SymbolicError("a witness depends on a quotient that no digit defines")
            # With a wrap the value is on the axis at every point, and needs no condition for it.
            witnesses[key], wraps = path.wrapped_expression(solved[key], rooms[key])
            room = rooms[key].plus(solved[key], -1).plus(Form.of(-1))
            inside += [] if wraps else [solved[key], room]
        groups = ([*left, *path.literals], inside, path.wrapped)
        return cls(witnesses, point, path, groups)


def _once(conditions: Iterable[Condition | bool]) -> Iterable[Condition]:
    """The conditions without repetitions, and without plain truth values."""
    return {id(node): node for node in conditions if isinstance(node, Condition)}.values()


class _Path(Case):
    """The case of a claim that one concrete point belongs to."""

    def __init__(self, point: Point, unknown: list[str]) -> None:
        super().__init__((), lambda *_: (True, False))
        self.point, self.unknown = dict(point), unknown
        self.literals: list[Form] = []
        """Comparisons that hold at the point, as forms that are 0 or more."""
        self.wrapped: list[Form] = []
        """The same for quotients."""
        self._is_dividing = False
        self.quotients: dict[str, tuple[Form, int]] = {}
        self.equations: list[Form] = []
        """Equations of unknown names that conditions of the map require."""
        self.divisions: list[Form] = []
        """Equations of quotients that depend on unknown names."""
        self.parts: dict[str, Number] = {}
        """Names of quotients, as expressions."""

    def decide(self, form: Form) -> bool:
        """Whether a form is 0 or more at the point."""
        value: int = form.at(self.point)
        if form.constant is None:
            noted = self.wrapped if self._is_dividing else self.literals
            noted.append(form if value >= 0 else form.opposite())
        return value >= 0

    def divided(self, form: Form, divisor: Form) -> tuple[Form, Form]:
        """Quotient and remainder at the point."""
        self._is_dividing = True
        result = super().divided(form, divisor)
        self._is_dividing = False
        return result

    def equal(self, left: Form, right: Form) -> bool:
        """Whether two forms are equal at the point; no name is solved for."""
        form = left.plus(right, -1)
        value: int = form.at(self.point)
        if value == 0 and not self.is_given(form) and not self._is_dividing:
            self.equations.append(form)
        elif value == 0:
            self.divisions += [form] if self._is_dividing else []
            self.literals += [form, form.scaled(-1)]
        else:
            self.literals.append(form.plus(Form.of(-1)) if value > 0 else form.opposite())
        return value == 0

    def quotient(self, name: Form, form: Form, divisor: int) -> None:
        """Record the value and the expression of a new name."""
        ((text,),) = name.terms
        self.point[text] = form.at(self.point) // divisor
        self.quotients[text] = form, divisor
        self.parts[text] = self.expression(form) // divisor
        if not self.is_given(form):
            self.unknown.append(text)

    def resolve(self, solved: Mapping[str, Form]) -> None:
        """Set the expression of each quotient whose form is known with the solved names."""
        for text, (form, divisor) in self.quotients.items():
            for solved_name, value in solved.items():
                form = form.replaced(solved_name, value)
            if text in self.unknown and self.is_given(form):
                self.parts[text] = self.expression(form) // divisor
                self.unknown.remove(text)

    def wrapped_expression(self, form: Form, room: Form) -> tuple[Number, bool]:
        """A form as an expression, and whether it wraps around an axis: `(c + 1) % s`.

        It wraps if its limit is one side; then one expression is right before and after the end.
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
        """A form as an expression of given names, positive terms first."""
        total: Number = 0
        for term, factor in sorted(
            form.terms.items(), key=lambda item: (item[1] < 0, not item[0], item[0])
        ):
            part: Number = abs(factor) if not term or abs(factor) > 1 else 1
            for text in term:
                factor_node = self.parts.get(text, name(text))
                part = factor_node if isinstance(part, int) and part == 1 else factor_node * part
            if isinstance(total, int) and total == 0:
                total = part if factor > 0 else -part
            else:
                total = total + part if factor > 0 else total - part
        return total

    def is_given(self, form: Form) -> bool:
        """Whether a form depends on no unknown name."""
        return not any(text in self.unknown for term in form.terms for text in term)

    def condition(self, form: Form) -> Condition | bool:
        """The condition that a form is 0 or more, with positive terms on both sides."""
        above = Form({term: factor for term, factor in form.terms.items() if factor > 0})
        return self.expression(above) >= self.expression(above.plus(form, -1))


def _solve(
    path: _Path, equations: list[Form], point: Point, chosen: Point, claim: Claim
) -> tuple[dict[str, Form], list[Form]]:
    """Solve equations for the unknown names; a name without an equation gets a form near the point.

    Also returns what must be 0 or more where an equation has given names only.
    """
    solved: dict[str, Form] = {}
    left: list[Form] = []
    # `3 r + 2 c = n` has no unit, and comes again once `r + c = k` is solved.
    late: list[Form] = []
    for stage, forms in enumerate((equations, late, path.divisions)):
        for form in forms:
            for unknown, value in solved.items():
                form = form.replaced(unknown, value)
            open_ = {unknown for term in form.terms for unknown in term} & {
                *path.unknown
            } - solved.keys()
            if stage == 2 and not open_.isdisjoint(path.quotients):
                continue  # It would define a name by a quotient that depends on it.
            units = [unknown for unknown in path.unknown if abs(form.terms.get((unknown,), 0)) == 1]
            # A name is solved for only if its factor is 1 or -1, so that the value has whole
            # factors, and if no product has it too.
            alone = [
                unknown for unknown in units if sum(unknown in term for term in form.terms) == 1
            ]
            if alone:
                factor = form.terms[alone[0],]
                rest = form.plus(Form({(alone[0],): -factor}))
                value = rest.scaled(-factor)
                # at_r = at_c + 1 was solved before, and now at_c = c: at_r becomes c + 1.
                solved = {name: old.replaced(alone[0], value) for name, old in solved.items()}
                solved[alone[0]] = value
            elif open_ and stage == 0:
                late.append(form)
            else:
                left += [form, form.scaled(-1)]
    names = {unknown: Form.named(unknown) for unknown in point}
    for unknown, limit in claim.witnesses:
        if unknown not in solved:
            value = _free(path.value(limit, names), unknown, point, chosen[unknown])
            solved = {other: old.replaced(unknown, value) for other, old in solved.items()}
            solved[unknown] = value
    return solved, left


def _free(limit: Form, unknown: str, point: Point, value: int) -> Form:
    """A form for a name without an equation: the device's own coordinate, or the near end."""
    coordinate = unknown.removeprefix("at_")
    if point.get(coordinate) == value:
        return Form.named(coordinate)
    if value > 0 and limit.at(point) == value + 1:
        return limit.plus(Form.of(-1))
    return Form.of(value)
