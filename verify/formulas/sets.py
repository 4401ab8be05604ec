"""Sets of (device, step, block): how many there are for every side, by a rule that Z3 proves.

Each variable of a set is free, or follows from the free ones: an affine function of them round its
ring. Then there are as many elements as free variables have values. SUMMA's I, for example, is
brought to device (r, c) at step t unless t == c: of r, c and t all are in the set but for those of
a rule that leaves r and c free, and these are s*s*s - s*s. The rule is read off the set's own term
on small meshes, which is not trusted: Z3 is asked whether set and rule are the same for every side.
Where a side is 1 the rule may be another one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations
from math import prod

import numpy as np
import z3

from primepar.schedule.operators import Phase
from primepar.schedule.primitive import ANY
from primepar.verify.deadline import UndecidedError
from primepar.verify.formulas.blocks import ONE, Blocks
from primepar.verify.formulas.evaluate import Array, evaluate
from primepar.verify.formulas.polynomial import Polynomial
from primepar.verify.primitive import terms
from primepar.verify.primitive.affine import Affine
from primepar.verify.primitive.order import Claim
from primepar.verify.primitive.symbol import Symbol, Term
from primepar.verify.primitive.symbolic import Block

Sides = tuple[int, ...]
Ones = frozenset[int]
"""Places of the sides that are 1."""
MOST_DEVICES = 130
"""Of a base mesh with sides of 3, else these are 2."""


@dataclass(frozen=True, eq=False)
class BlockSet:
    """Of the blocks of `tensor` in each product of `phase` those that `which(step, block)` chooses.

    Where a `step` is given, it is the only one.
    """

    name: str
    blocks: Blocks
    phase: Phase
    tensor: str
    which: Callable[[Term, Block], Term]
    step: Term | None = None

    @property
    def _now(self) -> Term:
        return self.blocks.symbolic.now if self.step is None else self.step

    @cached_property
    def _block(self) -> Block:
        """The block of a product, each digit that this leaves open being a variable."""
        symbolic = self.blocks.symbolic
        own = symbolic.block(self.phase, self.tensor, symbolic.here, self._now)
        chosen = symbolic.any_block(self.tensor)
        return {
            dim: tuple(named if named is not ANY else digit for named, digit in zip(
                (*own[dim], *(ANY,) * (len(digits) - len(own[dim]))), digits, strict=True))
            for dim, digits in chosen.items()
        }  # fmt: skip

    @cached_property
    def lengths(self) -> list[Affine]:
        """How many values each variable has: device axes, step, open digits."""
        symbolic = self.blocks.symbolic
        own = symbolic.block(self.phase, self.tensor, symbolic.here, self._now)
        radices = [symbolic.radices[dim][place] for dim, place in symbolic.opened(own)]
        form = symbolic.steps.form
        if form is None:
            raise UndecidedError("the number of steps is no sum of sides")
        return [*symbolic.lengths, *([form] if self.step is None else []), *radices]

    @cached_property
    def variables(self) -> list[Term]:
        """A Z3 integer for each variable."""
        symbolic = self.blocks.symbolic
        own = symbolic.block(self.phase, self.tensor, symbolic.here, self._now)
        chosen = symbolic.any_block(self.tensor)
        steps = [symbolic.now] if self.step is None else []
        return [*symbolic.here, *steps, *(chosen[dim][at] for dim, at in symbolic.opened(own))]

    @cached_property
    def member(self) -> Term:
        """The point is in the set."""
        return self.which(self._now, self._block)

    @property
    def inside(self) -> Term:
        """Every variable has one of its values."""
        term = self.blocks.symbolic.space.term
        limits = map(term, self.lengths)
        return terms.And(*map(terms.inside, self.variables, limits))

    def on(self, meshes: Sequence[Sides]) -> list[Seen]:
        """The set on several meshes."""
        names = self.blocks.symbolic.space.names
        shapes = [tuple(length.at(sides) for length in self.lengths) for sides in meshes]
        sizes = [prod(shape) for shape in shapes]
        points = np.concatenate(
            [np.indices(shape).reshape(len(shape), size)
             for shape, size in zip(shapes, sizes, strict=True)], axis=1)  # fmt: skip
        numbers = dict(zip(map(str, self.variables), points, strict=True))
        for name, lengths in zip(names, zip(*meshes, strict=True), strict=True):
            numbers[f"side {name}"] = np.repeat(lengths, sizes)
        truths = np.broadcast_to(evaluate(self.member, numbers), sum(sizes))
        parts = np.split(truths, np.cumsum(sizes)[:-1])
        return [Seen(*each) for each in zip(meshes, map(np.reshape, parts, shapes), strict=True)]


@dataclass(frozen=True)
class Bound:
    """A variable that follows from the free ones: factors for them, and a constant."""

    variable: int
    factors: tuple[tuple[int, int], ...]
    """(free variable, factor)."""
    constant: Affine


@dataclass(frozen=True)
class Rule:
    """Which points are in a set, or, of the `complement`, which are not; no `bounds` are all."""

    bounds: tuple[Bound, ...] = ()
    complement: bool = False

    def term(self, counted: BlockSet) -> Term:
        """The point is in the set by the rule."""
        space = counted.blocks.symbolic.space
        symbols = list(map(space.below, counted.variables, counted.lengths))
        same = []
        for bound in self.bounds:
            far: Symbol = space.exactly(bound.constant)
            for free, factor in bound.factors:
                far = far + symbols[free] * factor
            wrapped = far % space.exactly(counted.lengths[bound.variable])
            same.append(counted.variables[bound.variable] == wrapped.term)
        return terms.Not(terms.And(*same)) if self.complement else terms.And(*same)

    def number(self, counted: BlockSet) -> Polynomial:
        """How many points the rule has, over all devices."""
        every = list(map(counted.blocks.polynomial, counted.lengths))
        bound = {each.variable for each in self.bounds}
        inside = prod((one for at, one in enumerate(every) if at not in bound), start=ONE)
        return prod(every, start=ONE) - inside if self.complement else inside


NONE = Rule(complement=True)
"""Nothing is in the set."""


@dataclass(frozen=True)
class Seen:
    """A set on one mesh: a truth for each point, in an array with a dimension for each variable."""

    sides: Sides
    points: Array

    def agrees(self, rule: Rule) -> bool:
        """Whether a rule has the same points."""
        at, lengths = np.ogrid[tuple(map(slice, self.points.shape))], self.points.shape
        fits = np.ones(lengths, bool)
        for bound in rule.bounds:
            far = sum(factor * at[free] for free, factor in bound.factors)
            own = (far + bound.constant.at(self.sides)) % lengths[bound.variable]
            fits &= at[bound.variable] == own
        return bool((fits != self.points).all() if rule.complement else (fits == self.points).all())

    def bound(self) -> tuple[int, ...] | None:
        """Variables that the ones before them determine; None if these leave it open."""
        lengths, found = self.points.shape, list[int]()
        if not self.points.any():
            return None
        for variable, length in enumerate(lengths):
            gone = (*found, *range(variable + 1, len(lengths)))
            if length > 1 and self.points.any(axis=gone).sum(axis=-1).max() == 1:
                found.append(variable)
        size = prod(length for at, length in enumerate(lengths) if at not in found)
        return tuple(found) if self.points.sum() == size else None

    def value(self, variable: int, free: Sequence[int], one: int | None = None) -> int:
        """What a variable is where all free ones are 0, or `one` of them is 1."""
        points = self.points
        for each in free:
            points = points.take([int(each == one)], axis=each)
        return int(np.argwhere(points)[0][variable])


def fit(seen: Sequence[Seen]) -> Rule | None:
    """The rule of a set, seen on a base mesh and, for each side, on one where it is longer by 1."""
    if not any(each.points.any() for each in seen):
        return NONE
    for complement in (False, True):
        sets = [Seen(each.sides, each.points != complement) for each in seen]
        shapes = {each.bound() for each in sets}
        bound = shapes.pop()
        if shapes or bound is None:
            continue
        free = [at for at in range(seen[0].points.ndim) if at not in bound]
        rule = Rule(tuple(_bound(sets, variable, free) for variable in bound), complement)
        if all(each.agrees(rule) for each in seen):
            return rule
    return None


def _bound(sets: Sequence[Seen], variable: int, free: list[int]) -> Bound:
    factors = []
    for one in free:
        wide = max(sets, key=lambda each: (each.points.shape[variable], each.points.shape[one]))
        length = wide.points.shape[variable]
        if wide.points.shape[one] > 1:
            step = (wide.value(variable, free, one) - wide.value(variable, free)) % length
            factors.append((one, step - length if 2 * step > length else step))
    given = tuple((one, factor) for one, factor in factors if factor)
    constants = [(each.sides, each.value(variable, free)) for each in sets]
    return Bound(variable, given, _affine(constants))


def _affine(values: Sequence[tuple[Sides, int]]) -> Affine:
    """The affine form that has the first value, and grows with each side to the values of others.

    A side that none of them has longer is not in it.
    """
    (base, first), *others = values
    slopes = [0] * len(base)
    for sides, value in others:
        slopes = [value - first if side > least else slope
                  for slope, side, least in zip(slopes, sides, base, strict=True)]  # fmt: skip
    return Affine(first - Affine(0, tuple(slopes)).at(base), tuple(slopes))


@dataclass
class Counter:
    """Fits and claims the sets of one primitive."""

    blocks: Blocks
    _seen: dict[BlockSet, dict[Sides, Seen]] = field(default_factory=dict)
    _rules: dict[tuple[BlockSet, Ones], Rule] = field(default_factory=dict)
    _short: dict[BlockSet, Ones] = field(default_factory=dict)

    @cached_property
    def _meshes(self) -> dict[Ones, list[Sides]]:
        """For each choice of sides that are 1 a base mesh, and ones with another side longer."""
        symbolic = self.blocks.symbolic
        count = len(symbolic.space.names)
        devices = prod(length.at((3,) * count) for length in symbolic.lengths)
        long = 3 if devices <= MOST_DEVICES else 2
        found = {}
        for ones in subsets(range(count)):
            base = tuple(1 if at in ones else long for at in range(count))
            longer = (
                tuple(side + (at == other) for other, side in enumerate(base))
                for at in range(count) if at not in ones
            )  # fmt: skip
            found[ones] = [base, *longer]
        return found

    def seen(self, counted: BlockSet, ones: Ones) -> list[Seen]:
        """A set on the meshes where these sides are 1."""
        if counted not in self._seen:
            every = list(dict.fromkeys(mesh for some in self._meshes.values() for mesh in some))
            self._seen[counted] = {each.sides: each for each in counted.on(every)}
        return [self._seen[counted][sides] for sides in self._meshes[ones]]

    def short(self, counted: BlockSet) -> Ones:
        """Sides for which the rule of a set is another one where they are 1."""
        if counted not in self._short:
            rule = self.rule(counted, frozenset())
            sides = range(len(self.blocks.symbolic.space.names))
            self._short[counted] = frozenset(
                side for side in sides
                if not self.seen(counted, frozenset([side]))[0].agrees(rule)
            )  # fmt: skip
        return self._short[counted]

    def rule(self, counted: BlockSet, ones: Ones) -> Rule:
        """The rule that fits where these sides are 1. Raises `UndecidedError` if none does."""
        key = counted, ones
        if key not in self._rules:
            rule = fit(self.seen(counted, ones))
            if rule is None:
                raise UndecidedError(f"{counted.name}: no one rule says how many blocks these are")
            self._rules[key] = rule
        return self._rules[key]

    def number(self, counted: BlockSet, ones: Ones) -> Polynomial:
        """How many points the set has where these sides are 1, and the others are not."""
        return self.rule(counted, ones & self.short(counted)).number(counted)

    def claims(self, counted: BlockSet, proves: str) -> Iterator[Claim]:
        """That the rules are right, each for the sides that it is meant for."""
        short = self.short(counted)
        for ones in subsets(short):
            rule = self.rule(counted, ones)
            differ = z3.Xor(counted.member, rule.term(counted))
            counter = terms.And(self.guard(short, ones), counted.inside, differ)
            yield Claim(proves, f"{counted.name}: as many as the rule says", counter)

    def guard(self, sides: Ones, ones: Ones) -> Term:
        """Of `sides` those in `ones` are 1, and the others are not."""
        every = [side.term for side in self.blocks.symbolic.space.sides]
        return terms.And(*(every[at] == 1 if at in ones else every[at] >= 2 for at in sides))


def subsets(sides: Sequence[int] | Ones) -> list[Ones]:
    """All choices of some of these sides, none and all included."""
    return [frozenset(some) for count in range(len(sides) + 1)
            for some in combinations(sorted(sides), count)]  # fmt: skip
