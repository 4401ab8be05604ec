"""The maps of a primitive as expressions: each method is called once, with symbols.

Every reader evaluates what comes back; none calls the Python method again. So readers cannot
disagree about a map, and it cannot depend on the type of its arguments, on state or on chance. A
method is still plain Python: it is compared with its expression on all meshes up to side 3.
"""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
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
    names,
    nodes,
    number,
)
from primepar.schedule.operators import DIMS, HOMES, PHASES, Phase, tensor_dims
from primepar.schedule.primitive import ANY, Primitive

# Whether a primitive has the methods and arguments that its axes ask for, before they are called.
#
# A map is called with its arguments by position, so a missing one, one too many, or two that
# changed places are refused here, in the words of the class that was written.

MAPS = ("steps", "forward", "backward", "gradient", "home")
FORMULAS = ("sent", "held")
"""Inherited formulas may be of other sides than the maps; they are checked where used."""
NEAR = 0.85
"""How alike a name that is not one of the class is to one that is, to be a misspelling of it."""
_SHORT = {"fwd": "forward", "back": "backward", "bwd": "backward", "grad": "gradient",
          "wgrad": "gradient", "dgrad": "backward", "homes": "home"}  # fmt: skip
"""Other words for a map."""


def arguments_of(primitive: Primitive, method: str) -> list[str]:
    """Names of the arguments of a method, `self` first."""
    axes = list(primitive.axis_sides)
    first = {"steps": [], "home": ["tensor", *axes], "sent": [*_SIZE_NAMES], "held": [*_SIZE_NAMES]}
    return ["self", *first.get(method, [*axes, "t"]), *primitive.side_names]


def signature(primitive: Primitive, method: str) -> str:
    """How a method is called, `forward(self, r, c, t, s)`."""
    return f"{method}({', '.join(arguments_of(primitive, method))})"


def label_of(primitive: Primitive, what: str) -> str:
    """How a message names a method, or a thing whose first word is one: `mine.py:7: Mine.forward`.

    The line is that of a user's file, which is run and not imported: its module is not known.
    """
    kind, method = type(primitive), what.partition(" ")[0].rstrip(":")
    base = next((base for base in kind.__mro__ if method in vars(base)), Primitive)
    code = getattr(vars(base).get(method), "__code__", None)
    line = f"{code.co_filename}:{code.co_firstlineno}: " if code is not None else ""
    return f"{'' if base.__module__ in sys.modules else line}{kind.__name__}.{what}"


def check_methods(primitive: Primitive) -> None:
    """Raise `PrimitiveError` for a method that is missing, misspelt, or takes other arguments."""
    kind = type(primitive)
    written = {name: value for base in reversed(kind.__mro__[:-1]) if base is not Primitive
               for name, value in vars(base).items()}  # fmt: skip
    _check_spelling(primitive, written)
    if "forward" not in written:
        raise PrimitiveError(
            f"{kind.__name__}.forward: expected a method {signature(primitive, 'forward')}, got "
            "none: write it, the other phases have its map unless they have their own"
        )
    _check_axes(primitive, written)
    for method in MAPS:
        if method in written:
            _check_arguments(primitive, method, written[method])


def _check_spelling(primitive: Primitive, written: Mapping[str, Any]) -> None:
    """Raise `PrimitiveError` for a name near to one that is missing, like `foward` or `grad`."""
    known = ["axes", "virtual", *MAPS, *FORMULAS]
    for given in written:
        near = get_close_matches(given, known, n=1, cutoff=NEAR)
        near = near or [_SHORT.get(given.removeprefix("weight_"), given)]
        if near[0] not in (*written, given) and given not in known and not given.startswith("_"):
            raise PrimitiveError(
                f"{label_of(primitive, given)}: expected names out of {', '.join(known)}, got "
                f"{given!r}: write {near[0]}"
            )


def _check_axes(primitive: Primitive, written: Mapping[str, Any]) -> None:
    """Raise `PrimitiveError` for maps that take coordinates of axes where no axes are declared."""
    given = _positional(written["forward"])
    if primitive.axes or given is None or "t" not in given[1:]:
        return
    axes = given[1 : given.index("t")]
    if axes:
        listed = ", ".join(f'"{axis}"' for axis in axes) + "," * (len(axes) == 1)
        raise PrimitiveError(
            f"{type(primitive).__name__}.axes: expected the device axes of "
            f"forward({', '.join(given)}), got none: write axes = ({listed})"
        )


def _check_arguments(primitive: Primitive, method: str, function: Any) -> None:
    """Raise `PrimitiveError` unless a method takes as many arguments as it is given, in order."""
    label = label_of(primitive, method)
    if method == "home" and function is None:
        return
    if not callable(function) and not isinstance(function, staticmethod | classmethod):
        raise PrimitiveError(
            f"{label}: expected a method {signature(primitive, method)}, got "
            f"{type(function).__name__} {function!r:.40}: write def {signature(primitive, method)}"
        )
    given, expected = _positional(function), arguments_of(primitive, method)
    if given is None:
        return
    swapped = given != expected and set(given) == set(expected)
    if len(given) == len(expected) and not swapped:
        return
    missing = [name for name in expected if name not in given]
    extra = [name for name in given if name not in expected]
    if swapped:
        instead = "write the arguments in this order"
    elif len(given) < len(expected):
        instead = f"add {', '.join(missing) or 'what is missing'}"
    else:
        instead = f"leave {', '.join(extra) or 'one'} out, or add it to axes"
    raise PrimitiveError(
        f"{label}: expected {signature(primitive, method)}, got {method}({', '.join(given)}): "
        f"{instead}"
    )


def _positional(function: Any) -> list[str] | None:
    """Names of the arguments of a function; None where it takes any number, or a default."""
    if not inspect.isfunction(function):
        return None
    parameters = inspect.signature(function).parameters.values()
    plain = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    if any(
        parameter.kind not in plain or parameter.default is not parameter.empty
        for parameter in parameters
    ):
        return None
    return [parameter.name for parameter in parameters]


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
        # The expression is what all readers evaluate. That the method gives the same for integers
        # is checked on small meshes, so that a map with state, chance or a look at types is refused
        # here.
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
    for axis in primitive.virtual:
        if axis not in primitive.axis_sides:
            raise PrimitiveError(
                f"{type(primitive).__name__}.virtual: expected some of the axes "
                f'{", ".join(primitive.axis_sides)}, got {axis!r}: a tuple, like virtual = ("h",)'
            )


def _traced(primitive: Primitive) -> Maps:
    axes = tuple(map(name, primitive.axis_sides))
    sides = tuple(map(name, primitive.side_names))
    bounds = dict.fromkeys((*primitive.axis_sides, *primitive.side_names), LONGEST_SIDE)
    steps = _whole(primitive, "steps", _called(primitive, "steps", sides), bounds)
    # NumPy wraps silently at 2**63: an index that could come near on any mesh up to side 1,024 is
    # refused when it is read.
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
    for what, slices in (*phases.items(), *((f"home of {of}", home) for of, home in homes.items())):
        _check_virtual(primitive, what, slices)
    return Maps(steps, phases, homes)


def _check_virtual(primitive: Primitive, what: str, slices: Digits) -> None:
    """Raise `PrimitiveError` where what the places of one device have is no product of slices.

    Two that turn in opposite directions have N=0 and N=3 of M=1, which is M=(1), N=(0, 3). But M=0,
    N=0 and M=1, N=1 are not all of M=(0, 1), N=(0, 1).
    """
    for axis in primitive.virtual:
        dims = [dim for dim, index in slices.items() if axis in names(*index)]
        if len(dims) > 1:
            raise PrimitiveError(
                f"{type(primitive).__name__}.{what}: expected the virtual axis {axis} in one dim, "
                f"got it in {' and '.join(dims)}: a device works on each slice of one dim with "
                "each of the others"
            )


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
            f"got {type(error).__name__}: {error}{_fix_of(error)}"
        ) from None


def _fix_of(error: Exception) -> str:
    """The fix of a name that is not defined, or of a tensor that a dict of homes has not."""
    if isinstance(error, KeyError) and error.args[0] in HOMES:
        return f": write the home of {error.args[0]}"
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
    label = label_of(primitive, method)
    slices = _called(primitive, method, arguments)
    if not isinstance(slices, Mapping):
        none = "None, as there is no return: write return"
        got = none if slices is None else f"{type(slices).__name__}: return"
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
    label = label_of(primitive, method)
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
    label, traced = label_of(primitive, method), _number(primitive, method, value)
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
                f"{label_of(primitive, self.method)}: expected a function of its arguments "
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


# The maps and homes of a primitive as equations, as its expressions print themselves.


def map_equations(primitive: Primitive) -> dict[str, str]:
    """Phase -> its map, `M=r, N=(r + c + t) % s, K=c`."""
    return {
        phase: ", ".join(f"{dim}={_digits(index)}" for dim, index in slices.items())
        for phase, slices in maps_of(primitive).phases.items()
    }


def home_equations(primitive: Primitive) -> dict[str, str]:
    """Tensor -> its home, `I[r, c]`; empty for a primitive that declares no homes.

    A dim that is whole is written `:`, a digit that is open `*`.
    """
    equations: dict[str, str] = {}
    for tensor, slices in maps_of(primitive).homes.items():
        dims = (dim for dim in tensor_dims(tensor) if dim != "B" or dim in slices)
        cut = (_digits(slices[dim]) if dim in slices else ":" for dim in dims)
        equations[tensor] = f"{tensor}[{', '.join(cut)}]"
    return equations


def _digits(index: tuple[object, ...]) -> str:
    return str(index[0]) if len(index) == 1 else f"({', '.join(map(str, index))})"
