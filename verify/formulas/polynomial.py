"""Polynomials in the sides and the sizes of slices, all of which are whole numbers of 1 or more.

They are kept expanded, with whole coefficients, so that equal ones are seen to be equal; and one
whose coefficients are positive, each variable counted from its least value, is seen to be positive.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache, reduce
from math import gcd
from typing import Any

from primepar.verify.primitive import z3_terms as terms
from primepar.verify.primitive.affine import Affine, sum_text

Monomial = tuple[str, ...]
"""Names of variables in order, each as often as its power says."""
Factors = Iterable[tuple[Monomial, int]]


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
        exactly = Range({**self.least, name: low}, self.only | {name})
        return exactly, Range({**self.least, name: low + 1}, self.only)

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
    def sum(cls, factors: Factors) -> Polynomial:
        """The sum of multiples of monomials."""
        total: dict[Monomial, int] = {}
        for monomial, factor in factors:
            total[monomial] = total.get(monomial, 0) + factor
        return cls({monomial: factor for monomial, factor in total.items() if factor})

    @classmethod
    def of(cls, number: int) -> Polynomial:
        """A plain number."""
        return cls.sum([((), number)])

    @classmethod
    def variable(cls, name: str) -> Polynomial:
        """A variable."""
        return cls({(name,): 1})

    @classmethod
    def affine(cls, form: Affine, sides: tuple[str, ...]) -> Polynomial:
        """An affine form of the sides of these names."""
        pairs = zip(sides, form.coefficients, strict=True)
        parts = [((f"side {side}",), factor) for side, factor in pairs]
        return cls.sum([*parts, ((), form.constant)])

    def __add__(self, other: Polynomial) -> Polynomial:
        return Polynomial.sum((*self.factors.items(), *other.factors.items()))

    def __mul__(self, other: Polynomial | int) -> Polynomial:
        right = Polynomial.of(other) if isinstance(other, int) else other
        return Polynomial.sum(
            (tuple(sorted(one + two)), a * b)
            for one, a in self.factors.items()
            for two, b in right.factors.items()
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
        return Polynomial.sum(
            (each, factor * times)
            for monomial, factor in self.factors.items()
            for each, times in _expanded(
                tuple((name, known.lowest(name), name in known.only) for name in monomial)
            )
        )

    def holds(self, compare: Callable[[int, int], bool], known: Range) -> bool | None:
        """Whether it compares with 0 so; None where that is not seen, or not always the same."""
        shifted = self.within(known)
        if shifted.number is not None:
            return compare(shifted.number, 0)
        for sign in (1, -1):
            if all(factor * sign > 0 for factor in shifted.factors.values()):
                results = {compare(sign, 0), compare(sign if () in shifted.factors else 0, 0)}
                return results.pop() if len(results) == 1 else None
        return None

    def text(self) -> str:
        """How people write it, `2*q + 1`, in brackets if it is a sum."""
        named = ((factor, "*".join(name.removeprefix("side ") for name in monomial))
                 for monomial, factor in self.factors.items())  # fmt: skip
        text = sum_text(list(named))
        return text if len(self.factors) < 2 else f"({text})"

    def term(self) -> Any:
        """The same for Z3."""
        parts = (terms.Product([terms.IntVal(factor), *map(terms.Int, monomial)])
                 for monomial, factor in self.factors.items())  # fmt: skip
        return terms.Sum([terms.IntVal(0), *parts])


def cancelled(*polynomials: Polynomial) -> list[Polynomial]:
    """The same without the variables and the number that all of them can be divided by."""
    every = [monomial for each in polynomials for monomial in each.factors]
    gone = reduce(Counter.__and__, map(Counter, every)) if every else Counter[str]()
    shared = gcd(*(factor for each in polynomials for factor in each.factors.values())) or 1
    if not gone and shared == 1:
        return list(polynomials)

    def divided(monomial: Monomial) -> Monomial:
        return tuple(sorted((Counter(monomial) - gone).elements()))

    return [
        Polynomial(
            {divided(monomial): factor // shared for monomial, factor in each.factors.items()}
        )
        for each in polynomials
    ]


@lru_cache(maxsize=4096)
def _expanded(variables: tuple[tuple[str, int, bool], ...]) -> tuple[tuple[Monomial, int], ...]:
    """The product of variables, each given with its least value, and whether it is only that."""
    product = Polynomial.of(1)
    for name, low, only in variables:
        product = product * (Polynomial.of(low) if only else Polynomial({(name,): 1, (): low}))
    return tuple(product.factors.items())
