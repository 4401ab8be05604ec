"""Polynomials in the sides and the operator's sizes, all of which are whole numbers of 1 or more.

They are kept expanded, with whole coefficients, so that equal ones are seen to be equal; and one
whose coefficients are positive, each variable counted from its least value, is seen to be positive.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, reduce
from math import gcd, lcm
from typing import Any

from primepar.verify.primitive import terms
from primepar.verify.primitive.affine import Affine, sum_text

Monomial = tuple[str, ...]
"""Names of variables in order, each as often as its power says."""


@dataclass(frozen=True)
class Range:
    """What is known of variables: the `least` value of some, and which of them are `only` that.

    Every other variable is 1 or more.
    """

    least: Mapping[str, int] = field(default_factory=dict)
    only: frozenset[str] = frozenset()

    def lowest(self, name: str) -> int:
        """The least value of a variable."""
        return self.least.get(name, 1)

    def split(self, name: str) -> tuple[Range, Range]:
        """Where a variable has its least value, and where it is more."""
        low = self.lowest(name)
        return (
            Range({**self.least, name: low}, self.only | {name}),
            Range({**self.least, name: low + 1}, self.only),
        )

    def from_zero(self, name: str) -> Polynomial:
        """The variable as its least value and a variable of 0 or more."""
        return _from_zero(name, self.lowest(name), name in self.only)

    def term(self) -> Any:
        """The same for Z3."""
        return terms.And(
            *(terms.Int(name) == low if name in self.only else terms.Int(name) >= low
              for name, low in self.least.items())
        )  # fmt: skip


@dataclass(frozen=True)
class Polynomial:
    """Monomial -> its coefficient, which is never 0."""

    factors: Mapping[Monomial, int]

    @classmethod
    def of(cls, number: int) -> Polynomial:
        """A plain number."""
        return cls({(): number} if number else {})

    @classmethod
    def variable(cls, name: str) -> Polynomial:
        """A variable."""
        return cls({(name,): 1})

    @classmethod
    def affine(cls, form: Affine, names: tuple[str, ...]) -> Polynomial:
        """An affine form of the sides of these names."""
        pairs = zip(names, form.coefficients, strict=True)
        factors: dict[Monomial, int] = {
            (f"side {name}",): factor for name, factor in pairs if factor
        }
        return cls({**factors, **cls.of(form.constant).factors})

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash(frozenset(self.factors.items()))

    def __add__(self, other: Polynomial) -> Polynomial:
        return _collected((*self.factors.items(), *other.factors.items()))

    def __mul__(self, other: Polynomial | int) -> Polynomial:
        right = Polynomial.of(other) if isinstance(other, int) else other
        return _collected(
            tuple(
                (one + two if not one or not two else tuple(sorted(one + two)), a * b)
                for one, a in self.factors.items()
                for two, b in right.factors.items()
            )
        )

    def __sub__(self, other: Polynomial) -> Polynomial:
        return self + other * -1

    @property
    def number(self) -> int | None:
        """Its value, where it has no variable."""
        return self.factors.get((), 0) if set(self.factors) <= {()} else None

    @property
    def names(self) -> frozenset[str]:
        """Its variables."""
        return frozenset(name for monomial in self.factors for name in monomial)

    def within(self, known: Range) -> Polynomial:
        """The same with every variable counted from its least value."""
        return _collected(
            tuple(
                (each, factor * times)
                for monomial, factor in self.factors.items()
                for each, times in _product(tuple(map(known.from_zero, monomial))).factors.items()
            )
        )

    def holds(self, compare: Callable[[int, int], bool], known: Range) -> bool | None:
        """Whether it compares with 0 so; None where that is not seen, or not always the same."""
        if self.factors and min(self.factors.values()) > 0:
            return compare(1, 0)
        shifted = self.within(known)
        if shifted.number is not None:
            return compare(shifted.number, 0)
        for sign in (1, -1):
            if all(factor * sign > 0 for factor in shifted.factors.values()):
                results = {compare(sign, 0)} | (
                    {compare(0, 0)} if () not in shifted.factors else set()
                )
                return results.pop() if len(results) == 1 else None
        return None

    def least_common(self, other: Polynomial) -> tuple[Polynomial, Polynomial]:
        """What this and the other are to be multiplied with to become equal, as little as seen."""
        return _least_common(self, other)

    def reduced(self) -> Polynomial:
        """The same without the variables that all monomials have in common; of the same sign."""
        if not self.factors or () in self.factors:
            return self
        gone = reduce(Counter.__and__, map(Counter, self.factors))
        return Polynomial({_without(each, gone): factor for each, factor in self.factors.items()})

    def per(self, other: Polynomial) -> str:
        """The fraction of the two as people write it, `s`, or `2*q / d`."""
        gone = reduce(Counter.__and__, map(Counter, (*self.factors, *other.factors)))
        shared = gcd(*self.factors.values(), *other.factors.values())
        texts = []
        for each in (self, other):
            named = (
                (
                    factor // shared,
                    [name.removeprefix("side ") for name in _without(monomial, gone)],
                )
                for monomial, factor in each.factors.items()
            )
            text = sum_text([(factor, "*".join(names)) for factor, names in named])
            texts.append(text if len(each.factors) == 1 else f"({text})")
        top, bottom = texts
        return "1" if top == bottom else top if bottom == "1" else f"{top} / {bottom}"

    def term(self) -> Any:
        """The same for Z3."""
        parts = [
            terms.Product([terms.IntVal(factor), *map(terms.Int, monomial)])
            for monomial, factor in self.factors.items()
        ]
        return terms.Sum([terms.IntVal(0), *parts])


def _collected(parts: tuple[tuple[Monomial, int], ...]) -> Polynomial:
    total: dict[Monomial, int] = {}
    for monomial, factor in parts:
        total[monomial] = total.get(monomial, 0) + factor
    return Polynomial({monomial: factor for monomial, factor in total.items() if factor})


def _without(monomial: Monomial, gone: Counter[str]) -> Monomial:
    return tuple(sorted((Counter(monomial) - gone).elements()))


@lru_cache(maxsize=4096)
def _product(parts: tuple[Polynomial, ...]) -> Polynomial:
    return reduce(Polynomial.__mul__, parts, Polynomial.of(1))


@lru_cache(maxsize=4096)
def _least_common(one: Polynomial, other: Polynomial) -> tuple[Polynomial, Polynomial]:
    if one == other:
        return Polynomial.of(1), Polynomial.of(1)
    if len(one.factors) > 1 or len(other.factors) > 1:
        return other, one
    ((here, a),), ((there, b),) = one.factors.items(), other.factors.items()
    most = Counter(here) | Counter(there)
    number = lcm(a, b)
    return (
        Polynomial({_without(tuple(most.elements()), Counter(here)): number // a}),
        Polynomial({_without(tuple(most.elements()), Counter(there)): number // b}),
    )


@lru_cache(maxsize=256)
def _from_zero(name: str, least: int, only: bool) -> Polynomial:
    return Polynomial.of(least) if only else Polynomial({(name,): 1, (): least})
