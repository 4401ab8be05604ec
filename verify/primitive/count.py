"""Sets of (device, step, block), read off the maps twice: on concrete meshes, and as Z3 terms.

A set is given by one predicate over `Facts`. On a mesh it is an array of all points; over all
meshes it is a term, and the rule that was fitted is claimed to be the same.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, reduce
from itertools import product
from math import prod
from typing import Any

import numpy as np
import z3

from primepar.schedule.operators import Phase
from primepar.schedule.primitive import ANY
from primepar.verify.primitive import terms
from primepar.verify.primitive.affine import Affine
from primepar.verify.primitive.fit import Sample
from primepar.verify.primitive.fit_count import Rule, Seen, fit_count
from primepar.verify.primitive.fit_sender import FitError
from primepar.verify.primitive.fit_table import Table
from primepar.verify.primitive.order import Claim
from primepar.verify.primitive.polynomial import Polynomial
from primepar.verify.primitive.symbol import Symbol, Term
from primepar.verify.primitive.symbolic import Block, SymbolicMap, overlaps

Truth = Any
"""An array of bools on a mesh, a Z3 term over all."""


class Facts(ABC):
    """What is asked of one device, one step `t` and one block of a tensor."""

    t: Any
    steps: Any

    @abstractmethod
    def works(self, phase: Phase, tensor: str, step: Any) -> Truth:
        """The device has the block in its product at that step."""

    @abstractmethod
    def at_home(self) -> Truth:
        """The block rests on the device."""

    @abstractmethod
    def all(self, *facts: Truth) -> Truth:
        """All of them hold."""

    @abstractmethod
    def none(self, *facts: Truth) -> Truth:
        """None of them holds."""


@dataclass(frozen=True)
class Counted:
    """A set: of the blocks that `tensor` has in a product of `phase`, those that `which` chooses.

    `step` is the step of that product, or None for every step.
    """

    name: str
    phase: Phase
    tensor: str
    which: Callable[[Facts], Truth]
    step: str | None = None
    """`first` or `last`."""


class _Numbers(Facts):
    """All points of one mesh at once: truths are arrays, one dimension for each variable."""

    def __init__(self, sample: Sample, counted: Counted, t: Any, opened: int) -> None:
        self.sample, self.t, self.tensor, self.opened = sample, t, counted.tensor, opened
        self.steps = sample.element.steps
        self.block = self._at(sample.block(counted.phase, counted.tensor), t)

    def works(self, phase: Phase, tensor: str, step: Any) -> Truth:
        inside = np.asarray((step >= 0) & (step < self.steps))
        table = self.sample.block(phase, tensor)
        return inside & self._same(self._at(table, np.clip(step, 0, self.steps - 1)))

    def at_home(self) -> Truth:
        return self._same(self._at(self.sample.home(self.tensor), None))

    def _at(self, table: Table, step: Any) -> dict[str, Any]:
        """The digits at these steps, with a dimension for each variable."""
        return {
            dim: [digit if digit is ANY else self._shaped(digit, step) for digit in digits]
            for dim, digits in table.items()
        }

    def _shaped(self, digit: Any, step: Any) -> Any:
        if step is not None:
            digit = digit[..., np.ravel(step) if np.ndim(step) else step]
        elif np.ndim(self.t):
            digit = digit[..., np.newaxis]
        return digit.reshape(digit.shape + (1,) * self.opened)

    def _same(self, one: dict[str, Any]) -> Truth:
        pairs = ((a, b) for dim, own in self.block.items()
                 for a, b in zip(one[dim], own, strict=False))  # fmt: skip
        return reduce(np.logical_and, (a == b for a, b in pairs if a is not ANY), np.True_)

    def all(self, *facts: Truth) -> Truth:
        return reduce(np.logical_and, facts)

    def none(self, *facts: Truth) -> Truth:
        return np.logical_not(reduce(np.logical_or, facts))


def seen_on(
    sample: Sample, counted: Counted, lengths: list[Affine], opened: list[tuple[str, int]]
) -> Seen:
    """The set on one mesh."""
    steps = sample.element.steps
    sizes = tuple(length.at(sample.element.sides) for length in lengths)
    t: Any = {"first": 0, "last": steps - 1}.get(counted.step or "")
    if t is None:
        t = np.arange(steps).reshape(-1, *(1,) * len(opened))
    facts = _Numbers(sample, counted, t, len(opened))
    digits = np.ogrid[tuple(map(slice, sizes))][len(sizes) - len(opened) :]
    facts.block = filled(facts.block, opened, digits)
    return Seen(sample, np.broadcast_to(counted.which(facts), sizes))


def filled(named: dict[str, Any], opened: list[tuple[str, int]], choice: Any) -> dict[str, Any]:
    """The block of these digits where those that are open are chosen."""
    index = {dim: list(digits) for dim, digits in named.items()}
    for (dim, place), digit in zip(opened, choice, strict=True):
        index[dim] += [ANY] * (place + 1 - len(index[dim]))
        index[dim][place] = digit
    return {dim: tuple(digits) for dim, digits in index.items()}


class _Terms(Facts):
    """Any point over all meshes."""

    def __init__(self, symbolic: SymbolicMap, t: Term, block: Block, tensor: str) -> None:
        self.symbolic, self.t, self.block, self.tensor = symbolic, t, block, tensor
        self.steps = symbolic.steps.term

    def works(self, phase: Phase, tensor: str, step: Any) -> Truth:
        inside = terms.And(step >= 0, step < self.steps)
        block = self.symbolic.block(phase, tensor, self.symbolic.here, step)
        return terms.And(inside, overlaps(block, self.block))

    def at_home(self) -> Truth:
        return overlaps(self.symbolic.home(self.tensor, self.symbolic.here), self.block)

    def all(self, *facts: Truth) -> Truth:
        return terms.And(*facts)

    def none(self, *facts: Truth) -> Truth:
        return terms.Not(terms.Or(*facts))


@dataclass
class Space:
    """The variables of one set over all meshes: the device, the step, the open digits."""

    symbolic: SymbolicMap
    counted: Counted

    @cached_property
    def opened(self) -> list[tuple[str, int]]:
        """(dim, place) of the digits that the product leaves open."""
        symbolic, counted = self.symbolic, self.counted
        named = symbolic.block(counted.phase, counted.tensor, symbolic.here, symbolic.now)
        return symbolic.opened(named)

    @cached_property
    def lengths(self) -> list[Affine]:
        """How many values each variable has."""
        radices = [self.symbolic.radices[dim][place] for dim, place in self.opened]
        form = self.symbolic.steps.form
        if form is None:
            raise FitError("the number of steps is no sum of sides")
        steps = [form] if self.counted.step is None else []
        return [*self.symbolic.lengths, *steps, *radices]

    @cached_property
    def variables(self) -> list[Term]:
        """A Z3 integer for each."""
        steps = [self.symbolic.now] if self.counted.step is None else []
        digits = [terms.Int(f"{dim}{place}") for dim, place in self.opened]
        return [*self.symbolic.here, *steps, *digits]

    @property
    def inside(self) -> Term:
        """Every variable is in its range."""
        term = self.symbolic.space.term
        return terms.And(
            *(terms.inside(at, term(length))
              for at, length in zip(self.variables, self.lengths, strict=True))
        )  # fmt: skip

    @property
    def member(self) -> Term:
        """The point is in the set."""
        return self.counted.which(self.facts())

    def facts(self) -> Facts:
        """What is asked of any point."""
        symbolic, counted = self.symbolic, self.counted
        last = symbolic.steps.term - 1
        t = {None: symbolic.now, "first": terms.IntVal(0)}.get(counted.step, last)
        named = symbolic.block(counted.phase, counted.tensor, symbolic.here, t)
        chosen = self.variables[len(self.variables) - len(self.opened) :]
        return _Terms(symbolic, t, filled(named, self.opened, chosen), counted.tensor)

    def by_rule(self, rule: Rule) -> Term:
        """The point is in the set by the rule."""
        space = self.symbolic.space
        pairs = zip(self.variables, self.lengths, strict=True)
        symbols = [space.below(at, length) for at, length in pairs]
        same = []
        for bound in rule.bounds:
            far: Symbol = space.exactly(bound.constant)
            for free, factor in bound.factors:
                far = far + symbols[free] * factor
            wrapped = far % space.exactly(self.lengths[bound.variable])
            same.append(self.variables[bound.variable] == wrapped.term)
        return terms.Not(terms.And(*same)) if rule.complement else terms.And(*same)

    def number(self, rule: Rule) -> Polynomial:
        """How many points a rule has, over all devices."""
        every = [self.symbolic.space.polynomial(length) for length in self.lengths]
        bound = {each.variable for each in rule.bounds}
        free = (each for at, each in enumerate(every) if at not in bound)
        one = Polynomial.of(1)
        inside = prod(free, start=one)
        return prod(every, start=one) - inside if rule.complement else inside


@dataclass
class Counter:
    """Fits and claims the sets of one primitive; `meshes` are found by their sides set to 1."""

    symbolic: SymbolicMap
    meshes: dict[frozenset[int], list[Sample]]
    proves: str
    _rules: dict[tuple[str, frozenset[int]], Rule] = field(default_factory=dict)
    _short: dict[str, frozenset[int]] = field(default_factory=dict)

    def short(self, counted: Counted) -> frozenset[int]:
        """Sides for which the rule of a set is another one where they are 1."""
        if counted.name not in self._short:
            space, rule = Space(self.symbolic, counted), self.rule(counted, frozenset())
            self._short[counted.name] = frozenset(
                side
                for side in range(len(self.symbolic.space.names))
                for mesh in self.meshes[frozenset([side])][:1]
                if not seen_on(mesh, counted, space.lengths, space.opened).agrees(rule)
            )
        return self._short[counted.name]

    def rule(self, counted: Counted, ones: frozenset[int]) -> Rule:
        """The rule that was fitted where these sides are 1. Raises `FitError` if none fits."""
        key = counted.name, ones
        if key not in self._rules:
            space = Space(self.symbolic, counted)
            seen = [
                seen_on(mesh, counted, space.lengths, space.opened) for mesh in self.meshes[ones]
            ]
            self._rules[key] = fit_count(seen)
        return self._rules[key]

    def number(self, counted: Counted, ones: frozenset[int]) -> Polynomial:
        """How many points the set has where these sides are 1, and the others are not."""
        rule = self.rule(counted, ones & self.short(counted))
        return Space(self.symbolic, counted).number(rule)

    def claims(self, counted: Counted, every: list[frozenset[int]]) -> Iterator[Claim]:
        """That the rules are right, each for the sides that it is meant for."""
        space, short = Space(self.symbolic, counted), self.short(counted)
        for ones in dict.fromkeys(each & short for each in every):
            rule = self.rule(counted, ones)
            guard = self.guard(short, ones)
            differ = z3.Xor(space.member, space.by_rule(rule))
            sentence = f"{counted.name}: as many as the rule says"
            yield Claim(self.proves, sentence, terms.And(guard, space.inside, differ))

    def guard(self, sides: frozenset[int], ones: frozenset[int]) -> Term:
        """Of `sides` those in `ones` are 1, and the others are not."""
        every = [side.term for side in self.symbolic.space.sides]
        return terms.And(*(every[at] == 1 if at in ones else every[at] >= 2 for at in sides))


LONGEST = 3
"""Sides of the base mesh; where one is longer by 1 a rule shows what it has of that side."""


def meshes(seen: list[Sample]) -> dict[frozenset[int], list[Sample]]:
    """For each choice of sides that are 1 a base mesh, and for each side one where it is longer."""
    base = [min(side, LONGEST) for side in seen[0].element.sides]
    several = [base, *([*base[:at], side + 1, *base[at + 1 :]] for at, side in enumerate(base))]
    known = {sample.element.sides: sample for sample in seen}
    found: dict[frozenset[int], list[Sample]] = {}
    for choice in product((False, True), repeat=len(base)):
        ones = frozenset(at for at, one in enumerate(choice) if one)
        found[ones] = []
        for each in several:
            sides = tuple(1 if at in ones else side for at, side in enumerate(each))
            if sides not in known:
                known[sides] = seen[0].on(sides)
            found[ones].append(known[sides])
    return found
