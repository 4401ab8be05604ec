"""Sets of (device, step, block): how many there are for every side, by a rule that Z3 proves.

Each variable of a set is free, or follows from the free ones: an affine function of them round its
ring. Then there are as many elements as free variables have values. SUMMA's I, for example, is
brought to device (r, c) at step t unless t == c: of r, c and t all are in the set but for those of
a rule that leaves r and c free, and these are s*s*s - s*s. The rule is read off the set's own term
on small meshes, which is not trusted: Z3 is asked whether set and rule are the same for every side.
Where a side is 1 the rule may be another one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import combinations, zip_longest
from math import prod
from typing import NamedTuple

import numpy as np
import z3

from primepar.schedule.operators import Phase
from primepar.schedule.primitive import ANY
from primepar.verify.deadline import UndecidedError
from primepar.verify.formulas.blocks import Blocks
from primepar.verify.formulas.evaluate import Array, evaluate
from primepar.verify.formulas.polynomial import Polynomial
from primepar.verify.primitive import terms
from primepar.verify.primitive.affine import Affine
from primepar.verify.primitive.symbol import Symbol, Term
from primepar.verify.primitive.symbolic import Block

Sides = tuple[int, ...]
Ones = frozenset[int]
"""Places of the sides that are 1, others being 2 or more."""
ALL = Ones()
MOST_DEVICES = 130
"""Of a base mesh with sides of 3, else these are 2."""


Which = Callable[[Term, Block], Term]
"""Whether this device has a block in its set, given the step."""


class Bound(NamedTuple):
    """A variable that follows from the free ones: factors for them, and a constant."""

    variable: int
    factors: tuple[tuple[int, int], ...]
    """(free variable, factor)."""
    constant: Affine


class Rule(NamedTuple):
    """Which points are in a set, or, of the `complement`, which are not; no `bounds` are all."""

    bounds: tuple[Bound, ...] = ()
    complement: bool = False


@dataclass(eq=False)
class BlockSet:
    """Of the blocks of `tensor` in each product of `phase` those that `which(step, block)` chooses.

    Where a `step` is given, it is the only one.
    """

    name: str
    blocks: Blocks
    phase: Phase
    tensor: str
    which: Which
    step: Term | None = None

    def __post_init__(self) -> None:
        symbolic = self.symbolic = self.blocks.symbolic
        now = symbolic.now if self.step is None else self.step
        own = symbolic.block(self.phase, self.tensor, symbolic.here, now)
        digits, opened = symbolic.any_block(self.tensor), symbolic.opened(own)
        block = {
            dim: tuple(
                named if (dim, place) not in opened else digit
                for place, (digit, named) in enumerate(zip_longest(each, own[dim], fillvalue=ANY))
            )
            for dim, each in digits.items()
        }
        self.member: Term = self.which(now, block)
        every = self.step is None
        self.variables: list[Term] = [
            *symbolic.here, *([now] if every else []), *(digits[dim][at] for dim, at in opened)
        ]  # fmt: skip
        self.lengths: list[Affine] = [
            *symbolic.lengths, *([self.blocks.steps] if every else []),
            *(symbolic.radices[dim][at] for dim, at in opened),
        ]  # fmt: skip
        self._rules: dict[Ones, Rule] = {}

    @cached_property
    def _seen(self) -> dict[Sides, Array]:
        """A truth for each point on every small mesh, with a dimension for each variable."""
        names = self.symbolic.space.names
        meshes = list(
            dict.fromkeys(mesh for some in _meshes(self.blocks).values() for mesh in some)
        )
        shapes = [tuple(length.at(sides) for length in self.lengths) for sides in meshes]
        counts = [prod(shape) for shape in shapes]
        points = [
            np.indices(shape).reshape(len(shape), -1) if shape else np.zeros((0, 1))
            for shape in shapes
        ]
        numbers = dict(zip(map(str, self.variables), np.concatenate(points, axis=1), strict=True))
        for name, sides in zip(names, zip(*meshes, strict=True), strict=True):
            numbers[f"side {name}"] = np.repeat(sides, counts)
        truths = np.broadcast_to(evaluate(self.member, numbers), sum(counts))
        parts = np.split(truths, np.cumsum(counts)[:-1])
        return dict(zip(meshes, map(np.reshape, parts, shapes), strict=True))

    def rule(self, ones: Ones) -> Rule:
        """The rule that fits where these sides are 1. Raises `UndecidedError` if none does."""
        if ones not in self._rules:
            rule = fit({sides: self._seen[sides] for sides in _meshes(self.blocks)[ones]})
            if rule is None:
                raise UndecidedError(f"{self.name}: no one rule says how many blocks these are")
            self._rules[ones] = rule
        return self._rules[ones]

    @cached_property
    def short(self) -> Ones:
        """Sides for which the rule is another one where they are 1."""
        rule, every = self.rule(ALL), _meshes(self.blocks)
        alone = ((side, every[Ones([side])][0]) for side in range(len(self.symbolic.space.names)))
        return Ones(side for side, mesh in alone if not agrees(rule, mesh, self._seen[mesh]))

    def number(self, ones: Ones) -> Polynomial:
        """How many points there are by the rule for these sides."""
        rule, product = self.rule(ones), self.blocks.product
        bound = {each.variable for each in rule.bounds}
        inside = product(*(form for at, form in enumerate(self.lengths) if at not in bound))
        return product(*self.lengths) - inside if rule.complement else inside

    def differs(self, ones: Ones) -> Term:
        """What a counterexample satisfies to: the set is that of the rule for these sides."""
        limits = map(self.symbolic.space.term, self.lengths)
        inside = terms.And(*map(terms.inside, self.variables, limits))
        return terms.And(inside, z3.Xor(self.member, self._by(self.rule(ones))))

    def _by(self, rule: Rule) -> Term:
        """The point is in the set by the rule."""
        space = self.symbolic.space
        symbols, same = list(map(space.below, self.variables, self.lengths)), []
        for variable, factors, constant in rule.bounds:
            far: Symbol = space.exactly(constant)
            for free, factor in factors:
                far = far + symbols[free] * factor
            wrapped = far % space.exactly(self.lengths[variable])
            same.append(self.variables[variable] == wrapped.term)
        return terms.Not(terms.And(*same)) if rule.complement else terms.And(*same)


@lru_cache(maxsize=4)
def _meshes(blocks: Blocks) -> dict[Ones, list[Sides]]:
    """For each choice of sides that are 1 a base mesh, and ones with another side longer by 1."""
    count = len(blocks.symbolic.space.names)
    devices = prod(length.at((3,) * count) for length in blocks.symbolic.lengths)
    long, found = 3 if devices <= MOST_DEVICES else 2, {}
    for ones in subsets(range(count)):
        base = tuple(1 if at in ones else long for at in range(count))
        longer = (tuple(side + (at == other) for other, side in enumerate(base))
                  for at in range(count) if at not in ones)  # fmt: skip
        found[ones] = [base, *longer]
    return found


def subsets(sides: Sequence[int] | Ones) -> list[Ones]:
    """All choices of some of these sides, none and all included."""
    return [Ones(some) for count in range(len(sides) + 1)
            for some in combinations(sorted(sides), count)]  # fmt: skip


def agrees(rule: Rule, sides: Sides, points: Array) -> bool:
    """Whether a rule has the same points on a mesh."""
    at, fits = np.ogrid[tuple(map(slice, points.shape))], np.ones(points.shape, bool)
    for variable, factors, constant in rule.bounds:
        far = sum(factor * at[free] for free, factor in factors) + constant.at(sides)
        fits &= at[variable] == far % points.shape[variable]
    return bool(((fits != rule.complement) == points).all())


def fit(seen: dict[Sides, Array]) -> Rule | None:
    """The rule of a set, seen on a base mesh and, for each side, on one where it is longer by 1."""
    if not any(points.any() for points in seen.values()):
        return Rule(complement=True)
    for complement in (False, True):
        sets = {sides: points != complement for sides, points in seen.items()}
        shapes = {_bound(points) for points in sets.values()}
        bound = shapes.pop()
        if not shapes and bound is not None:
            rule = Rule(tuple(_rule(sets, variable, bound) for variable in bound), complement)
            if all(agrees(rule, *each) for each in seen.items()):
                return rule
    return None


def _bound(points: Array) -> tuple[int, ...] | None:
    """Variables that the ones before them determine; None if these leave it open."""
    lengths, found = points.shape, list[int]()
    for variable, length in enumerate(lengths):
        gone = (*found, *range(variable + 1, len(lengths)))
        if length > 1 and points.any(axis=gone).sum(axis=-1).max() == 1:
            found.append(variable)
    size = prod(length for at, length in enumerate(lengths) if at not in found)
    return tuple(found) if points.any() and points.sum() == size else None


def _rule(sets: dict[Sides, Array], variable: int, bound: tuple[int, ...]) -> Bound:
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
    return Bound(variable, tuple((one, factor) for one, factor in factors if factor), constant)
