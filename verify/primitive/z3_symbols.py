"""Integers that stand for every device, step and side at once, for expressions to be evaluated on.

A symbol wraps a Z3 integer and carries a lower and an upper bound that are affine in the sides. The
bounds turn `%` by a side into a choice between a few literal quotients, so that every term stays
linear: Z3 then decides each question. What has no such form raises `SymbolicError`.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NoReturn

from primepar.errors import SymbolicError
from primepar.verify.primitive import z3_terms as terms
from primepar.verify.primitive.affine import Affine

Term = Any
"""A Z3 integer expression; z3 ships no types."""

MOST_QUOTIENTS = 12
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
    f"the index left of % or // can be more than {MOST_QUOTIENTS} times the side on its right: "
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

    def side(self, name: str) -> Affine:
        """The side of that name as an affine form."""
        return Affine(0, tuple(int(name == other) for other in self.names))

    def number(self, value: int) -> Affine:
        """A plain number as an affine form."""
        return Affine(value, (0,) * len(self.names))

    def term(self, form: Affine) -> Term:
        """An affine form as a Z3 integer."""
        return _term(self.names, form)

    def exactly(self, form: Affine) -> Symbol:
        """The symbol whose value is an affine form of the sides."""
        return Symbol(self, self.term(form), form, form)

    def below(self, term: Term, limit: Affine) -> Symbol:
        """The symbol of a Z3 integer that is 0 or more and below `limit`."""
        return Symbol(self, term, self.number(0), limit.plus(-1))

    def of(self, value: Symbol | int) -> Symbol:
        """A symbol as it is, an integer as a symbol."""
        return value if isinstance(value, Symbol) else self.exactly(self.number(value))


@lru_cache(maxsize=1024)
def _term(names: tuple[str, ...], form: Affine) -> Term:
    parts = [
        factor * terms.Int(f"side {name}")
        for factor, name in zip(form.coefficients, names, strict=True)
        if factor
    ]
    return (
        terms.Sum([*parts, terms.IntVal(form.constant)]) if parts else terms.IntVal(form.constant)
    )


class SymbolCondition:
    """What a comparison of symbols gives."""

    def __init__(self, space: SymbolSpace, term: Term) -> None:
        self.space, self.term = space, term

    def __where__(self, then: Any, otherwise: Any) -> Symbol:
        """`then` where the condition holds, else `otherwise`."""
        a, b = self.space.of(then), self.space.of(otherwise)
        low, high = a.low.below(b.low), a.high.above(b.high)
        return Symbol(self.space, terms.If(self.term, a.term, b.term), low, high)

    def __and__(self, other: SymbolCondition | bool) -> SymbolCondition:
        return SymbolCondition(self.space, terms.And(self.term, truth(other)))

    def __or__(self, other: SymbolCondition | bool) -> SymbolCondition:
        return SymbolCondition(self.space, terms.Or(self.term, truth(other)))

    def __invert__(self) -> SymbolCondition:
        return SymbolCondition(self.space, terms.Not(self.term))

    __rand__, __ror__ = __and__, __or__


class SymbolProduct:
    """A product of symbols, which is not linear: it can be multiplied and compared, no more."""

    def __init__(self, space: SymbolSpace, term: Term) -> None:
        self.space, self.term = space, term

    def __mul__(self, other: Any) -> SymbolProduct:
        return SymbolProduct(self.space, self.term * _term_of(other))

    def __eq__(self, other: Any) -> SymbolCondition:  # type: ignore[override]
        return SymbolCondition(self.space, self.term == _term_of(other))

    def _refuse(self, *_: object) -> NoReturn:
        raise SymbolicError(_PRODUCT)

    __rmul__ = __mul__
    __hash__ = __add__ = __radd__ = __sub__ = __rsub__ = __mod__ = __rmod__ = __neg__ = _refuse
    __floordiv__ = __rfloordiv__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse


def _term_of(value: Any) -> Term:
    return value if isinstance(value, int) else value.term


class Symbol:
    """An integer that is known only by its Z3 term and its bounds, both ends included."""

    def __init__(self, space: SymbolSpace, term: Term, low: Affine, high: Affine) -> None:
        self.space, self.term, self.low, self.high = space, term, low, high

    @property
    def form(self) -> Affine | None:
        """Its value, where that is an affine form of the sides alone."""
        return self.low if self.low == self.high else None

    def __add__(self, other: Any) -> Symbol:
        right = self.space.of(other)
        return Symbol(
            self.space, self.term + right.term, self.low + right.low, self.high + right.high
        )

    def __neg__(self) -> Symbol:
        return self._times(-1)

    def __sub__(self, other: Any) -> Symbol:
        return self + -self.space.of(other)

    def __rsub__(self, other: Any) -> Symbol:
        return self.space.of(other) - self

    def __mul__(self, other: Any) -> Any:
        if isinstance(other, SymbolProduct):
            return other * self
        right = self.space.of(other)
        for one, factor in ((self, right.form), (right, self.form)):
            if factor is not None and factor.is_number:
                return one._times(factor.constant)
        return SymbolProduct(self.space, self.term * right.term)

    def _times(self, factor: int) -> Symbol:
        low, high = (self.low, self.high) if factor >= 0 else (self.high, self.low)
        return Symbol(self.space, self.term * factor, low * factor, high * factor)

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
        if divisor is None or not divisor.plus(-1).is_never_negative():
            raise SymbolicError(_DIVISOR)
        quotients = self._quotients(divisor)
        if quotients is None:
            return self._divided_by_number(divisor)
        first, last = quotients
        quotient = self._choice(divisor, quotients, terms.IntVal)
        whole = Symbol(space, quotient, space.number(first), space.number(last))
        if first == last:
            return whole, self - space.exactly(divisor * last)
        rest = self._choice(divisor, quotients, lambda q: self.term - space.term(divisor * q))
        return whole, space.below(rest, divisor)

    def _choice(self, divisor: Affine, quotients: tuple[int, int], value: Any) -> Term:
        """The value of whichever literal quotient holds."""
        first, last = quotients
        chosen = value(last)
        for literal in reversed(range(first, last)):
            limit = self.space.term(divisor * (literal + 1))
            chosen = terms.If(self.term < limit, value(literal), chosen)
        return chosen

    def _divided_by_number(self, divisor: Affine) -> tuple[Symbol, Symbol]:
        """Division by a plain number is linear for Z3 whatever the quotient."""
        if not divisor.is_number:
            raise SymbolicError(_QUOTIENT)
        space, number = self.space, terms.IntVal(divisor.constant)
        zero = space.number(0)
        whole = Symbol(space, self.term / number, self.low.below(zero), self.high.above(zero))
        return whole, space.below(self.term % number, divisor)

    def _quotients(self, divisor: Affine) -> tuple[int, int] | None:
        """First and last of the quotients that the bounds allow; None if they grow with a side."""
        first, below = self.low.times_in(divisor), (self.high * -1).plus(-1).times_in(divisor)
        if first is None or below is None:
            return None
        last = -1 - below
        return (first, last) if max(abs(first), abs(last)) <= MOST_QUOTIENTS else None

    def _compared(self, compare: Any, other: Any) -> SymbolCondition:
        if isinstance(other, SymbolProduct):
            return SymbolCondition(self.space, compare(self.term, other.term))
        return SymbolCondition(self.space, compare(self.term, self.space.of(other).term))

    def __eq__(self, other: Any) -> SymbolCondition:  # type: ignore[override]
        return self._compared(terms.equal, other)

    def __ne__(self, other: Any) -> SymbolCondition:  # type: ignore[override]
        return self._compared(lambda a, b: terms.Not(terms.equal(a, b)), other)

    def __lt__(self, other: Any) -> SymbolCondition:
        return self._compared(operator.lt, other)

    def __le__(self, other: Any) -> SymbolCondition:
        return self._compared(operator.le, other)

    def __gt__(self, other: Any) -> SymbolCondition:
        return self._compared(operator.gt, other)

    def __ge__(self, other: Any) -> SymbolCondition:
        return self._compared(operator.ge, other)

    __radd__, __rmul__ = __add__, __mul__
    __hash__ = object.__hash__


def truth(value: Any) -> Term:
    """A condition or a plain bool as a Z3 term."""
    if isinstance(value, SymbolCondition):
        return value.term
    return terms.TRUE if value else terms.FALSE
