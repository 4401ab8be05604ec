"""Maps are printed as they are written, with the parentheses that they need."""

from __future__ import annotations

import pytest

from primepar import Primitive, where
from primepar.errors import SymbolicError
from primepar.schedule.expression import Expression, name
from primepar.schedule.primitive import Slices, Value
from primepar.schedule.tracing import map_equations

A, B, C = map(name, "abc")


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        (A + B + C, "a + b + c"),
        (A - (B - C), "a - (b - c)"),
        ((A + B) % C, "(a + b) % c"),
        (A + B % C, "a + b % c"),
        (A % (B * C), "a % (b * c)"),
        (1 - A, "1 - a"),
        (2 * (A + 1), "2 * (a + 1)"),
        (A // 2, "a // 2"),
        (where(A == B - 1, 1, 0) + C, "where(a == b - 1, 1, 0) + c"),
        (where(A != B, A, where(A >= C, B, C)), "where(a != b, a, where(a >= c, b, c))"),
    ],
)
def test_an_expression_prints_as_it_is_written(expression: Expression, text: str) -> None:
    assert str(expression) == text


class Folded(Primitive):
    axes = {"r": "q", "e": "d"}

    def forward(self, r: Value, e: Value, t: Value, q: Value, d: Value) -> Slices:
        return dict(M=(e, r), N=t)

    def backward(self, r: Value, e: Value, t: Value, q: Value, d: Value) -> Slices:
        return dict(M=r, N=t)


class Branching(Folded):
    def gradient(self, r: Value, e: Value, t: Value, q: Value, d: Value) -> Slices:
        return dict(M=r if r < q else e)


def test_an_index_of_several_digits_prints_as_a_tuple() -> None:
    assert map_equations(Folded())["forward"] == "M=(e, r), N=t"


def test_a_phase_without_a_map_of_its_own_prints_that_of_forward() -> None:
    assert map_equations(Folded()) == {
        "forward": "M=(e, r), N=t", "backward": "M=r, N=t", "gradient": "M=(e, r), N=t"
    }  # fmt: skip


def test_a_map_that_symbols_cannot_follow_has_no_equations() -> None:
    with pytest.raises(SymbolicError) as error:
        map_equations(Branching())
    assert "Branching.gradient: expected +, -, *, //, %" in str(error.value)
