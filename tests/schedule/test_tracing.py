"""Maps are read once, with symbols: nothing else about a method matters, or it is refused."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from one_mesh import verify_side

from primepar import ANY, Primitive, where
from primepar.api.target import load_primitive
from primepar.errors import PrimitiveError, SymbolicError
from primepar.partition import PRIMITIVES, PrimePar
from primepar.schedule import Sequence, lower
from primepar.schedule.expression import Expression, evaluate, number
from primepar.schedule.tracing import formula, maps_of, signature
from primepar.verify.primitive.proof import verify_primitive

LANGUAGE = "expected +, -, *, //, %, comparisons, &, |, ~ and where"
NO_FUNCTION = "use no types, no state and no chance"


class Rows(Primitive):
    """Rows of M, one step."""

    axes = ("r",)

    def steps(self, s: Any) -> Any:
        return 1

    def forward(self, r: Any, t: Any, s: Any) -> dict[str, Any]:
        return dict(M=r)


def called_by(primitive: Primitive) -> Counter[str]:
    """How often each method is called with symbols from now on."""
    counts = Counter[str]()

    def counted(method: str) -> Any:
        original = getattr(primitive, method)

        def call(*given: Any) -> Any:
            counts[method] += any(isinstance(argument, Expression) for argument in given)
            return original(*given)

        return call

    for method in ("steps", "forward", "backward", "gradient"):
        object.__setattr__(primitive, method, counted(method))
    return counts


def test_each_method_is_called_once_with_symbols() -> None:
    primitive = PrimePar()
    counts = called_by(primitive)
    assert maps_of(primitive) is maps_of(primitive)
    assert verify_primitive(primitive).verdict == "proved"
    assert verify_side(primitive, (2,)).verdict == "proved"
    lower(Sequence.of(primitive, 4))
    assert counts == dict.fromkeys(("steps", "forward", "backward", "gradient"), 1)


def test_no_reader_calls_a_method_again(monkeypatch: pytest.MonkeyPatch) -> None:
    primitive = PrimePar()
    maps_of(primitive)

    def again(*_: Any) -> Any:
        raise AssertionError("a method was called again")

    for method in ("steps", "forward", "backward", "gradient"):
        monkeypatch.setattr(PrimePar, method, again)
    assert verify_primitive(primitive).verdict == "proved"
    assert verify_side(primitive, (3,)).verdict == "proved"
    assert lower(Sequence.of(primitive, 5)).ranks == 25


@pytest.mark.parametrize("method", PRIMITIVES)
def test_expressions_are_what_integers_give(method: str) -> None:
    """On a mesh that loading does not compare."""
    primitive = PRIMITIVES[method]()
    sides = dict(zip(primitive.side_names, (4, 5, 4, 5), strict=False))
    device = {axis: sides[side] - 1 - (axis == "r") for axis, side in primitive.axis_sides.items()}
    steps = evaluate(maps_of(primitive).steps, sides)
    assert steps == primitive.steps(*sides.values())
    for phase, traced in maps_of(primitive).phases.items():
        given = getattr(primitive, phase)(*device.values(), steps - 1, *sides.values())
        values = {**device, "t": steps - 1, **sides}
        evaluated = {
            dim: tuple(digit if digit is ANY else evaluate(digit, values) for digit in index)
            for dim, index in traced.items()
        }
        assert evaluated == {dim: index if isinstance(index, tuple) else (index,)
                         for dim, index in given.items()}  # fmt: skip


# What is no function of its arguments


class ByType(Rows):
    """Another map for integers than for symbols."""

    def forward(self, r: Any, t: Any, s: Any) -> dict[str, Any]:
        return dict(M=0 if isinstance(r, int) else r)


class Counting(Rows):
    """Another map from the second call on."""

    count = 0

    def forward(self, r: Any, t: Any, s: Any) -> dict[str, Any]:
        self.count += 1
        return dict(M=r if self.count < 2 else 0)


class Catching(Rows):
    """A branch, whose refusal is caught."""

    def forward(self, r: Any, t: Any, s: Any) -> dict[str, Any]:
        try:
            return dict(M=r if r == 0 else 0)
        except Exception:
            return dict(M=r)


class Drawn(Rows):
    """By chance."""

    def forward(self, r: Any, t: Any, s: Any) -> dict[str, Any]:
        return dict(M=r + random.Random().randrange(10**9))


class CountingSteps(Rows):
    def steps(self, s: Any) -> Any:
        return 2 if isinstance(s, int) else 1


class HomeByType(Rows):
    def home(self, tensor: str, r: Any, s: Any) -> dict[str, Any]:
        return dict(M=r) if tensor != "I" or not isinstance(r, int) else {}


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (ByType, "ByType.forward: expected a function of its arguments alone, got {'M': (0,)} for "
         f"integers and {{'M': (1,)}} for symbols at r=1, s=2, t=0: {NO_FUNCTION}"),
        (Counting, "Counting.forward: expected a function of its arguments alone, got {'M': (0,)} "
         f"for integers and {{'M': (1,)}} for symbols at r=1, s=2, t=0: {NO_FUNCTION}"),
        (Catching, "Catching.forward: expected a function of its arguments alone, got {'M': (0,)} "
         f"for integers and {{'M': (1,)}} for symbols at r=1, s=2, t=0: {NO_FUNCTION}"),
        (CountingSteps, "CountingSteps.steps: expected a function of its arguments alone, got 2 "
         f"for integers and 1 for symbols at s=1: {NO_FUNCTION}"),
        (HomeByType, "HomeByType.home: expected a function of its arguments alone, got {} for "
         f"integers and {{'M': (0,)}} for symbols at r=0, s=1: {NO_FUNCTION}"),
    ],
)  # fmt: skip
def test_a_method_that_is_no_function_of_its_arguments_is_refused(
    kind: type[Primitive], message: str
) -> None:
    for read in (maps_of, verify_primitive, lambda primitive: Sequence.of(primitive, 2).grid):
        with pytest.raises(PrimitiveError) as error:
            read(kind())
        assert str(error.value) == message


def test_chance_is_refused() -> None:
    with pytest.raises(PrimitiveError) as error:
        verify_primitive(Drawn())
    assert str(error.value).startswith(
        "Drawn.forward: expected a function of its arguments alone, got {'M': ("
    )


class Negated(Rows):
    """`~` of a comparison of integers is -1 or -2."""

    def forward(self, r: Any, t: Any, s: Any) -> dict[str, Any]:
        return dict(M=where(~(r == 0) & ((r > 0) | (s == 9)), r, 0))


def test_logic_of_integers_is_that_of_symbols() -> None:
    assert str(maps_of(Negated()).phases["forward"]["M"][0]) == (
        "where(~(r == 0) & ((r > 0) | (s == 9)), r, 0)"
    )
    assert verify_primitive(Negated()).verdict == "proved"


class OfAnInstance(Rows):
    """Its map depends on an attribute."""

    def __init__(self, by: int) -> None:
        self.by = by

    def forward(self, r: Any, t: Any, s: Any) -> dict[str, Any]:
        return dict(M=(r + self.by) % s)


def test_instances_with_attributes_have_maps_of_their_own() -> None:
    one, other = OfAnInstance(1), OfAnInstance(2)
    texts = [str(maps_of(instance).phases["forward"]["M"][0]) for instance in (one, other)]
    assert texts == ["(r + 1) % s", "(r + 2) % s"]


# Names


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        ({"t": "s"}, "'t' twice: each axis, each side and the step t need a name of their own"),
        ({"r": "t"}, "'t' twice: each axis, each side and the step t need a name of their own"),
        ({"s": "s"}, "'s' twice: each axis, each side and the step t need a name of their own"),
        ({"r": "s", "s": "q"},
         "'s' twice: each axis, each side and the step t need a name of their own"),
        ({"at_r": "s"}, "'at_r': take a letter or a word that does not begin with at_ or in_"),
        ({"r": "in_M0"}, "'in_M0': take a letter or a word that does not begin with at_ or in_"),
        ({"quotient 1": "s"},
         "'quotient 1': take a letter or a word that does not begin with at_ or in_"),
        ({"if": "s"}, "'if': take a letter or a word that does not begin with at_ or in_"),
    ],
)  # fmt: skip
def test_names_that_could_mean_something_else_are_refused(
    axes: dict[str, str], message: str
) -> None:
    class Named(Primitive):
        def steps(self, *sides: Any) -> Any:
            return 1

        def forward(self, *given: Any) -> dict[str, Any]:
            return dict(M=given[0])

    Named.axes = axes
    for read in (maps_of, verify_primitive):
        with pytest.raises(PrimitiveError) as error:
            read(Named())
        assert str(error.value) == f"Named.axes: expected names of axes and sides, got {message}"


# What a method returns


FILE = """
import numpy as np
from primepar import Primitive, where

class Mine(Primitive):
    axes = ("r",)

    def steps(self, s):
        return {steps}

    def forward(self, r, t, s):
        {body}
"""
IF = "`if`, `and`, `or`, `not`, min or max of a device, step or side: write "
COUNTED = "a device, step or side that is turned into a number, looked up or counted with: "
ROUNDED = "a device, step or side that is rounded or made a number of Python's: write a // b "


@pytest.mark.parametrize(
    ("steps", "body", "message"),
    [
        ("1", "return dict(M=r if r else 0)", f"FILE:12: Mine.forward: {LANGUAGE}, got {IF}"),
        ("1", "return dict(M=[0, 1, 2][r])", f"FILE:12: Mine.forward: {LANGUAGE}, got {COUNTED}"),
        ("1", "return dict(M=int(r))", f"FILE:12: Mine.forward: {LANGUAGE}, got {ROUNDED}"),
        ("1", "return dict(M=np.mod(r, s))", f"FILE:12: Mine.forward: {LANGUAGE}, got NumPy's "
         "remainder: use +, -, *, //, % and where"),
        ("min(s, 2)", "return dict(M=r)", f"FILE:9: Mine.steps: {LANGUAGE}, got {IF}"),
        ("s", "return dict(M=None)",
         f"FILE:11: Mine.forward: {LANGUAGE}, got NoneType None: use whole numbers"),
        ("s", "raise ValueError('no')", "FILE:12: Mine.forward: expected a map that can be called "
         "as forward(self, r, t, s), got ValueError: no"),
    ],
)  # fmt: skip
def test_what_is_no_map_of_slices_is_refused_with_its_place(
    steps: str, body: str, message: str, tmp_path: Path
) -> None:
    file = tmp_path / "mine.py"
    file.write_text(FILE.format(steps=steps, body=body))
    with pytest.raises(PrimitiveError) as error:
        maps_of(load_primitive(f"{file}:Mine"))
    assert str(error.value).replace(str(file), "FILE").startswith(message)


def test_formulas_may_have_fractions() -> None:
    given = formula(PRIMITIVES["summa"](), "sent")
    assert given is not None
    values = dict(M=12, N=12, K=12, s=3)
    assert evaluate(given, values) == PRIMITIVES["summa"]().sent(12, 12, 12, 3)
    assert formula(Rows(), "sent") is None
    assert signature(Rows(), "home") == "home(self, tensor, r, s)"


def test_a_formula_that_is_no_number_is_refused() -> None:
    class Wrong(Rows):
        def sent(self, M: Any, N: Any, K: Any, s: Any) -> Any:
            return M if s > 1 else 0

    with pytest.raises(SymbolicError) as error:
        formula(Wrong(), "sent")
    assert f"Wrong.sent: {LANGUAGE}, got {IF}" in str(error.value)
    assert number(3) == 3
