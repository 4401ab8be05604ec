"""Symbols compute what integers compute, stay linear, and refuse what has no linear form."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import z3
from hypothesis import given
from hypothesis import strategies as st

from primepar import where
from primepar.errors import SymbolicError
from primepar.schedule.expression import evaluate
from primepar.schedule.expression import name as named
from primepar.schedule.polynomial_form import Form
from primepar.verify.primitive.z3_symbols import (
    Symbol,
    SymbolSpace,
    at_least_both,
    at_most_both,
    is_never_negative,
)

SPACE = SymbolSpace(("s", "q"))
S, Q = SPACE.sides
R = SPACE.below(z3.Int("r"), SPACE.side("s"))
C = SPACE.below(z3.Int("c"), SPACE.side("s"))

NAMES = tuple(map(named, "rcsq"))
VALUES = dict(zip("rcsq", (R, C, S, Q), strict=True))

Map = Callable[[Any, Any, Any, Any], Any]


def read(function: Map) -> Symbol:
    """What Z3 is asked about: the expression of a map, evaluated on symbols."""
    return SPACE.of(evaluate(function(*NAMES), VALUES))


MAPS: dict[str, Map] = {
    "sum": lambda r, c, s, q: r + c - 1,
    "wrapped": lambda r, c, s, q: (r + c - 1) % s,
    "wrapped far": lambda r, c, s, q: (3 * r - 2 * c - 5) % s,
    "two sides": lambda r, c, s, q: (2 - r) % (s + q),
    "by a number": lambda r, c, s, q: (r - 4 * c) % 3,
    "by one more": lambda r, c, s, q: (r + c) % (s + 1),
    "quotient": lambda r, c, s, q: (r + c) // s,
    "half": lambda r, c, s, q: (r - c) // 2,
    "both": lambda r, c, s, q: sum(divmod(2 * r + c, s)),
    "from a number": lambda r, c, s, q: 7 % (s + 6),
    "nothing to wrap": lambda r, c, s, q: r % s,
    "last": lambda r, c, s, q: where(r == s - 1, c, q),
    "either": lambda r, c, s, q: where((r < c) | (r != 0) & ~(c >= 2), 1, r - c),
    "both ways": lambda r, c, s, q: where((r <= c) & (c > 0), abs(r - c), -r),
    "constant condition": lambda r, c, s, q: where((r > c) & (1 == 1), +r, 1 - c),
}


def value(symbol: Symbol, numbers: dict[str, int]) -> int:
    """The integer that a symbol's term is for these sides and coordinates."""
    pairs = [(z3.Int(name), z3.IntVal(number)) for name, number in numbers.items()]
    number = z3.simplify(z3.substitute(symbol.term, *pairs))
    assert isinstance(number, z3.IntNumRef)
    return int(number.as_long())


@pytest.mark.parametrize("name", MAPS)
@given(
    sides=st.tuples(st.integers(1, 7), st.integers(1, 7)), point=st.tuples(*[st.integers(0, 6)] * 2)
)
def test_a_symbol_is_the_integer_and_within_its_bounds(
    name: str, sides: tuple[int, int], point: tuple[int, int]
) -> None:
    s, q = sides
    r, c = (coordinate % s for coordinate in point)
    symbol = read(MAPS[name])
    expected = int(MAPS[name](r, c, s, q))
    assert value(symbol, {"side s": s, "side q": q, "r": r, "c": c}) == expected
    along = dict(zip("sq", sides, strict=True))
    assert symbol.low.at(along) <= expected <= symbol.high.at(along)


def operations(term: z3.ExprRef) -> Iterator[int]:
    """Kinds of all operations in a term."""
    yield term.decl().kind()
    for child in term.children():
        yield from operations(child)


@pytest.mark.parametrize("name", ["wrapped", "wrapped far", "two sides", "by one more", "both"])
def test_a_remainder_by_a_side_is_a_choice_between_literal_quotients(name: str) -> None:
    kinds = set(operations(read(MAPS[name]).term))
    assert z3.Z3_OP_ITE in kinds
    assert kinds.isdisjoint({z3.Z3_OP_MOD, z3.Z3_OP_IDIV, z3.Z3_OP_REM, z3.Z3_OP_DIV})


ONE_MESH = "or prove one mesh with --side"
PRODUCT = (
    "a product of two indices or sides is not linear: write an index of several digits as a "
    f"tuple, M=(r, c) for M=r*s + c, {ONE_MESH}"
)
DIVISOR = (
    "% and // take a positive number or sum of sides on their right for every side, "
    f"not a device or a step: use the side, {ONE_MESH}"
)
QUOTIENT = (
    "the index left of % or // can be more than 12 times the side on its right: "
    f"keep it within a few sides, {ONE_MESH}"
)

REFUSED: dict[str, tuple[Map, str]] = {
    "product": (lambda r, c, s, q: (r * s + c) % s, PRODUCT),
    "product of devices": (lambda r, c, s, q: where(r * c < 2, 0, 1), PRODUCT),
    "by a device": (lambda r, c, s, q: r % c, DIVISOR),
    "by what may be zero": (lambda r, c, s, q: r % (s - 1), DIVISOR),
    "by a negative side": (lambda r, c, s, q: r % (1 - s), DIVISOR),
    "another side": (lambda r, c, s, q: r % q, QUOTIENT),
    "too many": (lambda r, c, s, q: (14 * r) % s, QUOTIENT),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_linear_is_refused_with_what_to_write(name: str) -> None:
    function, message = REFUSED[name]
    with pytest.raises(SymbolicError) as refused:
        read(function)
    assert str(refused.value) == message


def test_products_of_sides_can_be_compared() -> None:
    same = evaluate(NAMES[2] * NAMES[3] == NAMES[3] * NAMES[2], VALUES)
    assert z3.is_true(z3.simplify(same.term))


def affine(constant: int, s: int, q: int) -> Form:
    return Form({(): constant, ("s",): s, ("q",): q})


def test_an_affine_form_is_never_negative_only_if_no_side_makes_it_so() -> None:
    assert is_never_negative(affine(-1, 1, 0))
    assert not is_never_negative(affine(-2, 1, 0))
    assert not is_never_negative(affine(9, -1, 2))
    assert is_never_negative(Form.of(0))


@given(*[st.builds(affine, st.integers(-3, 3), *[st.integers(-2, 2)] * 2)] * 2)
def test_the_common_bounds_of_two_forms_are_bounds_of_both(one: Form, other: Form) -> None:
    for s, q in ((1, 1), (1, 5), (5, 1), (4, 3)):
        along = {"s": s, "q": q}
        assert at_most_both(one, other).at(along) <= min(one.at(along), other.at(along))
        assert at_least_both(one, other).at(along) >= max(one.at(along), other.at(along))


def test_equality_of_symbols_is_a_question_and_not_an_answer() -> None:
    question = operator.eq(R, C)
    assert z3.simplify(question.__where__(1, 0).term).decl().kind() == z3.Z3_OP_ITE
