"""Amounts: what a primitive's formula is evaluated on, as its maps are on symbols.

An amount is a fraction of polynomials, by cases: what a formula asks with `where` is kept.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import partialmethod
from typing import Any, NamedTuple, NoReturn

from primepar.errors import SymbolicError
from primepar.schedule.expression import where
from primepar.verify.formulas.polynomial import Polynomial, Range, cancelled
from primepar.verify.primitive import terms
from primepar.verify.primitive.symbol import Term

_PLAIN = "write it with +, -, *, / and powers, where(condition, a, b) for a choice, or use --side"
Compare = Callable[[Any, Any], Any]
_OPPOSITE: dict[Compare, Compare] = {
    operator.lt: operator.ge, operator.le: operator.gt, operator.eq: operator.ne,
    operator.ge: operator.lt, operator.gt: operator.le, operator.ne: operator.eq,
}  # fmt: skip


class Fact(NamedTuple):
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


class Case(NamedTuple):
    """Where these facts hold, `top / bottom`; the bottom is more than 0."""

    facts: tuple[Fact, ...]
    top: Polynomial
    bottom: Polynomial


class Choice:
    """What a condition of amounts gives: `pick` one amount where it holds, else another."""

    def __init__(self, pick: Callable[[Any, Any], Any]) -> None:
        self.pick = self.__where__ = pick

    def __invert__(self) -> Choice:
        return Choice(lambda then, otherwise: self.pick(otherwise, then))

    def __and__(self, other: Any) -> Choice:
        return Choice(lambda a, b: self.pick(where(other, a, b), b))

    def __or__(self, other: Any) -> Choice:
        return Choice(lambda a, b: self.pick(a, where(other, a, b)))

    __rand__, __ror__ = __and__, __or__


class Amount:
    """A fraction of polynomials, by cases that exclude one another."""

    def __init__(self, cases: list[Case]) -> None:
        self.cases = cases

    @classmethod
    def of(cls, value: Any) -> Amount:
        """An amount as it is, a polynomial or a plain number as one."""
        if isinstance(value, Amount):
            return value
        if isinstance(value, Polynomial):
            return cls([Case((), value, Polynomial.of(1))])
        top, bottom = int(value.numerator), int(value.denominator)
        return cls([Case((), Polynomial.of(top), Polynomial.of(bottom))])

    @property
    def asked(self) -> frozenset[str]:
        """Variables that decide which case there is."""
        facts = (fact for case in self.cases for fact in case.facts)
        return frozenset[str]().union(*(fact.polynomial.names for fact in facts))

    def _with(
        self, other: Any, join: Callable[[Case, Case], tuple[Polynomial, Polynomial]]
    ) -> Amount:
        return Amount(
            [
                Case((*one.facts, *two.facts), *cancelled(*join(one, two)))
                for one in self.cases
                for two in Amount.of(other).cases
            ]
        )

    def __add__(self, other: Any) -> Amount:
        return self._with(
            other, lambda a, b: (a.top * b.bottom + b.top * a.bottom, a.bottom * b.bottom)
        )

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

    def _compared(self, compare: Compare, other: Any) -> Choice:
        def pick(then: Any, otherwise: Any) -> Amount:
            cases = []
            for gap in (self - other).cases:
                fact = Fact(gap.top, compare)
                for chosen, amount in ((fact, then), (fact.opposite(), otherwise)):
                    if chosen.is_seen(Range()) is not False:
                        cases += [Case((*gap.facts, chosen, *case.facts), case.top, case.bottom)
                                  for case in Amount.of(amount).cases]  # fmt: skip
            return Amount(cases)

        return Choice(pick)

    def _refuse(self, *_: object) -> NoReturn:
        raise SymbolicError(f"a formula for every side cannot take // or %: {_PLAIN}")

    __radd__, __rmul__ = __add__, __mul__
    __lt__, __le__ = partialmethod(_compared, operator.lt), partialmethod(_compared, operator.le)
    __gt__, __ge__ = partialmethod(_compared, operator.gt), partialmethod(_compared, operator.ge)
    __eq__, __ne__ = partialmethod(_compared, operator.eq), partialmethod(_compared, operator.ne)
    __mod__ = __rmod__ = __floordiv__ = __rfloordiv__ = _refuse


def _quotient(one: Case, other: Case) -> tuple[Polynomial, Polynomial]:
    """Raises `SymbolicError` where it is not seen that the divisor is never 0."""
    for sign in (1, -1):
        if (other.top * sign).holds(operator.gt, Range()):
            return one.top * other.bottom * sign, one.bottom * other.top * sign
    raise SymbolicError(f"a formula for every side cannot divide by what may be 0: {_PLAIN}")


def doubtful(
    amount: Amount, compare: Compare, total: Polynomial, known: Range
) -> list[tuple[Fact, ...]]:
    """Where the amount is not seen to compare with the total so, without Z3.

    Seen is what holds of polynomials that are 0 for every side, and of those whose coefficients
    have one sign.
    """
    gaps = ((case.facts, cancelled(case.top - total * case.bottom)[0]) for case in amount.cases)
    wanted = ((facts, Fact(gap, compare)) for facts, gap in gaps)
    return [(*facts, one.opposite()) for facts, one in wanted if not _is_seen(one, facts, known)]


def broken(cases: list[tuple[Fact, ...]], known: Range) -> Term:
    """What a counterexample satisfies: the facts of one of the cases."""
    names = {name for facts in cases for fact in facts for name in fact.polynomial.names}
    positive = (terms.Int(name) >= 1 for name in sorted(names))
    wrong = (terms.And(*(fact.term() for fact in facts)) for facts in cases)
    return terms.And(known.term(), *positive, terms.Or(*wrong))


def _is_seen(wanted: Fact, facts: tuple[Fact, ...], known: Range) -> bool:
    """Whether the facts hold nowhere in the range, or what is wanted does wherever they hold.

    A fact about a smaller polynomial is enough: where 2*a > b, 3*a >= b.
    """
    if wanted.is_seen(known) or any(fact.is_seen(known) is False for fact in facts):
        return True
    if wanted.compare is not operator.ge:
        return False
    signs = {operator.gt: 1, operator.ge: 1, operator.lt: -1, operator.le: -1}
    return any(
        (wanted.polynomial - cancelled(fact.polynomial)[0] * signs[fact.compare]).holds(
            operator.ge, known
        )
        for fact in facts
        if fact.compare in signs
    )
