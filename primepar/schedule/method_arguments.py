"""Whether a primitive has the methods and arguments that its axes ask for, before they are called.

A map is called with its arguments by position, so a missing one, one too many, or two that changed
places are refused here, in the words of the class that was written.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from primepar.errors import PrimitiveError
from primepar.schedule.primitive import Primitive

MAPS = ("steps", "forward", "backward", "gradient", "home")
FORMULAS = ("sent", "held")
"""Inherited formulas may be of other sides than the maps; they are checked where used."""
NEAR = 0.85
"""How alike a name that is not one of the class is to one that is, to be a misspelling of it."""
_SIZES = ["M", "N", "K"]


def arguments_of(primitive: Primitive, method: str) -> list[str]:
    """Names of the arguments of a method, `self` first."""
    axes = list(primitive.axis_sides)
    first = {"steps": [], "home": ["tensor", *axes], "sent": _SIZES, "held": _SIZES}
    return ["self", *first.get(method, [*axes, "t"]), *primitive.side_names]


def signature(primitive: Primitive, method: str) -> str:
    """How a method is called, `forward(self, r, c, t, s)`."""
    return f"{method}({', '.join(arguments_of(primitive, method))})"


def check_methods(primitive: Primitive) -> None:
    """Raise `PrimitiveError` for a method that is missing, misspelt, or takes other arguments."""
    kind = type(primitive)
    written = {name: value for base in reversed(kind.__mro__[:-1]) if base is not Primitive
               for name, value in vars(base).items()}  # fmt: skip
    _check_spelling(kind.__name__, written)
    if "forward" not in written:
        raise PrimitiveError(
            f"{kind.__name__}.forward: expected a method {signature(primitive, 'forward')}, got "
            "none: write it, the other phases have its map unless they have their own"
        )
    _check_axes(primitive, written)
    for method in MAPS:
        if method in written:
            _check_arguments(primitive, method, written[method])


def _check_spelling(kind: str, written: Mapping[str, Any]) -> None:
    """Raise `PrimitiveError` for a name near to one that is missing, like `foward`."""
    known = ["axes", *MAPS, *FORMULAS]
    for name in written:
        near = get_close_matches(name, known, n=1, cutoff=NEAR)
        if near and name not in known and near[0] not in written and not name.startswith("_"):
            raise PrimitiveError(
                f"{kind}.{name}: expected names out of {', '.join(known)}, got {name!r}: write "
                f"{near[0]}"
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
    label = f"{type(primitive).__name__}.{method}"
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
