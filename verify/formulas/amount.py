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

from primepar.errors import SymbolicError
from primepar.verify.formulas.polynomial import Polynomial, Range
from primepar.verify.primitive import terms
from primepar.verify.primitive.symbol import Term

_PLAIN = "write it with +, -, *, / and powers, where(condition, a, b) for a choice, or use --side"
Compare = Callable[[Any, Any], Any]
_OPPOSITE: dict[Compare, Compare] = {
    operator.lt: operator.ge, operator.le: operator.gt, operator.eq: operator.ne,
    operator.ge: operator.lt, operator.gt: operator.le, operator.ne: operator.eq,
}  # fmt: skip


@dataclass(frozen=True)
class Fact:
    """What holds of a polynomial, compared with 0."""

    polynomial: Polynomial
    compare: Compare

    def opposite(self) -> Fact:
        """What holds where this does not."""
        return Fact(self.polynomial, _OPPOSITE[self.compare])

    def is_seen(self, known: Range) -> bool | None:
        """Whether it holds for all of these variables, or for none; None if that is not seen."""
        return self.polynomial.holds(self.compare, known)

    def term(self) -> Term:
        """The same for Z3."""
        return self.compare(self.polynomial.term(), 0)


@dataclass(frozen=True)
class Case:
    """Where these facts hold, `top / bottom`; the bottom is more than 0."""

    facts: tuple[Fact, ...]
    top: Polynomial
    bottom: Polynomial


class Choice:
    """What a comparison of amounts gives: `where` takes it, `if` cannot."""

    def __init__(self, cases: list[tuple[tuple[Fact, ...], Fact]]) -> None:
        self.cases = cases

    def __where__(self, then: Any, otherwise: Any) -> Amount:
        """`then` where the condition holds, else `otherwise`."""
        return Amount(
            [
                Case((*before, chosen, *case.facts), case.top, case.bottom)
                for before, fact in self.cases
                for chosen, amount in ((fact, then), (fact.opposite(), otherwise))
                for case in Amount.of(amount).cases
            ]
        )

    def __bool__(self) -> NoReturn:
        raise SymbolicError(f"a formula for every side cannot ask `if`, max or min: {_PLAIN}")


class Amount:
    """A fraction of polynomials, by cases that exclude one another."""

    def __init__(self, cases: list[Case]) -> None:
        self.cases = [case for case in cases if all(map(_can_hold, case.facts))]

    @classmethod
    def of(cls, value: Any) -> Amount:
        """An amount as it is, or a number. Raises `SymbolicError` for anything else."""
        if isinstance(value, Amount):
            return value
        if isinstance(value, Polynomial):
            return cls([Case((), value, Polynomial.of(1))])
        if isinstance(value, float):
            value = Fraction(value)
        if not isinstance(value, Rational):
            raise SymbolicError(
                f"expected a formula of numbers, got {type(value).__name__} in it: {_PLAIN}"
            )
        top, bottom = int(value.numerator), int(value.denominator)
        return cls([Case((), Polynomial.of(top), Polynomial.of(bottom))])

    def _with(
        self, other: Any, join: Callable[[Case, Case], tuple[Polynomial, Polynomial]]
    ) -> Amount:
        return Amount(
            [
                Case(tuple(dict.fromkeys((*one.facts, *two.facts))), *join(one, two))
                for one in self.cases
                for two in Amount.of(other).cases
            ]
        )

    def __add__(self, other: Any) -> Amount:
        return self._with(other, _sum)

    def __mul__(self, other: Any) -> Amount:
        return self._with(other, lambda a, b: (a.top * b.top, a.bottom * b.bottom))

    def __truediv__(self, other: Any) -> Amount:
        return self._with(other, _quotient)

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

    def _compared(self, other: Any, compare: Compare) -> Choice:
        """Compare the difference with 0."""
        return Choice([(case.facts, Fact(case.top, compare)) for case in (self - other).cases])

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


def _can_hold(fact: Fact) -> bool:
    return fact.is_seen(Range()) is not False


def _sum(one: Case, other: Case) -> tuple[Polynomial, Polynomial]:
    """Over the least bottom that both divide, where that is seen."""
    here, there = one.bottom.least_common(other.bottom)
    return one.top * here + other.top * there, one.bottom * here


def _quotient(one: Case, other: Case) -> tuple[Polynomial, Polynomial]:
    """Raises `SymbolicError` where it is not seen that the divisor is never 0."""
    for sign in (1, -1):
        if (other.top * sign).holds(operator.gt, Range()):
            return one.top * other.bottom * sign, one.bottom * other.top * sign
    raise SymbolicError(f"a formula for every side cannot divide by what may be 0: {_PLAIN}")


def broken(gap: Amount, compare: Compare, known: Range) -> Term:
    """What a counterexample satisfies to: `gap` compares with 0 so.

    It is false where that is seen without Z3: of polynomials that are 0 for every side, and of
    those whose coefficients have one sign.
    """
    wrong, names = [], set[str]()
    for case in gap.cases:
        wanted = Fact(case.top.reduced(), compare)
        if not _is_seen(wanted, case.facts, known):
            facts = (*case.facts, wanted.opposite())
            wrong.append(terms.And(*(fact.term() for fact in facts)))
            names = names.union(*(fact.polynomial.names for fact in facts))
    positive = (terms.Int(name) >= 1 for name in sorted(names))
    return terms.And(known.term(), *positive, terms.Or(*wrong))


def _is_seen(wanted: Fact, facts: tuple[Fact, ...], known: Range) -> bool:
    """Whether the facts hold nowhere in the range, or what is wanted does wherever they hold."""
    if any(fact.is_seen(known) is False for fact in facts):
        return True
    return bool(wanted.is_seen(known) or _follows(wanted, facts, known))


def _follows(wanted: Fact, facts: tuple[Fact, ...], known: Range) -> bool:
    """Whether a fact about a smaller polynomial implies it: where 2*a > b, 3*a >= b."""
    if wanted.compare is not operator.ge:
        return False
    for fact in facts:
        if fact.compare in (operator.eq, operator.ne):
            continue
        sign = 1 if fact.compare in (operator.gt, operator.ge) else -1
        gap = wanted.polynomial - fact.polynomial.reduced() * sign
        if gap.holds(operator.ge, known):
            return True
    return False
