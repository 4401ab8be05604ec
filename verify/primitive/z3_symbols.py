"""Symbolic integers for every device, step and side, on which expressions are evaluated.

A symbol wraps a Z3 integer and has a lower and an upper bound that are affine in the sides. The
bounds turn `%` by a side into a choice between a few literal quotients, so that every term stays
linear and Z3 can decide each question. For example, `(r + t) % s` has `r + t <= 2*s - 2`, so the
quotient is 0 or 1: the remainder is `r + t` if that is below `s`, else `r + t - s`. An expression
without such a form raises `SymbolicError`; a product of symbols has no bounds, and may only be
multiplied and compared for equality.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from primepar.errors import SymbolicError
from primepar.schedule.polynomial_form import Form
from primepar.verify.primitive import z3_terms as terms

Term = Any
"""A Z3 integer expression; z3 ships no types."""

MAX_QUOTIENTS = 12
_ONE_MESH = "or prove one mesh with --side"
_PRODUCT = (
    "a product of two indices or sides is not linear: write an index of several digits as a tuple, "
    f"M=(r, c) for M=r*s + c, {_ONE_MESH}"
)
_DIVISOR = (
    "% and // take a positive number or sum of sides on their right for every side, "
    f"not a device or a step: use the side, {_ONE_MESH}"
)
_QUOTIENT = (
    f"the index left of % or // can be more than {MAX_QUOTIENTS} times the side on its right: "
    f"keep it within a few sides, {_ONE_MESH}"
)


@dataclass(frozen=True)
class SymbolSpace:
    """The sides of a primitive as Z3 integers, and the symbols over them."""

    names: tuple[str, ...]

    @property
    def sides(self) -> tuple[Symbol, ...]:
        """One symbol for each side; its bounds are the side itself."""
        return tuple(self.exactly(self.side(name)) for name in self.names)

    def side(self, name: str) -> Form:
        """The side of that name, as a form."""
        return Form.named(name)

    def term(self, form: Form) -> Term:
        """An affine form as a Z3 integer."""
        return _term(self.names, form)

    def exactly(self, form: Form) -> Symbol:
        """The symbol whose value is an affine form of the sides."""
        return Symbol(self, self.term(form), (form, form))

    def below(self, term: Term, limit: Form) -> Symbol:
        """The symbol of a Z3 integer that is 0 or more and below `limit`."""
        return Symbol(self, term, (Form.of(0), _less_1(limit)))

    def of(self, value: Symbol | int) -> Symbol:
        """A symbol as it is, an integer as a symbol."""
        return value if isinstance(value, Symbol) else self.exactly(Form.of(value))


@lru_cache(maxsize=1024)
def _term(names: tuple[str, ...], form: Form) -> Term:
    factors = {name: form.terms.get((name,), 0) for name in names}
    parts = [factor * terms.Int(f"side {name}") for name, factor in factors.items() if factor]
    constant = terms.IntVal(form.terms.get((), 0))
    return terms.Sum([*parts, constant]) if parts else constant


class SymbolCondition:
    """The result of a comparison of symbols."""

    def __init__(self, space: SymbolSpace, term: Term) -> None:
        self.space, self.term = space, term

    def __where__(self, then: Any, otherwise: Any) -> Symbol:
        """`then` where the condition holds, else `otherwise`."""
        a, b = self.space.of(then), self.space.of(otherwise)
        # The condition is not known here, so both branches are within the bounds.
        bounds = at_most_both(a.low, b.low), at_least_both(a.high, b.high)
        return Symbol(self.space, terms.If(self.term, a.term, b.term), bounds)

    def __and__(self, other: SymbolCondition | bool) -> SymbolCondition:
        return SymbolCondition(self.space, terms.And(self.term, truth(other)))

    def __or__(self, other: SymbolCondition | bool) -> SymbolCondition:
        return SymbolCondition(self.space, terms.Or(self.term, truth(other)))

    def __invert__(self) -> SymbolCondition:
        return SymbolCondition(self.space, terms.Not(self.term))

    __rand__, __ror__ = __and__, __or__


class Symbol:
    """An integer given by its Z3 term and its bounds, both inclusive; a product has none."""

    def __init__(
        self, space: SymbolSpace, term: Term, bounds: tuple[Form, Form] | None = None
    ) -> None:
        self.space, self.term, self._bounds = space, term, bounds

    @property
    def low(self) -> Form:
        """The lower bound, affine in the sides. Raises `SymbolicError` if it is a product."""
        return self._linear()[0]

    @property
    def high(self) -> Form:
        """The upper bound, affine in the sides. Raises `SymbolicError` if it is a product."""
        return self._linear()[1]

    def _linear(self) -> tuple[Form, Form]:
        if self._bounds is None:
            raise SymbolicError(_PRODUCT)
        return self._bounds

    @property
    def form(self) -> Form | None:
        """Its value, where that is an affine form of the sides alone."""
        return self._bounds[0] if self._bounds and self._bounds[0] == self._bounds[1] else None

    def __add__(self, other: Any) -> Symbol:
        right = self.space.of(other)
        bounds = self.low.plus(right.low), self.high.plus(right.high)
        return Symbol(self.space, self.term + right.term, bounds)

    def __neg__(self) -> Symbol:
        return self._times(-1)

    def __sub__(self, other: Any) -> Symbol:
        return self + -self.space.of(other)

    def __rsub__(self, other: Any) -> Symbol:
        return self.space.of(other) - self

    def __mul__(self, other: Any) -> Symbol:
        right = self.space.of(other)
        for symbol, factor in ((self, right.form), (right, self.form)):
            if factor is not None and factor.constant is not None and symbol._bounds:
                return symbol._times(factor.constant)
        # A product of two sides, as in the count of devices s * s: compared for equality alone.
        return Symbol(self.space, self.term * right.term)

    def _times(self, factor: int) -> Symbol:
        low, high = self.low.scaled(factor), self.high.scaled(factor)
        return Symbol(self.space, self.term * factor, (low, high) if factor >= 0 else (high, low))

    def __mod__(self, other: Any) -> Symbol:
        return self._divided_by(other)[1]

    def __rmod__(self, other: Any) -> Symbol:
        return self.space.of(other) % self

    def __floordiv__(self, other: Any) -> Symbol:
        return self._divided_by(other)[0]

    def __rfloordiv__(self, other: Any) -> Symbol:
        return self.space.of(other) // self

    def _divided_by(self, other: Any) -> tuple[Symbol, Symbol]:
        """Quotient and remainder, chosen by comparison with the multiples of the divisor."""
        space, divisor = self.space, self.space.of(other).form
        if divisor is None or not is_never_negative(_less_1(divisor)):
            raise SymbolicError(_DIVISOR)
        quotients = self._quotients(divisor)
        if quotients is None:
            return self._divided_by_number(divisor)
        # `(r + t) % s`, with r + t from 0 to 2s - 2: quotients 0 and 1.
        first, last = quotients
        quotient = self._choice(divisor, quotients, terms.IntVal)
        whole = Symbol(space, quotient, (Form.of(first), Form.of(last)))
        if first == last:
            return whole, self - space.exactly(divisor.scaled(last))
        rest = self._choice(divisor, quotients, lambda q: self.term - space.term(divisor.scaled(q)))
        return whole, space.below(rest, divisor)

    def _choice(self, divisor: Form, quotients: tuple[int, int], value: Any) -> Term:
        """The value for the literal quotient that applies."""
        first, last = quotients
        # Nested from the last: If(x < s, 0, If(x < 2s, 1, 2)).
        chosen = value(last)
        for quotient in reversed(range(first, last)):
            limit = self.space.term(divisor.scaled(quotient + 1))
            chosen = terms.If(self.term < limit, value(quotient), chosen)
        return chosen

    def _divided_by_number(self, divisor: Form) -> tuple[Symbol, Symbol]:
        """Division by a plain number, which is linear for Z3 whatever the quotient is."""
        if divisor.constant is None:
            raise SymbolicError(_QUOTIENT)
        number, zero = terms.IntVal(divisor.constant), Form.of(0)
        bounds = at_most_both(self.low, zero), at_least_both(self.high, zero)
        rest = self.space.below(self.term % number, divisor)
        return Symbol(self.space, self.term / number, bounds), rest

    def _quotients(self, divisor: Form) -> tuple[int, int] | None:
        """First and last quotient that the bounds allow; None if they grow with a side."""
        first = times_in(self.low, divisor)
        below = times_in(self.high.opposite(), divisor)
        if first is None or below is None:
            return None
        # x <= high means that high - x is 0 or more; -1 - high is its opposite. The largest q with
        # q * d <= -1 - high gives high < -q * d, so the last quotient is -q - 1.
        last = -1 - below
        return (first, last) if max(abs(first), abs(last)) <= MAX_QUOTIENTS else None

    def _compared(self, compare: Any, other: Any) -> SymbolCondition:
        return SymbolCondition(self.space, compare(self.term, self.space.of(other).term))

    def _ordered(self, compare: Any, other: Any) -> SymbolCondition:
        # A product of sides under `<` would leave linear arithmetic: refused, not asked.
        self._linear()
        return self._compared(compare, other)

    def __eq__(self, other: Any) -> SymbolCondition:  # type: ignore[override]
        return self._compared(terms.equal, other)

    def __ne__(self, other: Any) -> SymbolCondition:  # type: ignore[override]
        return self._compared(lambda a, b: terms.Not(terms.equal(a, b)), other)

    def __lt__(self, other: Any) -> SymbolCondition:
        return self._ordered(operator.lt, other)

    def __le__(self, other: Any) -> SymbolCondition:
        return self._ordered(operator.le, other)

    def __gt__(self, other: Any) -> SymbolCondition:
        return self._ordered(operator.gt, other)

    def __ge__(self, other: Any) -> SymbolCondition:
        return self._ordered(operator.ge, other)

    __radd__, __rmul__ = __add__, __mul__
    __hash__ = object.__hash__


# Bounds: forms that are affine in the sides, for all sides of 1 or more


def _less_1(form: Form) -> Form:
    return form.plus(Form.of(-1))


def _from_1(form: Form) -> dict[tuple[str, ...], int]:
    """Its factors where sides are counted from 1: `2*s - 3` is `2*(s - 1) - 1`."""
    return {**form.terms, (): sum(form.terms.values())}


def is_never_negative(form: Form) -> bool:
    """Whether it is 0 or more for all sides."""
    # With s = 1 + u and u >= 0 every term is 0 or more if no factor is negative: 2s - 2 is 2u.
    return min(_from_1(form).values()) >= 0


def times_in(form: Form, divisor: Form) -> int | None:
    """The largest number of times that `divisor` can be subtracted and leave 0 or more.

    It holds for all sides; the divisor is 1 or more. None if no number does.
    """
    factors, by = (
        _from_1(form),
        {term: factor for term, factor in _from_1(divisor).items() if factor},
    )
    if any(factor < 0 for term, factor in factors.items() if term not in by):
        return None
    # Sides from 1: with s = 1 + u, 2s - 2 is 2u and s is 1 + u. From 2u the divisor can be taken 0
    # times, as its constant 1 is not there.
    return min(factors.get(term, 0) // factor for term, factor in by.items())


def at_most_both(one: Form, other: Form) -> Form:
    """A form that is at most both; it is exact where one is at most the other."""
    if is_never_negative(other.plus(one, -1)):
        return one
    if is_never_negative(one.plus(other, -1)):
        return other
    # Sides are positive, so the smaller factor of each gives a form below both; of s and 3 it is 0.
    return Form({term: min(one.terms.get(term, 0), other.terms.get(term, 0))
                 for term in {**one.terms, **other.terms}})  # fmt: skip


def at_least_both(one: Form, other: Form) -> Form:
    """A form that is at least both."""
    return at_most_both(one.scaled(-1), other.scaled(-1)).scaled(-1)


def truth(value: Any) -> Term:
    """A condition or a plain bool as a Z3 term."""
    if isinstance(value, SymbolCondition):
        return value.term
    return terms.TRUE if value else terms.FALSE
