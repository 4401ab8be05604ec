"""Polynomials with whole factors in the names of an expression.

They stay small: `(r + c + t + s)**40`, written out in a certificate, would have 12,341 terms.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from math import gcd, prod
from typing import Any

from primepar.errors import ClaimError

MOST_TERMS, MOST_DEGREE = 1_000, 16
"""Of one polynomial; those of the library have at most 20 terms and degree 4."""
Term = tuple[str, ...]
"""The names of a product, sorted; () for the constant."""


class Form:
    """A polynomial: each product of names with its factor."""

    __slots__ = ("terms",)

    def __init__(self, terms: Mapping[Term, int]) -> None:
        self.terms = {term: factor for term, factor in terms.items() if factor}

    @classmethod
    def of(cls, value: int) -> Form:
        """A plain number."""
        return cls({(): value})

    @classmethod
    def named(cls, name: str) -> Form:
        """One name."""
        return cls({(name,): 1})

    @property
    def constant(self) -> int | None:
        """Its value, where it is a plain number."""
        return self.terms.get((), 0) if self.terms.keys() <= {()} else None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Form) and self.terms == other.terms

    def __hash__(self) -> int:
        return hash(frozenset(self.terms.items()))

    def at(self, values: Mapping[str, Any]) -> Any:
        """Its value, each name having the value that is given: a number, or an array of them."""
        return sum(factor * prod(values[name] for name in term)
                   for term, factor in self.terms.items())  # fmt: skip

    def scaled(self, factor: int) -> Form:
        """A multiple of it."""
        return Form({term: factor * times for term, times in self.terms.items()})

    def plus(self, other: Form, times: int = 1) -> Form:
        """The sum with a multiple of another one."""
        total = dict(self.terms)
        for term, factor in other.terms.items():
            total[term] = total.get(term, 0) + factor * times
        return Form(total)

    def times(self, other: Form) -> Form:
        """The product. Raises `ClaimError` if it is too large."""
        if len(self.terms) * len(other.terms) > 10 * MOST_TERMS:
            raise ClaimError(f"expected polynomials of at most {MOST_TERMS} terms, got more")
        total: dict[Term, int] = {}
        for (one, factor), (two, more) in product(self.terms.items(), other.terms.items()):
            term = tuple(sorted((*one, *two)))
            total[term] = total.get(term, 0) + factor * more
        degree = max(map(len, total), default=0)
        if len(total) > MOST_TERMS or degree > MOST_DEGREE:
            raise ClaimError(
                f"expected polynomials of at most {MOST_TERMS} terms and degree {MOST_DEGREE}, got "
                f"{len(total)} terms of degree {degree}"
            )
        return Form(total)

    def opposite(self) -> Form:
        """What is 0 or more where this is below 0."""
        return Form.of(-1).plus(self, -1)

    def tightened(self) -> Form:
        """What is 0 or more for whole numbers where this is: `2*q - 3` gives `q - 2`."""
        shared = gcd(*(factor for term, factor in self.terms.items() if term))
        return (
            Form({term: factor // shared for term, factor in self.terms.items()})
            if shared
            else self
        )

    def replaced(self, name: str, value: Form) -> Form:
        """The same with a form instead of a name."""
        total = Form({})
        for term, factor in self.terms.items():
            part = Form({tuple(other for other in term if other != name): factor})
            for _ in range(term.count(name)):
                part = part.times(value)
            total = total.plus(part)
        return total
