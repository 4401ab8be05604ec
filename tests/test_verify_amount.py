"""Formulas as cases of fractions, and polynomials: what numbers give, and what is seen of them."""

from __future__ import annotations

import operator
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from primepar import where
from primepar.errors import SymbolicError
from primepar.schedule.expression import evaluate, name
from primepar.schedule.primitive import largest
from primepar.verify.formulas.polynomial import Polynomial, Range
from primepar.verify.formulas.symbolic_amount import ConditionalRatio, cases_of

Formula = Callable[[Any, Any, Any], Any]
FORMULAS: dict[str, Formula] = {
    "a fraction": lambda M, N, s: (M + 2 * N) / s**2 - M / (s + 1) + Fraction(1, 3),
    "a choice": lambda M, N, s: where(s > 2, M, N) / s + where(s != 1, 1, M),
    "the largest": lambda M, N, s: largest(M * s, N + s, 7 * M),
    "logic": lambda M, N, s: where((s > 2) & ~(M < N) | (s == 5), M, N - s),
    "a choice in a choice": lambda M, N, s: where(M < N, where(N > M, s, M), 2 / (s * N)),
    "asked twice": lambda M, N, s: where(M < N, 1, 2) * where(M >= N, s, 3),
}
VARIABLES = {text: Polynomial.variable(text) for text in ("M", "N", "s")}


def at(polynomial: Polynomial, numbers: dict[str, int]) -> int:
    """The value of a polynomial."""
    value = polynomial.within(Range(numbers, frozenset(numbers))).number
    assert value is not None
    return value


@pytest.mark.parametrize("text", FORMULAS)
@given(st.tuples(*[st.integers(1, 9)] * 3))
def test_one_case_holds_and_gives_what_numbers_give(text: str, given_: tuple[int, ...]) -> None:
    numbers = dict(zip(VARIABLES, given_, strict=True))
    formula = FORMULAS[text](*map(name, VARIABLES))

    def holds(case: ConditionalRatio) -> bool:
        return all(fact.compare(at(fact.polynomial, numbers), 0) for fact in case.facts)

    (case,) = filter(holds, cases_of(formula, VARIABLES))
    found = Fraction(at(case.top, numbers), at(case.bottom, numbers))
    assert found == evaluate(formula, {text: Fraction(each) for text, each in numbers.items()})


def test_questions_that_are_answered_already_make_no_case() -> None:
    names = list(map(name, VARIABLES))
    assert len(cases_of(FORMULAS["asked twice"](*names), VARIABLES)) == 2
    assert len(cases_of(where(names[0] > 0, 1, 2), VARIABLES)) == 1


PLAIN = "write it with +, -, *, / and powers, where(condition, a, b) for a choice, or use --side"
REFUSED: dict[str, tuple[Formula, str]] = {
    "a divisor that is 0 at 1": (lambda M, N, s: M / (s - 1), "divide by what may be 0"),
    "a remainder": (lambda M, N, s: M % s, "take // or %"),
    "a quotient": (lambda M, N, s: M // s, "take // or %"),
}


@pytest.mark.parametrize("text", REFUSED)
def test_what_is_no_fraction_is_refused(text: str) -> None:
    formula, what = REFUSED[text]
    with pytest.raises(SymbolicError) as raised:
        cases_of(formula(*map(name, VARIABLES)), VARIABLES)
    assert str(raised.value) == f"a formula for every side cannot {what}: {PLAIN}"


@given(
    st.dictionaries(st.sampled_from([(), ("M",), ("M", "s"), ("s", "s")]), st.integers(-3, 3)),
    st.integers(1, 3),
    st.booleans(),
    st.tuples(st.integers(0, 5), st.integers(0, 5)),
)
def test_what_is_seen_of_a_polynomial_holds_for_all_numbers(
    factors: dict[tuple[str, ...], int], least: int, only: bool, above: tuple[int, int]
) -> None:
    polynomial = Polynomial.sum(factors.items())
    known = Range({"s": least}, frozenset({"s"} if only else ()))
    numbers = {"M": 1 + above[0], "s": least + above[1] * (not only)}
    for compare in (operator.lt, operator.le, operator.eq, operator.ge, operator.gt, operator.ne):
        seen = polynomial.holds(compare, known)
        assert seen is None or seen == compare(at(polynomial, numbers), 0)
