"""Amounts: numbers of elements as fractions of polynomials in the sides and the operator's sizes.

A primitive's formula is called with these, as its maps are with symbols. A division is kept as
numerator and denominator, so that two amounts are compared by polynomials alone.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from numbers import Rational
from typing import Any, NoReturn

import z3

from primepar.errors import SymbolicError
from primepar.verify.symbol import Term

_PLAIN = "write it with +, -, *, / and powers, where(condition, a, b) for a choice, or use --side"


@dataclass(frozen=True)
class Case:
    """Where `condition` holds, `top / bottom`."""

    condition: Term
    top: Term
    bottom: Term


class Choice:
    """What a comparison of amounts gives: `where` takes it, `if` cannot."""

    def __init__(self, term: Term) -> None:
        self.term = term

    def __where__(self, then: Any, otherwise: Any) -> Amount:
        """`then` where the condition holds, else `otherwise`."""
        sides = (self.term, Amount.of(then)), (z3.Not(self.term), Amount.of(otherwise))
        return Amount(
            [
                Case(z3.And(condition, case.condition), case.top, case.bottom)
                for condition, amount in sides
                for case in amount.cases
            ]
        )

    def __bool__(self) -> NoReturn:
        raise SymbolicError(f"a formula for every side cannot ask `if`, max or min: {_PLAIN}")


class Amount:
    """A fraction of polynomials, by cases that exclude one another."""

    def __init__(self, cases: list[Case]) -> None:
        self.cases = cases

    @classmethod
    def of(cls, value: Any) -> Amount:
        """An amount as it is, or a number. Raises `SymbolicError` for anything else."""
        if isinstance(value, Amount):
            return value
        if isinstance(value, float):
            value = Fraction(value)
        if not isinstance(value, Rational):
            raise SymbolicError(
                f"expected a formula of numbers, got {type(value).__name__} in it: {_PLAIN}"
            )
        return cls.term(z3.IntVal(value.numerator), z3.IntVal(value.denominator))

    @classmethod
    def term(cls, top: Term, bottom: Term | None = None) -> Amount:
        """The amount of a Z3 integer, or of a fraction of two."""
        return cls([Case(z3.BoolVal(True), top, z3.IntVal(1) if bottom is None else bottom)])

    def _with(self, other: Any, join: Callable[[Case, Case], tuple[Term, Term]]) -> Amount:
        return Amount(
            [
                Case(_both(one.condition, two.condition), *join(one, two))
                for one in self.cases
                for two in Amount.of(other).cases
            ]
        )

    def __add__(self, other: Any) -> Amount:
        return self._with(other, _sum)

    def __mul__(self, other: Any) -> Amount:
        return self._with(other, lambda a, b: (a.top * b.top, _times(a.bottom, b.bottom)))

    def __truediv__(self, other: Any) -> Amount:
        return self._with(other, lambda a, b: (a.top * b.bottom, _times(a.bottom, b.top)))

    def __rtruediv__(self, other: Any) -> Amount:
        return Amount.of(other) / self

    def __neg__(self) -> Amount:
        return self * -1

    def __sub__(self, other: Any) -> Amount:
        return self + -Amount.of(other)

    def __rsub__(self, other: Any) -> Amount:
        return Amount.of(other) - self

    def __pow__(self, power: Any) -> Amount:
        if not isinstance(power, int) or power < 0:
            raise SymbolicError(f"expected a power that is a number, got {power!r}: {_PLAIN}")
        product = Amount.of(1)
        for _ in range(power):
            product = product * self
        return product

    def _compared(self, other: Any, compare: Callable[[Term, int], Term]) -> Choice:
        """Compare the difference with 0, the sign of its denominator being its own."""
        gap = self - Amount.of(other)
        return Choice(
            z3.Or(
                *(_both(case.condition, compare(_times(case.top, case.bottom), 0))
                  for case in gap.cases)
            )
        )  # fmt: skip

    def __eq__(self, other: Any) -> Choice:  # type: ignore[override]
        return self._compared(other, operator.eq)

    def __ne__(self, other: Any) -> Choice:  # type: ignore[override]
        return self._compared(other, operator.ne)

    def __lt__(self, other: Any) -> Choice:
        return self._compared(other, operator.lt)

    def __le__(self, other: Any) -> Choice:
        return self._compared(other, operator.le)

    def __gt__(self, other: Any) -> Choice:
        return self._compared(other, operator.gt)

    def __ge__(self, other: Any) -> Choice:
        return self._compared(other, operator.ge)

    def _refuse(self, *_: object) -> NoReturn:
        raise SymbolicError(f"a formula for every side cannot round or count with it: {_PLAIN}")

    __radd__, __rmul__ = __add__, __mul__
    __mod__ = __rmod__ = __floordiv__ = __rfloordiv__ = __rpow__ = __int__ = __index__ = _refuse
    __float__ = __bool__ = __hash__ = __iter__ = __round__ = __floor__ = __ceil__ = _refuse


def _both(one: Term, other: Term) -> Term:
    if z3.is_true(one):
        return other
    return one if z3.is_true(other) else z3.And(one, other)


def _times(one: Term, other: Term) -> Term:
    if z3.is_int_value(one) and one.as_long() == 1:
        return other
    return one if z3.is_int_value(other) and other.as_long() == 1 else one * other


def _sum(one: Case, other: Case) -> tuple[Term, Term]:
    if one.bottom.eq(other.bottom):
        return one.top + other.top, one.bottom
    top = _times(one.top, other.bottom) + _times(other.top, one.bottom)
    return top, _times(one.bottom, other.bottom)


def broken(
    gap: Amount, fixed: list[tuple[Term, Term]], compare: Callable[[Term, int], Term]
) -> Term:
    """What a counterexample satisfies to: `gap` is defined and does not compare with 0.

    `fixed` are sides with their numbers. Polynomials are expanded, so that a gap that is 0 for
    every side is seen at once.
    """
    wrong = []
    for case in gap.cases:
        terms = [z3.substitute(each, *fixed) for each in (case.condition, case.top, case.bottom)]
        condition, top, bottom = (z3.simplify(each, som=True) for each in terms)
        if z3.is_int_value(top) and compare(top.as_long(), 0):
            wrong.append(z3.And(condition, bottom == 0))
        else:
            product = z3.simplify(top * bottom, som=True)
            wrong.append(z3.And(condition, z3.Not(z3.And(bottom != 0, compare(product, 0)))))
    return z3.simplify(z3.Or(*wrong))
