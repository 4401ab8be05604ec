"""Amounts: numbers of elements as fractions of polynomials in the sides and the operator's sizes.

A primitive's formula is called with these, as its maps are with symbols. A division is kept as
numerator and denominator, so that two amounts are compared by polynomials alone.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from numbers import Rational
from typing import Any, NoReturn

from primepar.errors import SymbolicError
from primepar.verify.primitive import terms
from primepar.verify.primitive.polynomial import Polynomial, Range
from primepar.verify.primitive.symbol import Term

_PLAIN = "write it with +, -, *, / and powers, where(condition, a, b) for a choice, or use --side"
Compare = Callable[[Any, Any], Any]
_OPPOSITE: dict[Compare, Compare] = {
    operator.lt: operator.ge, operator.le: operator.gt, operator.eq: operator.ne,
    operator.ge: operator.lt, operator.gt: operator.le, operator.ne: operator.eq,
}  # fmt: skip
_NOWHERE = Range()


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
    """Where these facts hold, `top / bottom`."""

    facts: tuple[Fact, ...]
    top: Polynomial
    bottom: Polynomial

    @property
    def names(self) -> frozenset[str]:
        """Variables of the fraction and of the facts."""
        return self.top.names | self.bottom.names | self.conditions

    @property
    def conditions(self) -> frozenset[str]:
        """Variables of the facts."""
        return frozenset[str]().union(*(fact.polynomial.names for fact in self.facts))

    @property
    def sign(self) -> Polynomial:
        """A polynomial of the same sign, where the bottom is not 0."""
        return self.top if self.bottom.is_positive else self.top * self.bottom


class Choice:
    """What a comparison of amounts gives: `where` takes it, `if` cannot."""

    def __init__(self, cases: list[tuple[tuple[Fact, ...], Fact]]) -> None:
        self.cases = cases

    def __where__(self, then: Any, otherwise: Any) -> Amount:
        """`then` where the condition holds, else `otherwise`."""
        sides = Amount.of(then), Amount.of(otherwise)
        return Amount(
            [
                Case(facts, case.top, case.bottom)
                for before, fact in self.cases
                for amount, told in zip(sides, (fact, fact.opposite()), strict=True)
                for case in amount.cases
                for facts in _possible((*before, told, *case.facts))
            ]
        )

    def __bool__(self) -> NoReturn:
        raise SymbolicError(f"a formula for every side cannot ask `if`, max or min: {_PLAIN}")


def _possible(facts: tuple[Fact, ...]) -> Iterator[tuple[Fact, ...]]:
    """The facts that do not always hold; nothing if one of them never does."""
    seen = [(fact, fact.is_seen(_NOWHERE)) for fact in dict.fromkeys(facts)]
    if all(holds is not False for _, holds in seen):
        yield tuple(fact for fact, holds in seen if holds is None)


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
        top, bottom = int(value.numerator), int(value.denominator)
        return cls([Case((), Polynomial.of(top), Polynomial.of(bottom))])

    @classmethod
    def whole(cls, top: Polynomial) -> Amount:
        """The amount of a polynomial."""
        return cls([Case((), top, Polynomial.of(1))])

    def _with(
        self, other: Any, join: Callable[[Case, Case], tuple[Polynomial, Polynomial]]
    ) -> Amount:
        return Amount(
            [
                Case(facts, *join(one, two))
                for one in self.cases
                for two in Amount.of(other).cases
                for facts in _possible((*one.facts, *two.facts))
            ]
        )

    def __add__(self, other: Any) -> Amount:
        return self._with(other, _sum)

    def __mul__(self, other: Any) -> Amount:
        return self._with(other, lambda a, b: (a.top * b.top, a.bottom * b.bottom))

    def __truediv__(self, other: Any) -> Amount:
        return self._with(other, lambda a, b: (a.top * b.bottom, a.bottom * b.top))

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
        gap = self - Amount.of(other)
        return Choice([(case.facts, Fact(case.sign, compare)) for case in gap.cases])

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


def _sum(one: Case, other: Case) -> tuple[Polynomial, Polynomial]:
    """Over the least bottom that both divide, where that is seen."""
    here, there = one.bottom.least_common(other.bottom)
    return one.top * here + other.top * there, one.bottom * here


def doubtful(gap: Amount, compare: Compare, known: Range) -> list[Case]:
    """Cases in which `gap` is not seen to be defined and to compare with 0 so.

    Seen are polynomials that are 0 for every side, and those whose coefficients have one sign.
    """
    return [
        case
        for case in gap.cases
        if not any(fact.is_seen(known) is False for fact in case.facts)
        and not _is_seen(case, compare, known)
    ]


def _is_seen(case: Case, compare: Compare, known: Range) -> bool:
    told = Fact(case.sign.reduced(), compare)
    if not Fact(case.bottom, operator.ne).is_seen(known):
        return False
    return bool(told.is_seen(known)) or _follows(told, case.facts, known)


def broken(gap: Amount, compare: Compare, known: Range) -> Term:
    """What a counterexample satisfies to: `gap` is defined and compares with 0 so.

    It is false where no case is doubtful.
    """
    cases = doubtful(gap, compare, known)
    if not cases:
        return terms.FALSE
    wrong = [
        terms.And(
            *(fact.term() for fact in case.facts),
            terms.Not(
                terms.And(case.bottom.term() != 0, Fact(case.sign.reduced(), compare).term())
            ),
        )
        for case in cases
    ]
    names = frozenset[str]().union(*(case.names for case in cases))
    return terms.And(
        known.term(), *(terms.Int(name) >= 1 for name in sorted(names)), terms.Or(*wrong)
    )


def _follows(told: Fact, facts: tuple[Fact, ...], known: Range) -> bool:
    """Whether a fact about a larger polynomial says it already."""
    if told.compare is not operator.ge:
        return False
    for fact in facts:
        if fact.compare in (operator.eq, operator.ne):
            continue
        sign = 1 if fact.compare in (operator.gt, operator.ge) else -1
        gap = told.polynomial - fact.polynomial.reduced().times(sign)
        if gap.holds(operator.ge, known):
            return True
    return False
