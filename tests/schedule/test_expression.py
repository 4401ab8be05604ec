"""The language of maps: one value for integers, arrays and expressions, and one text."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from primepar.errors import PrimitiveError, SymbolicError
from primepar.schedule.expression import (
    evaluate,
    name,
    names,
    negated,
    nodes,
    number,
    parse,
    where,
)

A, B, S = name("a"), name("b"), name("s")
"""Any numbers, and one that is 1 or more."""

Texts = st.SearchStrategy[str]


def joined(some: Texts, symbols: tuple[str, ...]) -> Texts:
    pair = st.tuples(some, st.sampled_from(symbols), some)
    return pair.map(lambda three: f"({' '.join(three)})")


def conditions_of(some: Texts) -> Texts:
    return st.recursive(
        joined(some, ("==", "!=", "<", "<=", ">", ">=")),
        lambda inner: inner.map(lambda one: f"(~{one})") | joined(inner, ("&", "|")),
        max_leaves=3,
    )


def larger(some: Texts) -> Texts:
    numbers = st.integers(0, 9).map(str)
    divided = st.tuples(some, st.sampled_from(("%", "//")), st.sampled_from(("s", "3", "(s + 1)")))
    chosen = st.tuples(conditions_of(some), some, some)
    return st.one_of(
        joined(some, ("+", "-", "*")),
        st.tuples(numbers, st.sampled_from("+-*"), some).map(lambda three: f"({' '.join(three)})"),
        some.map(lambda one: f"(-{one})"),
        divided.map(lambda three: f"({' '.join(three)})"),
        chosen.map(lambda three: f"where({', '.join(three)})"),
    )


leaves = st.sampled_from("abs")
texts = st.recursive(leaves, larger, max_leaves=6)
conditions = conditions_of(leaves)
values = st.fixed_dictionaries(
    {"a": st.integers(-9, 9), "b": st.integers(-9, 9), "s": st.integers(1, 5)}
)


def by_python(text: str, point: dict[str, Any]) -> Any:
    """What Python makes of a text."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return eval(text, {"where": where}, dict(point))


def built(text: str) -> Any:
    """What a map with this text gives, called with symbols."""
    return by_python(text, {"a": A, "b": B, "s": S})


@given(texts, values)
def test_an_expression_of_integers_is_what_python_makes_of_it(
    text: str, point: dict[str, int]
) -> None:
    expression = built(text)
    assert (
        evaluate(expression, point) == by_python(text, point) == by_python(str(expression), point)
    )


@given(texts, st.lists(values, min_size=1, max_size=4))
def test_an_expression_of_arrays_is_that_of_each_integer(
    text: str, rows: list[dict[str, int]]
) -> None:
    arrays = {letter: np.array([row[letter] for row in rows]) for letter in "abs"}
    computed = np.broadcast_to(evaluate(built(text), arrays), len(rows))
    assert computed.tolist() == [by_python(text, row) for row in rows]


@given(texts, values)
def test_an_expression_of_expressions_is_that_of_their_values(
    text: str, point: dict[str, int]
) -> None:
    expression = built(text)
    assert str(evaluate(expression, {"a": A, "b": B, "s": S})) == str(expression)
    shifted = evaluate(expression, {"a": A + 1, "b": B * 2, "s": S})
    moved = {"a": point["a"] + 1, "b": point["b"] * 2, "s": point["s"]}
    assert evaluate(shifted, point) == by_python(text, moved)


@given(texts, values)
def test_a_text_is_read_back_as_it_was_written(text: str, point: dict[str, int]) -> None:
    expression = built(text)
    read = parse(str(expression))
    assert str(read) == str(expression)
    assert evaluate(read, point) == by_python(text, point)


@given(conditions, values)
def test_conditions_are_logic_on_integers_and_on_arrays(text: str, point: dict[str, int]) -> None:
    condition, expected = built(text), by_python(text, point) & 1
    assert evaluate(condition, point) == expected
    arrays = {letter: np.array([value]) for letter, value in point.items()}
    assert np.broadcast_to(evaluate(condition, arrays), 1).tolist() == [expected]
    chosen = where(condition, A, 1 - A)
    assert str(parse(str(chosen))) == str(chosen)
    assert evaluate(negated(condition), point) == 1 - expected


def test_what_an_expression_depends_on() -> None:
    node = where(A == S - 1, B, (A + 1) % S)
    assert names(node) == {"a", "b", "s"}
    assert [str(part) for part in nodes(node)] == [
        "a", "s", "s - 1", "a == s - 1", "b", "a + 1", "(a + 1) % s", str(node)
    ]  # fmt: skip
    assert names(3) == set()
    assert (str(abs(A)), str(+A)) == ("where(a < 0, -a, a)", "a")
    assert [str(part) for part in divmod(A, S)] == ["a // s", "a % s"]
    assert number(np.int64(3)) == 3
    assert evaluate(A / 2, {"a": Fraction(3)}) == Fraction(3, 2)


def test_a_part_that_occurs_twice_is_evaluated_once() -> None:
    node = A
    for _ in range(200):
        node = node + node
    assert evaluate(node, {"a": 1}) == 2**200


@pytest.mark.parametrize("divisor", [0, -1, np.array([2, 0])])
def test_division_by_less_than_1_is_refused(divisor: Any) -> None:
    for node in (A % B, A // B):
        with pytest.raises(PrimitiveError) as error:
            evaluate(node, {"a": 1, "b": divisor})
        least = int(np.min(divisor))
        assert str(error.value) == (
            f"expected % and // by 1 or more, got {least}: use the length of a side"
        )


def test_no_points_are_no_division_by_0() -> None:
    none = np.zeros(0, np.int64)
    assert evaluate(A % B, {"a": none, "b": none}).tolist() == []


IF = (
    "`if`, `and`, `or`, `not`, min or max of a device, step or side: write "
    "where(condition, a, b) and join conditions with &, | and ~"
)
NUMBER = (
    "a device, step or side that is turned into a number, looked up or counted with: "
    "use +, -, *, //, % and where"
)
ROUNDED = (
    "a device, step or side that is rounded or made a number of Python's: write a // b for a "
    "quotient of whole numbers"
)
KEY = "a device, step or side as a member of a set or a key of a dict: write dict(M=..., N=...)"
BITS = "bits of a device, step or side: write // 2 and % 2, and join conditions with &, | and ~"
TRUTH = "a comparison that is used as a number: write where(condition, 1, 0)"
TORCH: Any = torch
"""Without its types, which refuse a symbol as the language does."""
ARITHMETIC = "use +, -, *, //, % and where"


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda: 1 if A else 0, IF),
        (lambda: 1 if A == B else 0, IF),
        (lambda: B or A, IF),  # type: ignore[unreachable]
        (lambda: not A, IF),
        (lambda: min(A, B), IF),
        (lambda: max(A, 1), IF),
        (lambda: 0 < A < S, IF),
        (lambda: A in (1, 2), IF),
        (lambda: int(A), ROUNDED),
        (lambda: float(A), ROUNDED),
        (lambda: round(A), ROUNDED),
        (lambda: math.floor(A), ROUNDED),
        (lambda: [1, 2][A], NUMBER),
        (lambda: {A: 1}, KEY),
        (lambda: {A == B: 1}, KEY),
        (lambda: range(A), NUMBER),
        (lambda: list(A), NUMBER),
        (lambda: len(A), NUMBER),
        (lambda: A[0], NUMBER),
        (lambda: A & 1, BITS),
        (lambda: A ^ 1, BITS),
        (lambda: A << 1, BITS),
        (lambda: 2**A, NUMBER),
        (lambda: ~A, BITS),
        (lambda: where(A + 1, 1, 0), "a + 1 as a condition: write where(x == 1, a, b)"),
        (lambda: (A == B) + 1, TRUTH),
        (lambda: 2 * (A == B), TRUTH),
        (lambda: -(A == B), TRUTH),
        (lambda: (A == B) == (B == S), TRUTH),
        (lambda: A + (A == B), TRUTH),
        (lambda: where(A == B, A == S, 0), TRUTH),
        (
            lambda: (A == B) & A,
            "a joined with a condition: write a == 1 and join conditions with &, | and ~",
        ),
        (lambda: A + 0.5, "float 0.5: use whole numbers"),
        (lambda: A + "1", "str 1: use whole numbers"),
        (lambda: A + None, "NoneType None: use whole numbers"),
        (lambda: np.where(A == B, 1, 0), "NumPy's where: use primepar.where"),
        (lambda: TORCH.where(A == B, 1, 0), "torch's where: use primepar.where"),
        (lambda: TORCH.remainder(A, B), f"torch's remainder: {ARITHMETIC}"),
        (lambda: np.minimum(A, B), f"NumPy's minimum: {ARITHMETIC}"),
        (lambda: np.mod(A, 3), f"NumPy's remainder: {ARITHMETIC}"),
        (lambda: np.roll(A, 1), f"NumPy's roll: {ARITHMETIC}"),
        (lambda: np.asarray(A), f"a NumPy array of devices, steps or sides: {ARITHMETIC}"),
    ],
)  # fmt: skip
def test_what_is_not_in_the_language_is_refused(use: Callable[[], Any], message: str) -> None:
    with pytest.raises(SymbolicError) as error:
        use()
    assert str(error.value) == message


@pytest.mark.parametrize(
    "text",
    ["", "a +", "a ** b", "a / b", "f(a)", "a.b", "a[0]", "where(a, 1)", "where(a, b, 1)", "1.5",
     "True", "'a'", "a if b else c", "a and b", "not a", "a < b < c", "lambda: 1", "a; b", "~a",
     "where(a == b, 1, 0, 2)", "(a == b) + 1", "a and __import__('os')",
     "(" * 300 + "a" + ")" * 300, "where(condition=a == b, then=1, otherwise=0)"],
)  # fmt: skip
def test_a_text_that_is_no_expression_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected an expression") as error:
        parse(text)
    assert str(error.value) == f"expected an expression like (r + t) % s, got {text[:60]!r}"
