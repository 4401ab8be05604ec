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
Term = Any
"""A Z3 expression; z3 ships no types."""


@dataclass(frozen=True)
class Range:
    """What is known of variables: the least value of some, and the only value of others.

    Every other variable is 1 or more.
    """

    least: Mapping[str, int] = field(default_factory=dict)
    only: Mapping[str, int] = field(default_factory=dict)

    def from_zero(self, name: str) -> Polynomial:
        """The variable as what it has at least, and a variable of 0 or more."""
        if name in self.only:
            return Polynomial.of(self.only[name])
        return _from_least(name, self.least.get(name, 1))

    def term(self) -> Term:
        """The same for Z3."""
        least = [terms.Int(name) >= number for name, number in self.least.items()]
        return terms.And(*least, *(terms.Int(name) == number for name, number in self.only.items()))


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
        """An affine form of the variables of these names."""
        pairs = zip(names, form.coefficients, strict=True)
        factors: dict[Monomial, int] = {(name,): factor for name, factor in pairs if factor}
        return cls({**factors, **cls.of(form.constant).factors})

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash(frozenset(self.factors.items()))

    def __add__(self, other: Polynomial) -> Polynomial:
        total = dict(self.factors)
        for monomial, factor in other.factors.items():
            total[monomial] = total.get(monomial, 0) + factor
        return Polynomial({monomial: factor for monomial, factor in total.items() if factor})

    def __mul__(self, other: Polynomial) -> Polynomial:
        total: dict[Monomial, int] = {}
        for one, a in self.factors.items():
            for two, b in other.factors.items():
                both = one + two if not one or not two else tuple(sorted(one + two))
                total[both] = total.get(both, 0) + a * b
        return Polynomial({monomial: factor for monomial, factor in total.items() if factor})

    def __sub__(self, other: Polynomial) -> Polynomial:
        return self + other.times(-1)

    def times(self, number: int) -> Polynomial:
        """So many times this."""
        every = ((monomial, factor * number) for monomial, factor in self.factors.items())
        return Polynomial(dict(every) if number else {})

    @property
    def number(self) -> int | None:
        """Its value, where it has no variable."""
        return self.factors.get((), 0) if set(self.factors) <= {()} else None

    @property
    def names(self) -> frozenset[str]:
        """Its variables."""
        return frozenset(name for monomial in self.factors for name in monomial)

    @property
    def longest(self) -> Monomial:
        """The monomial of the highest degree."""
        return max(self.factors, key=len, default=())

    @cached_property
    def is_positive(self) -> bool:
        """Whether it is seen to be more than 0 for all variables of 1 or more."""
        return bool(self.factors) and min(self.factors.values()) > 0

    def within(self, known: Range) -> Polynomial:
        """The same with every variable counted from its least value."""
        total: dict[Monomial, int] = {}
        for monomial, factor in self.factors.items():
            parts = tuple(map(known.from_zero, monomial))
            for each, times in _product(parts).factors.items():
                total[each] = total.get(each, 0) + factor * times
        return Polynomial({monomial: factor for monomial, factor in total.items() if factor})

    def holds(self, compare: Callable[[int, int], bool], known: Range) -> bool | None:
        """Whether it compares with 0 so; None where that is not seen, or not always the same."""
        if self.number is not None:
            return compare(self.number, 0)
        if self.is_positive:
            return compare(1, 0)
        shifted = self.within(known)
        if shifted.number is not None:
            return compare(shifted.number, 0)
        for sign in (1, -1):
            if all(factor * sign > 0 for factor in shifted.factors.values()):
                results = {compare(sign, 0)}
                if () not in shifted.factors:
                    results.add(compare(0, 0))
                return results.pop() if len(results) == 1 else None
        return None

    def least_common(self, other: Polynomial) -> tuple[Polynomial, Polynomial]:
        """What this and the other are to be multiplied with to become equal, as little as seen."""
        return _least_common(self, other)

    def reduced(self) -> Polynomial:
        """The same without the variables that all monomials have in common; of the same sign."""
        if () in self.factors:
            return self
        gone = reduce(Counter.__and__, map(Counter, self.factors), Counter(self.longest))
        left = {
            tuple(sorted((Counter(monomial) - gone).elements())): factor
            for monomial, factor in self.factors.items()
        }
        return Polynomial(left)

    def per(self, other: Polynomial) -> str:
        """The fraction of the two as people write it, `s`, or `2*q / d`."""
        gone = reduce(Counter.__and__, map(Counter, (*self.factors, *other.factors)))
        shared = gcd(*self.factors.values(), *other.factors.values())
        top, bottom = (
            [(factor // shared, "*".join(
                name.removeprefix("side ")
                for name in sorted((Counter(monomial) - gone).elements())))
             for monomial, factor in each.factors.items()]
            for each in (self, other)
        )  # fmt: skip
        texts = [sum_text(part) if len(part) == 1 else f"({sum_text(part)})"
                 for part in (top, bottom)]  # fmt: skip
        return "1" if top == bottom else texts[0] if texts[1] == "1" else " / ".join(texts)

    def term(self) -> Term:
        """The same for Z3."""
        parts = [
            terms.Product([terms.IntVal(factor), *map(terms.Int, monomial)])
            for monomial, factor in self.factors.items()
        ]
        return terms.Sum([terms.IntVal(0), *parts])


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
    missing = [tuple(sorted((most - Counter(own)).elements())) for own in (here, there)]
    number = lcm(a, b)
    return Polynomial({missing[0]: number // a}), Polynomial({missing[1]: number // b})


@lru_cache(maxsize=256)
def _from_least(name: str, least: int) -> Polynomial:
    return Polynomial({(name,): 1, (): least})
