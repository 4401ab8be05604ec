"""Amounts: what a primitive's formula is evaluated on, as its maps are on symbols.

An amount is a fraction of polynomials. A formula that asks something with `where` is evaluated
once for every way in which its questions can be answered: each is a case, with the facts that it
takes to hold.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from functools import partialmethod, reduce
from typing import Any, NamedTuple, NoReturn

from primepar.errors import SymbolicError
from primepar.schedule.expression import Number, evaluate
from primepar.verify.formulas.polynomial import Polynomial, Range, cancelled
from primepar.verify.primitive import z3_terms as terms
from primepar.verify.primitive.z3_symbols import Term

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


class ConditionalRatio(NamedTuple):
    """Where these facts hold, `top / bottom`; the bottom is more than 0."""

    facts: tuple[Fact, ...]
    top: Polynomial
    bottom: Polynomial


class _Path:
    """One way in which questions are answered: the first ones as given, all others by True."""

    def __init__(self, given: tuple[bool, ...]) -> None:
        self.answers, self.facts = list(given), list[Fact]()

    def holds(self, fact: Fact) -> bool:
        """Whether a fact holds on this path; what is seen, or answered before, is not asked."""
        seen = fact.is_seen(Range())
        if seen is not None or fact in self.facts or fact.opposite() in self.facts:
            return fact in self.facts if seen is None else seen
        if len(self.facts) == len(self.answers):
            self.answers.append(True)
        answer = self.answers[len(self.facts)]
        self.facts.append(fact if answer else fact.opposite())
        return answer


def cases_of(formula: Number, given: Mapping[str, Polynomial]) -> list[ConditionalRatio]:
    """What a formula gives where its names have these values, by cases that exclude one another.

    Raises `SymbolicError` if amounts cannot follow it.
    """
    found = []
    left: list[tuple[bool, ...]] = [()]
    while left:
        path = _Path(answers := left.pop())
        one = Polynomial.of(1)
        values = {text: Amount(path, value, one) for text, value in given.items()}
        amount = Amount(path, Polynomial.of(0), one) + evaluate(formula, values)
        found.append(ConditionalRatio(tuple(path.facts), amount.top, amount.bottom))
        left += [(*path.answers[:place], False) for place in range(len(answers), len(path.answers))]
    return found


class Amount:
    """`top / bottom`, on a path; the bottom is more than 0."""

    def __init__(self, path: _Path, top: Polynomial, bottom: Polynomial) -> None:
        self.path = path
        self.top, self.bottom = cancelled(top, bottom)

    def _of(self, value: Any) -> Amount:
        """An amount as it is, a whole number or a fraction as one."""
        if isinstance(value, Amount):
            return value
        parts = map(Polynomial.of, (int(value.numerator), int(value.denominator)))
        return Amount(self.path, *parts)

    def __add__(self, other: Any) -> Amount:
        right = self._of(other)
        top = self.top * right.bottom + right.top * self.bottom
        return Amount(self.path, top, self.bottom * right.bottom)

    def __mul__(self, other: Any) -> Amount:
        right = self._of(other)
        return Amount(self.path, self.top * right.top, self.bottom * right.bottom)

    def __truediv__(self, other: Any) -> Amount:
        right = self._of(other)
        for sign in (1, -1):
            if (right.top * sign).holds(operator.gt, Range()):
                top, bottom = self.top * right.bottom * sign, self.bottom * right.top * sign
                return Amount(self.path, top, bottom)
        raise SymbolicError(f"a formula for every side cannot divide by what may be 0: {_PLAIN}")

    def __rtruediv__(self, other: Any) -> Amount:
        return self._of(other) / self

    def __neg__(self) -> Amount:
        return self * -1

    def __sub__(self, other: Any) -> Amount:
        return self + -self._of(other)

    def __rsub__(self, other: Any) -> Amount:
        return self._of(other) - self

    def __pow__(self, power: Any) -> Amount:
        if not isinstance(power, int) or power < 0:
            raise SymbolicError(f"expected a power that is a number, got {power!r}: {_PLAIN}")
        return reduce(operator.mul, [self] * power, self._of(1))

    def _compared(self, compare: Compare, other: Any) -> bool:
        return self.path.holds(Fact((self - other).top, compare))

    def _refuse(self, *_: object) -> NoReturn:
        raise SymbolicError(f"a formula for every side cannot take // or %: {_PLAIN}")

    __radd__, __rmul__ = __add__, __mul__
    __lt__, __le__ = partialmethod(_compared, operator.lt), partialmethod(_compared, operator.le)
    __gt__, __ge__ = partialmethod(_compared, operator.gt), partialmethod(_compared, operator.ge)
    __eq__, __ne__ = partialmethod(_compared, operator.eq), partialmethod(_compared, operator.ne)
    __mod__ = __rmod__ = __floordiv__ = __rfloordiv__ = _refuse


def doubtful(
    amount: Sequence[ConditionalRatio], compare: Compare, total: Polynomial, known: Range
) -> list[tuple[Fact, ...]]:
    """Where the amount is not seen to compare with the total so, without Z3.

    Seen is what holds of polynomials that are 0 for every side, and of those whose coefficients
    have one sign.
    """
    gaps = ((case.facts, cancelled(case.top - total * case.bottom)[0]) for case in amount)
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
