"""Guesses of how many: a set of (device, step, block) as an affine subspace, from concrete sides.

Each variable of such a set is free, or an affine function of free ones round its ring. Nothing
here is trusted, as in `fit`: the rule that explains the samples is what Z3 is asked to prove, and
then the number of elements is the product of the lengths of the free variables.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

from primepar.verify.fit import FitError, Row, Sample, fit_affine
from primepar.verify.primitive_affine import Affine


@dataclass(frozen=True)
class Bound:
    """A variable that follows from the free ones: factors for them, and a constant."""

    variable: int
    factors: tuple[tuple[int, int], ...]
    """(free variable, factor)."""
    constant: Affine

    def at(self, point: Row, length: int, sides: Row) -> int:
        """Its value on one mesh."""
        far = sum(factor * point[free] for free, factor in self.factors)
        return (far + self.constant.at(sides)) % length


@dataclass(frozen=True)
class Rule:
    """Which points are in a set, or, of the `complement`, which are not; no `bounds` are all."""

    bounds: tuple[Bound, ...]
    complement: bool = False

    def inside(self, lengths: Row, sides: Row) -> frozenset[Row]:
        """The points that fit the bounds."""
        bound = {each.variable: each for each in self.bounds}
        ranges = [range(1 if at in bound else length) for at, length in enumerate(lengths)]
        return frozenset(
            tuple(
                bound[at].at(point, lengths[at], sides) if at in bound else own
                for at, own in enumerate(point)
            )
            for point in product(*ranges)
        )


NONE = Rule((), complement=True)
"""Nothing is in the set."""


@dataclass(frozen=True)
class Seen:
    """A set on one mesh: the lengths of its variables, and its points."""

    sample: Sample
    lengths: Row
    points: frozenset[Row]

    @property
    def sides(self) -> Row:
        """Sides of the mesh."""
        return self.sample.element.sides

    def outside(self) -> Seen:
        """The complement."""
        return Seen(self.sample, self.lengths, self._all - self.points)

    @property
    def _all(self) -> frozenset[Row]:
        return frozenset(product(*map(range, self.lengths)))

    def agrees(self, rule: Rule) -> bool:
        """Whether a rule explains this mesh."""
        points = self.outside().points if rule.complement else self.points
        return rule.inside(self.lengths, self.sides) == points

    def bound(self) -> tuple[int, ...] | None:
        """Variables that the ones before them determine; None if these do not tell the set."""
        if not self.points:
            return None
        bound: list[int] = []
        for variable in range(len(self.lengths)):
            free = [each for each in range(variable) if each not in bound]
            values: dict[Row, int] = {}
            known = (
                values.setdefault(tuple(point[each] for each in free), point[variable])
                == point[variable]
                for point in self.points
            )
            if self.lengths[variable] > 1 and all(known):
                bound.append(variable)
        size = prod(length for at, length in enumerate(self.lengths) if at not in bound)
        return tuple(bound) if len(self.points) == size else None


def fit_count(seen: Sequence[Seen]) -> Rule:
    """The rule of a set, seen on a base mesh and on longer ones. Raises `FitError` if none fits."""
    if not any(each.points for each in seen):
        return NONE
    for complement in (False, True):
        sets = [each.outside() for each in seen] if complement else list(seen)
        rule = _subspace(sets, complement)
        if rule is not None and all(each.agrees(rule) for each in seen):
            return rule
    raise FitError("no one rule says how many blocks these are")


def _subspace(sets: Sequence[Seen], complement: bool) -> Rule | None:
    shapes = {each.bound() for each in sets}
    bound = shapes.pop()
    if shapes or bound is None:
        return None
    free = [at for at in range(len(sets[0].lengths)) if at not in bound]
    return Rule(tuple(_bound(sets, variable, free) for variable in bound), complement)


def _bound(sets: Sequence[Seen], variable: int, free: list[int]) -> Bound:
    """Read off at the point where all free variables are 0, and where one of them is 1."""
    constants = [_value(each, variable, free, None) for each in sets]
    factors = []
    for one in free:
        wide = max(sets, key=lambda each: (each.lengths[variable], each.lengths[one]))
        if wide.lengths[one] > 1:
            length = wide.lengths[variable]
            start = _value(wide, variable, free, None)
            step = (_value(wide, variable, free, one) - start) % length
            factors.append((one, step - length if 2 * step > length else step))
    given = tuple((one, factor) for one, factor in factors if factor)
    return Bound(variable, given, fit_affine([each.sample for each in sets], constants))


def _value(seen: Seen, variable: int, free: list[int], one: int | None) -> int:
    wanted = {each: int(each == one) for each in free}
    return next(
        point[variable]
        for point in seen.points
        if all(point[each] == at for each, at in wanted.items())
    )
