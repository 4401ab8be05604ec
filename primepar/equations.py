"""The maps and homes of a primitive as equations: called with symbols that print themselves."""

from __future__ import annotations

from typing import Any

from primepar.errors import PrimeParError
from primepar.schedule.operators import PHASES, tensor_dims
from primepar.schedule.primitive import Primitive, call_home, call_map
from primepar.schedule.sequence import HOMES


class Symbol:
    """A name, or an expression of names; `level` is how tightly its outermost operator binds."""

    def __init__(self, text: str, level: int = 3) -> None:
        self.text, self.level = text, level

    def __str__(self) -> str:
        return self.text

    def _joined(self, operator: str, level: int, left: object, right: object) -> Symbol:
        # An equal level on the right needs its parentheses: a - (b - c).
        parts = _within(left, level), operator, _within(right, level + 1)
        return Symbol(" ".join(parts), level)

    def __add__(self, other: object) -> Symbol:
        return self._joined("+", 1, self, other)

    def __radd__(self, other: object) -> Symbol:
        return self._joined("+", 1, other, self)

    def __sub__(self, other: object) -> Symbol:
        return self._joined("-", 1, self, other)

    def __rsub__(self, other: object) -> Symbol:
        return self._joined("-", 1, other, self)

    def __mul__(self, other: object) -> Symbol:
        return self._joined("*", 2, self, other)

    def __rmul__(self, other: object) -> Symbol:
        return self._joined("*", 2, other, self)

    def __mod__(self, other: object) -> Symbol:
        return self._joined("%", 2, self, other)

    def __floordiv__(self, other: object) -> Symbol:
        return self._joined("//", 2, self, other)

    def __lt__(self, other: object) -> Symbol:
        return self._joined("<", 0, self, other)

    def __le__(self, other: object) -> Symbol:
        return self._joined("<=", 0, self, other)

    def __gt__(self, other: object) -> Symbol:
        return self._joined(">", 0, self, other)

    def __ge__(self, other: object) -> Symbol:
        return self._joined(">=", 0, self, other)

    def __eq__(self, other: object) -> Any:
        return self._joined("==", 0, self, other)

    def __ne__(self, other: object) -> Any:
        return self._joined("!=", 0, self, other)

    __hash__ = object.__hash__

    def __bool__(self) -> bool:
        raise TypeError("a symbol is neither true nor false")

    def __where__(self, then: object, otherwise: object) -> Symbol:
        return Symbol(f"where({self}, {then}, {otherwise})")


def _within(value: object, level: int) -> str:
    return f"({value})" if isinstance(value, Symbol) and value.level < level else str(value)


def map_equations(primitive: Primitive) -> dict[str, str]:
    """Phase -> its map, `M=r, N=(r + c + t) % s, K=c`; without a map that symbols cannot follow."""
    axes = tuple(map(Symbol, primitive.axis_sides))
    sides = tuple(map(Symbol, primitive.side_names))
    equations: dict[str, str] = {}
    for phase in PHASES:
        try:
            slices = call_map(primitive, phase, axes, Symbol("t"), sides)
        except PrimeParError:
            continue
        equations[phase] = ", ".join(f"{dim}={_digits(index)}" for dim, index in slices.items())
    return equations


def home_equations(primitive: Primitive) -> dict[str, str]:
    """Tensor -> where it rests, `I[r, c]`; empty for a primitive that declares no homes.

    A dim that is whole is written `:`, a digit that is open `*`. Homes that symbols cannot follow
    are left out.
    """
    if primitive.home is None:
        return {}
    axes = tuple(map(Symbol, primitive.axis_sides))
    sides = tuple(map(Symbol, primitive.side_names))
    equations: dict[str, str] = {}
    for tensor in HOMES:
        try:
            slices = call_home(primitive, tensor, axes, sides)
        except PrimeParError:
            continue
        dims = (dim for dim in tensor_dims(tensor) if dim != "B" or dim in slices)
        cut = (_digits(slices[dim]) if dim in slices else ":" for dim in dims)
        equations[tensor] = f"{tensor}[{', '.join(cut)}]"
    return equations


def _digits(index: tuple[object, ...]) -> str:
    return str(index[0]) if len(index) == 1 else f"({', '.join(map(str, index))})"
