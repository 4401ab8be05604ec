"""Guesses of how many: a set of (device, step, block) as an affine subspace, from concrete sides.

Each variable of such a set is free, or an affine function of free ones round its ring. Nothing
here is trusted, as in `fit`: the rule that explains the samples is what Z3 is asked to prove, and
then the number of elements is the product of the lengths of the free variables.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from primepar.verify.primitive.affine import Affine
from primepar.verify.primitive.fit import Sample, fit_affine
from primepar.verify.primitive.fit_sender import FitError, Row

Points = npt.NDArray[np.bool_]
"""One truth for each point: whether it is in the set; a dimension for each variable."""
Grid = Sequence[npt.NDArray[Any]]
"""For each variable its values, along its own dimension."""


@dataclass(frozen=True)
class Bound:
    """A variable that follows from the free ones: factors for them, and a constant."""

    variable: int
    factors: tuple[tuple[int, int], ...]
    """(free variable, factor)."""
    constant: Affine

    def at(self, points: Grid, length: int, sides: Row) -> npt.NDArray[Any]:
        """Its value at all points of one mesh."""
        far = sum(factor * points[free] for free, factor in self.factors)
        return np.asarray((far + self.constant.at(sides)) % length)


@dataclass(frozen=True)
class Rule:
    """Which points are in a set, or, of the `complement`, which are not; no `bounds` are all."""

    bounds: tuple[Bound, ...]
    complement: bool = False

    def inside(self, lengths: Row, sides: Row) -> Points:
        """The points that fit the bounds."""
        points = np.ogrid[tuple(slice(length) for length in lengths)]
        fits = np.ones(lengths, bool)
        for bound in self.bounds:
            at = bound.variable
            fits &= points[at] == bound.at(points, lengths[at], sides)
        return fits


NONE = Rule((), complement=True)
"""Nothing is in the set."""


@dataclass(frozen=True)
class Seen:
    """A set on one mesh; its points have one dimension for each variable."""

    sample: Sample
    points: Points

    @property
    def lengths(self) -> Row:
        """How many values each variable has."""
        return self.points.shape

    @property
    def sides(self) -> Row:
        """Sides of the mesh."""
        return self.sample.element.sides

    def outside(self) -> Seen:
        """The complement."""
        return Seen(self.sample, ~self.points)

    def agrees(self, rule: Rule) -> bool:
        """Whether a rule explains this mesh."""
        points = ~self.points if rule.complement else self.points
        return bool((rule.inside(self.lengths, self.sides) == points).all())

    def bound(self) -> tuple[int, ...] | None:
        """Variables that the ones before them determine; None if these do not tell the set."""
        if not self.points.any():
            return None
        bound: list[int] = []
        for variable, length in enumerate(self.lengths):
            gone = (*bound, *range(variable + 1, len(self.lengths)))
            values = self.points.any(axis=gone).sum(axis=-1)
            if length > 1 and values.max() == 1:
                bound.append(variable)
        size = prod(length for at, length in enumerate(self.lengths) if at not in bound)
        return tuple(bound) if self.points.sum() == size else None


def fit_count(seen: Sequence[Seen]) -> Rule:
    """The rule of a set, seen on a base mesh and on longer ones. Raises `FitError` if none fits."""
    if not any(each.points.any() for each in seen):
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
    points = seen.points
    for each in free:
        points = points.take([int(each == one)], axis=each)
    return int(np.argwhere(points)[0][variable])
