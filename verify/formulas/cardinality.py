"""Sets of (device, step, block): how many there are for every side, by a rule that Z3 proves.

Each variable of a set is free, or follows from the free ones: an affine function of them round its
ring. Then there are as many elements as free variables have values. SUMMA's I, for example, is
brought to device (r, c) at step t unless t == c: of r, c and t all are in the set but for those of
a rule that leaves r and c free, and these are s*s*s - s*s. The rule is read off the set's own term
on small meshes, which is not trusted: Z3 is asked whether set and rule are the same for every side.
Where a side is 1 the rule may be another one.
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

from primepar.schedule.expression import Number, evaluate, every, name, negated
from primepar.schedule.operators import Phase
from primepar.schedule.primitive import ANY
from primepar.verify.deadline import UnansweredError
from primepar.verify.formulas.block_sets import Block, BlockSets, Condition, Values, opened, within
from primepar.verify.formulas.polynomial import Polynomial
from primepar.verify.primitive.affine import Affine

Array = npt.NDArray[Any]
Sides = tuple[int, ...]
Ones = frozenset[int]
"""Places of the sides that are 1, others being 2 or more."""
ALL = Ones()
MOST_DEVICES = 130
"""Of a base mesh with sides of 3, else these are 2."""
Which = Callable[[Number, Block], Condition]
"""Whether this device has a block in its set, given the step."""


class BoundVariable(NamedTuple):
    """A variable that follows from the free ones: factors for them, and a constant."""

    variable: int
    factors: tuple[tuple[int, int], ...]
    """(free variable, factor)."""
    constant: Affine


class Rule(NamedTuple):
    """Which points are in a set, or, of the `complement`, which are not; no `bounds` are all."""

    bounds: tuple[BoundVariable, ...] = ()
    complement: bool = False


@dataclass(eq=False)
class BlockSet:
    """Of the blocks of `tensor` in each product of `phase` those that `which(step, block)` chooses.

    Where a `step` is given, it is the only one.
    """

    text: str
    blocks: BlockSets
    phase: Phase
    tensor: str
    which: Which
    step: Number | None = None

    def __post_init__(self) -> None:
        blocks, now = self.blocks, self.blocks.now if self.step is None else self.step
        own = blocks.block(self.phase, self.tensor, blocks.here, now)
        digits = blocks.any_block(self.tensor)
        block = {
            dim: tuple(digit if named is ANY else named
                       for named, digit in zip(own[dim], digits[dim], strict=True))
            for dim in own
        }  # fmt: skip
        self.member = self.which(now, block)
        self.limits: dict[str, Number] = {
            **blocks.lengths, **({"t": blocks.steps} if self.step is None else {}),
            **{str(digits[dim][at]): blocks.slices[dim][at] for dim, at in opened(own)},
        }  # fmt: skip
        """Each variable, and how many values it has: device axes, step, open digits."""
        self._rules: dict[Ones, Rule] = {}

    def _on(self, condition: Condition, sides: Sides) -> Array:
        """A truth for each point on one mesh, with a dimension for each variable."""
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
        """For each choice of sides that are 1 a base mesh, and ones with another side longer."""
        names = self.blocks.space.names
        lengths = self.blocks.primitive.axis_sides
        long, found = 3 if 3 ** len(lengths) <= MOST_DEVICES else 2, {}
        for ones in subsets(range(len(names))):
            base = tuple(1 if at in ones else long for at in range(len(names)))
            longer = (tuple(side + (at == other) for other, side in enumerate(base))
                      for at in range(len(names)) if at not in ones)  # fmt: skip
            found[ones] = [base, *longer]
        return found

    def rule(self, ones: Ones) -> Rule:
        """The rule that fits where these sides are 1. Raises `UnansweredError` if none does."""
        if ones not in self._rules:
            seen = {sides: self._seen[sides] for sides in self._meshes[ones]}
            rules = (rule for rule in _candidates(seen)
                     if all(self._agrees(rule, sides) for sides in seen))  # fmt: skip
            rule = next(rules, None)
            if rule is None:
                raise UnansweredError(f"{self.text}: no one rule says how many blocks these are")
            self._rules[ones] = rule
        return self._rules[ones]

    def _agrees(self, rule: Rule, sides: Sides) -> bool:
        """Whether a rule has the same points on a mesh."""
        return bool((self._on(self._by(rule), sides) == self._seen[sides]).all())

    @cached_property
    def short(self) -> Ones:
        """Sides for which the rule is another one where they are 1."""
        rule, sides = self.rule(ALL), range(len(self.blocks.space.names))
        alone = {side: self._meshes[Ones([side])][0] for side in sides}
        return Ones(side for side, mesh in alone.items() if not self._agrees(rule, mesh))

    def number(self, ones: Ones) -> Polynomial:
        """How many points there are by the rule for these sides."""
        rule, product, limits = self.rule(ones), self.blocks.product, list(self.limits.values())
        bound = {each.variable for each in rule.bounds}
        inside = product(*(limit for at, limit in enumerate(limits) if at not in bound))
        return product(*limits) - inside if rule.complement else inside

    def differs(self, ones: Ones) -> Condition:
        """What a counterexample satisfies to: the set is that of the rule for these sides."""
        inside = every(within(name(text), limit) for text, limit in self.limits.items())
        ruled = self._by(self.rule(ones))
        both = (self.member & ruled) | (negated(self.member) & negated(ruled))
        return inside & negated(both)

    def _by(self, rule: Rule) -> Condition:
        """The point is in the set by the rule."""
        variables, limits = list(map(name, self.limits)), list(self.limits.values())
        sides, same = list(map(name, self.blocks.space.names)), []
        for variable, factors, constant in rule.bounds:
            far: Number = constant.constant
            for side, factor in zip(sides, constant.coefficients, strict=True):
                far = far + side * factor if factor else far
            for free, factor in factors:
                far = far + variables[free] * factor
            same.append(variables[variable] == far % limits[variable])
        return negated(every(same)) if rule.complement else every(same)


def subsets(sides: Sequence[int] | Ones) -> list[Ones]:
    """All choices of some of these sides, none and all included."""
    return [Ones(some) for count in range(len(sides) + 1)
            for some in combinations(sorted(sides), count)]  # fmt: skip


def _candidates(seen: Mapping[Sides, Array]) -> Iterator[Rule]:
    """Rules that a set may have, seen on a base mesh and, for each side, on a longer one."""
    if not any(points.any() for points in seen.values()):
        yield Rule(complement=True)
    for complement in (False, True):
        sets = {sides: points != complement for sides, points in seen.items()}
        shapes = {_bound(points) for points in sets.values()}
        bound = shapes.pop()
        if not shapes and bound is not None:
            yield Rule(tuple(_rule(sets, variable, bound) for variable in bound), complement)


def _bound(points: Array) -> tuple[int, ...] | None:
    """Variables that the ones before them determine; None if these leave it open."""
    lengths, found = points.shape, list[int]()
    for variable, length in enumerate(lengths):
        gone = (*found, *range(variable + 1, len(lengths)))
        if length > 1 and points.any(axis=gone).sum(axis=-1).max() == 1:
            found.append(variable)
    size = prod(length for at, length in enumerate(lengths) if at not in found)
    return tuple(found) if points.any() and points.sum() == size else None


def _rule(sets: dict[Sides, Array], variable: int, bound: tuple[int, ...]) -> BoundVariable:
    """Read off where all free variables are 0, and where one of them is 1."""

    def value(points: Array, one: int | None = None) -> int:
        at = tuple(
            slice(None) if each in bound else int(each == one) for each in range(points.ndim)
        )
        return int(np.argwhere(points[at])[0][bound.index(variable)])

    factors = []
    for one in range(next(iter(sets.values())).ndim):
        wide = max(sets.values(), key=lambda points: (points.shape[variable], points.shape[one]))
        length = wide.shape[variable]
        if one not in bound and wide.shape[one] > 1:
            step = (value(wide, one) - value(wide)) % length
            factors.append((one, step - length if 2 * step > length else step))
    (base, first), *others = ((sides, value(points)) for sides, points in sets.items())
    slopes = [0] * len(base)
    for sides, other in others:
        (longer,) = (at for at, side in enumerate(sides) if side > base[at])
        slopes[longer] = other - first
    constant = Affine(first - Affine(0, tuple(slopes)).at(base), tuple(slopes))
    return BoundVariable(
        variable, tuple((one, factor) for one, factor in factors if factor), constant
    )
