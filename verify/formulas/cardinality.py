"""Sizes of sets of (device, step, block) for every side, by a rule that Z3 proves.

Each variable of a set is free, or is an affine function of the free ones modulo its limit. Then the
size is the product of the limits of the free variables. For example, SUMMA's I is sent to device
(r, c) at step t unless t == c. The set is the complement of the rule `t = c`, which leaves r and c
free, so its size is s*s*s - s*s. The rule is fitted to the set on small meshes, which is not
trusted: Z3 is asked whether set and rule are equal for every side. Where a side is 1 the rule may
be a different one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from math import prod
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from primepar.schedule.deadline import UnansweredError
from primepar.schedule.expression import Number, evaluate, every, name, negated
from primepar.schedule.operators import Phase
from primepar.schedule.primitive import ANY
from primepar.verify.formulas.block_sets import Block, BlockSets, Condition, Values, opened, within
from primepar.verify.formulas.polynomial import Polynomial
from primepar.verify.primitive.affine import Affine

Array = npt.NDArray[Any]
Sides = tuple[int, ...]
Ones = frozenset[int]
"""Indices of the sides that are 1; the others are 2 or more."""
ALL = Ones()
MAX_DEVICES = 130
"""Largest base mesh with sides of 3; a larger one has sides of 2."""
Which = Callable[[Number, Block], Condition]
"""Whether this device has a block in its set, given the step."""


class BoundVariable(NamedTuple):
    """A variable that is affine in the free ones: their factors, and a constant."""

    variable: int
    factors: tuple[tuple[int, int], ...]
    """(free variable, factor)."""
    constant: Affine


class Rule(NamedTuple):
    """The points with these bound variables, or their `complement`; without `bounds` all points."""

    bounds: tuple[BoundVariable, ...] = ()
    complement: bool = False


@dataclass(eq=False)
class BlockSet:
    """The blocks of `tensor` in each product of `phase` for which `which(step, block)` holds.

    If a `step` is given, it is the only one.
    """

    text: str
    blocks: BlockSets
    phase: Phase
    tensor: str
    which: Which
    step: Number | None = None

    def __post_init__(self) -> None:
        blocks, now = self.blocks, self.blocks.now if self.step is None else self.step
        used = blocks.block(self.phase, self.tensor, blocks.here, now)
        digits = blocks.any_block(self.tensor)
        block = {
            dim: tuple(digit if named is ANY else named
                       for named, digit in zip(used[dim], digits[dim], strict=True))
            for dim in used
        }  # fmt: skip
        self.member = self.which(now, block)
        self.limits: dict[str, Number] = {
            **blocks.lengths, **({"t": blocks.steps} if self.step is None else {}),
            **{str(digits[dim][place]): blocks.slices[dim][place] for dim, place in opened(used)},
        }  # fmt: skip
        """Variable -> its number of values: device axes, step, open digits."""
        self._rules: dict[Ones, Rule] = {}

    def _on(self, condition: Condition, sides: Sides) -> Array:
        """The condition at each point of one mesh, with a dimension for each variable."""
        along = dict(zip(self.blocks.space.names, sides, strict=True))
        shape = tuple(int(evaluate(limit, along)) for limit in self.limits.values())
        points = dict(zip(self.limits, np.indices(shape, sparse=True), strict=True))
        values = Values(self.blocks.digits, {**along, **points})
        return np.broadcast_to(evaluate(condition, values), shape)

    @cached_property
    def _seen(self) -> dict[Sides, Array]:
        """The set on every small mesh."""
        every = {mesh for some in self._meshes.values() for mesh in some}
        return {sides: self._on(self.member, sides) for sides in every}

    @cached_property
    def _meshes(self) -> dict[Ones, list[Sides]]:
        """Sides that are 1 -> a base mesh, and meshes with one other side longer."""
        names = self.blocks.space.names
        lengths = self.blocks.primitive.axis_sides
        long, meshes = 3 if 3 ** len(lengths) <= MAX_DEVICES else 2, {}
        for ones in subsets(range(len(names))):
            base = tuple(1 if index in ones else long for index in range(len(names)))
            longer = (tuple(side + (index == other) for other, side in enumerate(base))
                      for index in range(len(names)) if index not in ones)  # fmt: skip
            meshes[ones] = [base, *longer]
        return meshes

    def rule(self, ones: Ones) -> Rule:
        """The rule that fits where these sides are 1. Raises `UnansweredError` if none does."""
        if ones not in self._rules:
            seen = {sides: self._seen[sides] for sides in self._meshes[ones]}
            rules = (rule for rule in _candidates(seen)
                     if all(self._agrees(rule, sides) for sides in seen))  # fmt: skip
            rule = next(rules, None)
            if rule is None:
                raise UnansweredError(
                    f"{self.text}: no single rule gives the number of these blocks"
                )
            self._rules[ones] = rule
        return self._rules[ones]

    def _agrees(self, rule: Rule, sides: Sides) -> bool:
        """Whether a rule gives the set on a mesh."""
        return bool((self._on(self._by(rule), sides) == self._seen[sides]).all())

    @cached_property
    def short(self) -> Ones:
        """Sides that need a different rule where they are 1."""
        rule, sides = self.rule(ALL), range(len(self.blocks.space.names))
        alone = {side: self._meshes[Ones([side])][0] for side in sides}
        return Ones(side for side, mesh in alone.items() if not self._agrees(rule, mesh))

    def number(self, ones: Ones) -> Polynomial:
        """The number of points by the rule for these sides."""
        rule, product, limits = self.rule(ones), self.blocks.product, list(self.limits.values())
        bound = {variable.variable for variable in rule.bounds}
        inside = product(*(limit for index, limit in enumerate(limits) if index not in bound))
        return product(*limits) - inside if rule.complement else inside

    def differs(self, ones: Ones) -> Condition:
        """The condition of a counterexample to: the set equals its rule for these sides."""
        inside = every(within(name(text), limit) for text, limit in self.limits.items())
        ruled = self._by(self.rule(ones))
        both = (self.member & ruled) | (negated(self.member) & negated(ruled))
        return inside & negated(both)

    def _by(self, rule: Rule) -> Condition:
        """The condition of the points of a rule."""
        variables, limits = list(map(name, self.limits)), list(self.limits.values())
        sides, same = list(map(name, self.blocks.space.names)), []
        for variable, factors, constant in rule.bounds:
            value: Number = constant.constant
            for side, factor in zip(sides, constant.coefficients, strict=True):
                value = value + side * factor if factor else value
            for free, factor in factors:
                value = value + variables[free] * factor
            same.append(variables[variable] == value % limits[variable])
        return negated(every(same)) if rule.complement else every(same)


def subsets(sides: Sequence[int] | Ones) -> list[Ones]:
    """All subsets of these sides."""
    return [Ones(some) for count in range(len(sides) + 1)
            for some in combinations(sorted(sides), count)]  # fmt: skip


def _candidates(seen: Mapping[Sides, Array]) -> Iterator[Rule]:
    """Yield rules that fit a set on a base mesh and, for each side, on a longer one."""
    if not any(points.any() for points in seen.values()):
        yield Rule(complement=True)
    for complement in (False, True):
        sets = {sides: points != complement for sides, points in seen.items()}
        shapes = {_bound(points) for points in sets.values()}
        bound = shapes.pop()
        if not shapes and bound is not None:
            yield Rule(tuple(_rule(sets, variable, bound) for variable in bound), complement)


def _bound(points: Array) -> tuple[int, ...] | None:
    """Variables that are determined by those before them; None if they do not give the set."""
    lengths, bound = points.shape, list[int]()
    for variable, length in enumerate(lengths):
        rest = (*bound, *range(variable + 1, len(lengths)))
        if length > 1 and points.any(axis=rest).sum(axis=-1).max() == 1:
            bound.append(variable)
    size = prod(length for index, length in enumerate(lengths) if index not in bound)
    return tuple(bound) if points.any() and points.sum() == size else None


def _rule(sets: dict[Sides, Array], variable: int, bound: tuple[int, ...]) -> BoundVariable:
    """Fit the constant where all free variables are 0, and each factor where one of them is 1."""

    def value(points: Array, unit: int | None = None) -> int:
        index = tuple(
            slice(None) if axis in bound else int(axis == unit) for axis in range(points.ndim)
        )
        return int(np.argwhere(points[index])[0][bound.index(variable)])

    factors = []
    for free in range(next(iter(sets.values())).ndim):
        wide = max(sets.values(), key=lambda points: (points.shape[variable], points.shape[free]))
        length = wide.shape[variable]
        if free not in bound and wide.shape[free] > 1:
            step = (value(wide, free) - value(wide)) % length
            factors.append((free, step - length if 2 * step > length else step))
    (base, first), *others = ((sides, value(points)) for sides, points in sets.items())
    slopes = [0] * len(base)
    for sides, other in others:
        (longer,) = (index for index, side in enumerate(sides) if side > base[index])
        slopes[longer] = other - first
    constant = Affine(first - Affine(0, tuple(slopes)).at(base), tuple(slopes))
    return BoundVariable(
        variable, tuple((free, factor) for free, factor in factors if factor), constant
    )
