"""The primitive: a map from (device, step) to dimension slices, written once.

A map is called once, with symbols (`primepar.schedule.tracing`), so it is built from `+`, `-`,
`%`, comparisons and `where`. It stays plain Python that can be called with integers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NoReturn

from primepar.errors import SymbolicError
from primepar.schedule.expression import Value as Value
from primepar.schedule.expression import where as where

Slices = dict[str, Value]
"""Dim -> slice index; a tuple is an index of several digits, major first."""


class AnyDigit:
    """The type of `ANY`."""

    def __repr__(self) -> str:
        return "ANY"

    def __str__(self) -> str:
        return "*"

    def _refuse(self, *_: object) -> NoReturn:
        raise SymbolicError("ANY is no number, write it alone as a digit, like N=(c, ANY, b)")

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _refuse
    __mod__ = __rmod__ = __floordiv__ = __rfloordiv__ = __neg__ = _refuse
    __lt__ = __le__ = __gt__ = __ge__ = __index__ = _refuse


ANY: Final = AnyDigit()
"""A digit that a slice index leaves open: `N=(c, ANY, b)` is every `(c, *, b)`.

Digits left open at the end need not be written: `N=(c, ANY)` is `N=c`.
"""


def largest(first: Value, *others: Value) -> Value:
    """The largest of several amounts; for numbers and symbols.

    Examples:
        >>> largest(3, 5, 4)
        5
    """
    for other in others:
        first = where(first < other, other, first)
    return first


class Primitive:
    """Base class of partition primitives; a subclass gives `axes` and the maps.

    `axes` names the device axes. A tuple puts `s` devices along each; a mapping gives each axis
    its own side, `{"r": "q", "c": "q", "e": "d"}`. A map takes one coordinate per axis, the step
    `t` and one length per side. It returns the slice index of every dim that it splits. A dim
    that is not named is whole, and so is a digit that is left out at the end or is `ANY`.
    `backward` and `gradient` are the forward map unless overridden.
    """

    axes: tuple[str, ...] | Mapping[str, str] = ()
    virtual: tuple[str, ...] = ()
    """Axes whose places share a device, which does at each step what the maps give to all of them.

    A map that is right for devices of their own is right for these: together they hold no less.
    """
    label: str = ""

    def steps(self, *args: Any, **kwargs: Any) -> Value:
        """Number of steps of a phase; takes the sides. By default the first side."""
        return args[0] if args else 1

    def forward(self, *args: Any, **kwargs: Any) -> Slices:
        """Slices of the forward sub-operator; takes the coordinates, `t` and the sides."""
        raise NotImplementedError(f"{type(self).__name__} has no forward map")

    def backward(self, *args: Any, **kwargs: Any) -> Slices:
        """Slices of the backward sub-operator."""
        return self.forward(*args, **kwargs)

    def gradient(self, *args: Any, **kwargs: Any) -> Slices:
        """Slices of the gradient sub-operator."""
        return self.forward(*args, **kwargs)

    home: Callable[..., Slices] | None = None
    """Optional method `home(self, tensor, *coordinates, *sides)` for the tensors I, W and O: where
    each is resident between phases. Without it a tensor stays where its last step left it."""
    keeps: tuple[str, ...] = ()
    """Operands whose copies, received in forward, are kept for the later phases."""

    def sent(self, *args: Any, **kwargs: Any) -> Value | None:
        """Elements that leave each device in one training step of a linear operator, if known.

        Takes M (rows, those of all batches), N, K and the sides, as fractions or as symbols: it is
        built of `+`, `-`, `*`, `/`, powers, comparisons and `where`. All-reduce counts as a ring.
        """
        return None

    def held(self, *args: Any, **kwargs: Any) -> Value | None:
        """Elements that are live at once on a device in one training step, at most, if known.

        Takes and gives what `sent` does; `largest` gives the largest of several amounts.
        """
        return None

    @property
    def axis_sides(self) -> dict[str, str]:
        """Axis -> name of its side."""
        if isinstance(self.axes, Mapping):
            return dict(self.axes)
        return dict.fromkeys(self.axes, "s")

    @property
    def side_names(self) -> tuple[str, ...]:
        """Names of the sides, in the order in which the maps take them."""
        return tuple(dict.fromkeys(self.axis_sides.values()))

    def text(self, sides: tuple[int, ...]) -> str:
        """How a sequence spells this primitive, `P2x2`: its label and a length for each axis.

        A class that inherits its label is another primitive, and is called by its name.
        """
        label = vars(self).get("label") or vars(type(self)).get("label") or type(self).__name__
        lengths = dict(zip(self.side_names, sides, strict=True))
        along = (str(lengths[side]) for side in self.axis_sides.values())
        return label + "x".join(along)

    def sides_of(self, lengths: tuple[int, ...]) -> tuple[int, ...] | None:
        """Length of each side from the lengths that `text` spells; None if they do not fit."""
        sides: dict[str, int] = {}
        if len(lengths) != len(self.axis_sides):
            return None
        for side, length in zip(self.axis_sides.values(), lengths, strict=True):
            if sides.setdefault(side, length) != length:
                return None
        return tuple(sides.values())

    @property
    def example(self) -> str:
        """A spelling for messages to show."""
        return self.text((2,) * len(self.side_names))
