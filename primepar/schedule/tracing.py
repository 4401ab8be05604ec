"""The maps of a primitive as expressions: each method is called once, with symbols.

Every reader evaluates what comes back; none calls the Python method again. So readers cannot
disagree about a map, and it cannot depend on the type of its arguments, on state or on chance. A
method is still plain Python: it is compared with its expression on all meshes up to side 3.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from keyword import iskeyword
from pathlib import Path
from traceback import extract_tb
from typing import Any
from weakref import WeakKeyDictionary

from primepar.errors import PrimeParError, PrimitiveError, SymbolicError
from primepar.schedule.expression import (
    LARGEST,
    Number,
    Value,
    evaluate,
    magnitude,
    name,
    nodes,
    number,
)
from primepar.schedule.method_arguments import check_methods, signature
from primepar.schedule.operators import DIMS, HOMES, PHASES, Phase
from primepar.schedule.primitive import ANY, Primitive

Digits = dict[str, tuple[Any, ...]]
"""Dim -> the digits of its slice index, major first; open ones at the end are left out."""
COMPARED, COMPARED_STEPS = 3, 32
"""Side up to which the methods are called with integers, too, and how many steps are compared."""
MOST_OPERATIONS = 10_000
"""Of one digit; whoever reads a map visits each of them at every place."""
LONGEST_SIDE = 1_024
"""On meshes up to this side the numbers of a map are those of NumPy, which wraps larger ones."""
_KINDS = {"steps": "method", "sent": "formula", "held": "formula"}
_LANGUAGE = "+, -, *, //, %, comparisons, &, |, ~ and where"


@dataclass(frozen=True)
class Maps:
    """The maps of a primitive as expressions of its axes, of `t` and of its sides.

    `homes` is empty where the primitive declares none.
    """

    steps: Number
    phases: Mapping[Phase, Digits]
    homes: Mapping[str, Digits]


_KNOWN: WeakKeyDictionary[Any, Maps] = WeakKeyDictionary()
_FORMULAS: WeakKeyDictionary[Any, dict[str, Number | None]] = WeakKeyDictionary()
_SIZE_NAMES, _SIZES = ("M", "N", "K"), (36, 60, 84)
"""What formulas take first, and the numbers with which they are compared."""


def maps_of(primitive: Primitive) -> Maps:
    """The maps of a primitive, traced when they are first asked for.

    They are kept with the class, or with an instance that has attributes of its own. Raises
    `SymbolicError` for a method that does what the language cannot express, `PrimitiveError` for
    one that raises, that returns no slices, or that returns others for integers.
    """
    owner = _owner(primitive)
    if owner not in _KNOWN:
        _check_names(primitive)
        check_methods(primitive)
        maps = _traced(primitive)
        for call in _calls(primitive, maps):
            call.compare(primitive)
        _KNOWN[owner] = maps
    return _KNOWN[owner]


def _owner(primitive: Primitive) -> Any:
    """With what an expression is kept: the class, or an instance with attributes of its own."""
    return primitive if getattr(primitive, "__dict__", None) else type(primitive)


def digit_of(slices: Digits, dim: str, place: int) -> Any:
    """A digit of a slice index; `ANY` where the index leaves it out."""
    index = slices.get(dim, ())
    return index[place] if place < len(index) else ANY


def formula(primitive: Primitive, method: str) -> Number | None:
    """What `sent` or `held` computes, over M, N, K and the sides; None without a formula.

    It is traced, compared and kept like the maps, and raises what `maps_of` raises.
    """
    if getattr(type(primitive), method) is getattr(Primitive, method):
        return None
    known = _FORMULAS.setdefault(_owner(primitive), {})
    if method not in known:
        names = (*_SIZE_NAMES, *primitive.side_names)
        traced = _called(primitive, method, tuple(map(name, names)))
        given = None if traced is None else _number(primitive, method, traced)
        for lengths in product(range(1, COMPARED + 1), repeat=len(primitive.side_names)):
            sizes = tuple(map(Fraction, (*_SIZES, *lengths)))
            values = dict(zip(names, sizes, strict=True))
            _Call(method, sizes, given, values).compare(primitive)
        known[method] = given
    return known[method]


def _check_names(primitive: Primitive) -> None:
    """Raise `PrimitiveError` where a name of an axis or of a side could mean something else.

    `at_r` is what a proof calls another device's r, and `in_M0` a slice.
    """
    names = ("t", *primitive.side_names, *primitive.axes)
    for place, text in enumerate(names):
        advice = ""
        if text in names[:place]:
            advice = f"{text!r} twice: each axis, each side and the step t need a name of their own"
        elif text in primitive.side_names and text in _SIZE_NAMES:
            advice = f"{text!r} for a side: formulas call a size so"
        elif not text.isidentifier() or iskeyword(text) or text.startswith(("at_", "in_")):
            advice = f"{text!r}: take a letter or a word that does not begin with at_ or in_"
        if advice:
            raise PrimitiveError(
                f"{type(primitive).__name__}.axes: expected names of axes and sides, got {advice}"
            )


def _traced(primitive: Primitive) -> Maps:
    axes = tuple(map(name, primitive.axis_sides))
    sides = tuple(map(name, primitive.side_names))
    bounds = dict.fromkeys((*primitive.axis_sides, *primitive.side_names), LONGEST_SIDE)
    steps = _whole(primitive, "steps", _called(primitive, "steps", sides), bounds)
    bounds["t"] = magnitude(steps, bounds)
    phases: dict[Phase, Digits] = {}
    for phase in PHASES:
        if phase != "forward" and _is_inherited(primitive, phase):
            phases[phase] = phases["forward"]
        else:
            phases[phase] = _slices(primitive, phase, (*axes, name("t"), *sides), bounds)
    homes = {
        tensor: _slices(primitive, "home", (tensor, *axes, *sides), bounds)
        for tensor in (HOMES if primitive.home else ())
    }
    return Maps(steps, phases, homes)


def _is_inherited(primitive: Primitive, phase: Phase) -> bool:
    """Whether a phase has the map of forward."""
    return getattr(getattr(primitive, phase), "__func__", None) is getattr(Primitive, phase)


def _called(primitive: Primitive, method: str, arguments: tuple[Value, ...]) -> Value:
    """Call one method. What it raises ends as a `PrimitiveError` in one line."""
    label = f"{type(primitive).__name__}.{method}"
    try:
        return getattr(primitive, method)(*arguments)
    except SymbolicError as error:
        place = _place(error)
        raise SymbolicError(f"{place}{label}: expected {_LANGUAGE}, got {error}") from None
    except PrimeParError:
        raise
    except Exception as error:
        raise PrimitiveError(
            f"{_place(error)}{label}: expected a {_KINDS.get(method, 'map')} that can be called as "
            f"{signature(primitive, method)}, "
            f"got {type(error).__name__}: {error}{_import_of(error)}"
        ) from None


def _import_of(error: Exception) -> str:
    """The fix of a name that is not defined."""
    undefined = error.name if isinstance(error, NameError) else None
    if undefined in ("where", "ANY", "largest"):
        return f": write from primepar import {undefined}"
    return f": write dict({undefined}=...)" if undefined in DIMS else ""


def _place(error: BaseException) -> str:
    """File and line of the user's code where an error arose, `mine.py:7: `."""
    package = str(Path(__file__).parent)
    frames = extract_tb(error.__traceback__)
    lines = [frame for frame in frames if not frame.filename.startswith(package)]
    return f"{lines[-1].filename}:{lines[-1].lineno}: " if lines else ""


def _slices(
    primitive: Primitive, method: str, arguments: tuple[Value, ...], bounds: Mapping[str, int]
) -> Digits:
    """Dim -> digits, as expressions and plain numbers."""
    label = f"{type(primitive).__name__}.{method}"
    slices = _called(primitive, method, arguments)
    if not isinstance(slices, Mapping):
        got = "None: write return" if slices is None else f"{type(slices).__name__}: return"
        raise PrimitiveError(
            f"{label}: expected dict(M=..., N=..., K=...), got {got} the slice index of each dim "
            "that the map splits"
        )
    for dim in slices:
        if dim not in DIMS:
            raise PrimitiveError(
                f"{label}: expected dims out of {', '.join(DIMS)}, got {dim!r}: {_other_dim(dim)}"
            )
    named = {dim: _named(index) for dim, index in slices.items()}
    return {
        dim: tuple(
            digit if digit is ANY else _whole(primitive, method, digit, bounds) for digit in index
        )
        for dim, index in named.items()
        if index
    }


def _other_dim(dim: object) -> str:
    """What to write instead of a dim that there is not."""
    capital = str(dim).upper()
    return f"write {capital}" if capital in DIMS else "leave out a dim that is not split"


def _named(index: Value) -> tuple[Any, ...]:
    """The digits of an index up to the last that is not left open."""
    digits = index if isinstance(index, tuple) else (index,)
    while digits and digits[-1] is ANY:
        digits = digits[:-1]
    return digits


def _number(primitive: Primitive, method: str, value: Value) -> Number:
    """A traced value. Raises `SymbolicError` for what is no number, or takes too much work."""
    label = f"{type(primitive).__name__}.{method}"
    try:
        traced = number(value)
    except SymbolicError as error:
        raise SymbolicError(f"{label}: expected {_LANGUAGE}, got {error}") from None
    operations = len(nodes(traced))
    if operations > MOST_OPERATIONS:
        raise SymbolicError(
            f"{label}: expected at most {MOST_OPERATIONS} operations, got {operations}: "
            "use +, *, // and % instead of a loop"
        )
    return traced


def _whole(primitive: Primitive, method: str, value: Value, bounds: Mapping[str, int]) -> Number:
    """A traced number of a map, with bounds of its names.

    Raises `SymbolicError` for fractions and too large numbers.
    """
    label, traced = f"{type(primitive).__name__}.{method}", _number(primitive, method, value)
    made_of = nodes(traced)
    wrong = sorted({node.operator for node in made_of} & {"/", "**"})
    wrong += ["a fraction" for part in (traced, *(part for node in made_of for part in node.parts))
              if isinstance(part, Fraction)]  # fmt: skip
    if wrong:
        got = f"{wrong[0]} in {traced}" if made_of else f"the fraction {traced}"
        raise SymbolicError(
            f"{label}: expected {_LANGUAGE}, got {got}: use // for a quotient of whole numbers"
        )
    if magnitude(traced, bounds) >= LARGEST:
        raise SymbolicError(
            f"{label}: expected numbers below 2**62 on every mesh up to side {LONGEST_SIDE}, got "
            f"larger ones in {traced!s:.60}: take % of the side sooner"
        )
    return traced


# Comparison with integers


@dataclass(frozen=True)
class _Call:
    """A method and its expressions, to be compared at the values of its names."""

    method: str
    arguments: tuple[Value, ...]
    traced: Any
    values: Mapping[str, int | Fraction]

    def compare(self, primitive: Primitive) -> None:
        """Raise `PrimitiveError` where integers give something else than the expression does."""
        try:
            expected = _evaluated(self.traced, self.values)
        except (PrimitiveError, ZeroDivisionError):
            return  # The map has no value here: any reader that evaluates it raises this error.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of `~` on a bool, Python 3.12
            given = _called(primitive, self.method, self.arguments)
        plain = _plain(given)
        if plain != expected:
            place = ", ".join(f"{axis}={value}" for axis, value in self.values.items())
            raise PrimitiveError(
                f"{type(primitive).__name__}.{self.method}: expected a function of its arguments "
                f"alone, got {plain} for integers and {expected} for symbols at {place}: "
                "use no types, no state and no chance"
            )


def _calls(primitive: Primitive, maps: Maps) -> Iterator[_Call]:
    """All calls of all methods on all meshes up to side `COMPARED`."""
    axes, sides = primitive.axis_sides, primitive.side_names
    for lengths in product(range(1, COMPARED + 1), repeat=len(sides)):
        along = dict(zip(sides, lengths, strict=True))
        yield _Call("steps", lengths, maps.steps, along)
        try:
            steps = evaluate(maps.steps, along)
        except PrimitiveError:
            continue
        for device in product(*(range(along[side]) for side in axes.values())):
            here = {**dict(zip(axes, device, strict=True)), **along}
            for tensor, home in maps.homes.items():
                yield _Call("home", (tensor, *device, *lengths), home, here)
            for phase, t in product(PHASES, range(min(steps, COMPARED_STEPS))):
                traced = maps.phases[phase]
                yield _Call(phase, (*device, t, *lengths), traced, {**here, "t": t})


def _evaluated(traced: Any, values: Mapping[str, int | Fraction]) -> Any:
    if not isinstance(traced, dict):
        return evaluate(traced, values)
    return {
        dim: tuple(digit if digit is ANY else evaluate(digit, values) for digit in index)
        for dim, index in traced.items()
    }


def _plain(given: Any) -> Any:
    """What a method gave for integers, as `_evaluated` gives it."""
    if not isinstance(given, Mapping):
        return given
    return {dim: _named(index) for dim, index in given.items() if _named(index)}
