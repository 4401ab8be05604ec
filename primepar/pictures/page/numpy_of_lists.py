"""What a proof needs of NumPy, on plain lists: there is no NumPy for the page's Python.

The page's worker runs this file as the module `numpy`. An array has one axis, and numbers or truths
as its elements. It is as slow as lists are, and exact.
"""

from __future__ import annotations

import builtins
import math
import operator
import random as _random
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, product
from types import SimpleNamespace
from typing import Any

int64 = bool_ = object
"""Types of elements are Python's own."""
integer = int


class ndarray:  # noqa: N801  # named as in NumPy
    """A list with the operators of an array."""

    def __init__(self, elements: Iterable[Any]) -> None:
        self.elements = list(elements)

    def __class_getitem__(cls, _: object) -> type[ndarray]:
        return cls

    def __len__(self) -> int:
        return len(self.elements)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.elements)

    def __getitem__(self, places: Any) -> Any:
        if isinstance(places, ndarray):
            if len(places) and isinstance(places.elements[0], bool):
                pairs = zip(self.elements, places, strict=True)
                return ndarray(element for element, kept in pairs if kept)
            return ndarray(self.elements[place] for place in places)
        chosen = self.elements[places]
        return ndarray(chosen) if isinstance(places, slice) else chosen

    def min(self, initial: Any = math.inf) -> Any:
        """The least element."""
        return builtins.min(initial, *self.elements) if self.elements else initial

    def max(self, initial: Any = -math.inf) -> Any:
        """The largest element."""
        return builtins.max(initial, *self.elements) if self.elements else initial

    def sum(self) -> Any:
        """The sum of all elements."""
        return builtins.sum(self.elements)

    def all(self) -> bool:
        """Whether every element holds."""
        return builtins.all(self.elements)

    def any(self) -> bool:
        """Whether some element holds."""
        return builtins.any(self.elements)

    def ravel(self) -> ndarray:
        """The array, which is flat."""
        return self

    def tolist(self) -> list[Any]:
        """The elements."""
        return list(self.elements)

    def __invert__(self) -> ndarray:
        return ndarray(not element for element in self.elements)

    def __neg__(self) -> ndarray:
        return ndarray(-element for element in self.elements)

    __hash__ = None  # type: ignore[assignment]


def _of_both(one: Any, other: Any) -> Iterator[tuple[Any, Any]]:
    count = len(one) if isinstance(one, ndarray) else len(other)
    return zip(broadcast_to(one, count), broadcast_to(other, count), strict=True)


def _add_operators() -> None:
    """The operators of two arrays, or of an array and a number on either side."""

    def element_wise(apply: Callable[[Any, Any], Any], swap: bool) -> Callable[[Any, Any], Any]:
        def operate(self: ndarray, other: Any) -> ndarray:
            pairs = _of_both(other, self) if swap else _of_both(self, other)
            return ndarray(apply(left, right) for left, right in pairs)

        return operate

    names = ("add", "sub", "mul", "floordiv", "mod", "and", "or", "pow", "truediv")
    for name in names:
        apply = getattr(operator, name + "_" * (name in ("and", "or")))
        setattr(ndarray, f"__{name}__", element_wise(apply, swap=False))
        setattr(ndarray, f"__r{name}__", element_wise(apply, swap=True))
    for name in ("eq", "ne", "lt", "le", "gt", "ge"):
        setattr(ndarray, f"__{name}__", element_wise(getattr(operator, name), swap=False))


_add_operators()


def array(elements: Iterable[Any], _: object = None) -> ndarray:
    """An array of these elements."""
    return ndarray(elements)


def asarray(value: Any, _: object = None) -> Any:
    """The value, which `broadcast_to` makes an array of where it is none."""
    return value


def broadcast_to(value: Any, count: int) -> ndarray:
    """An array as it is, or a number as often."""
    return value if isinstance(value, ndarray) else ndarray([value] * count)


def full(count: int, value: Any) -> ndarray:
    """A value, as often."""
    return ndarray([value] * count)


def zeros(count: int, _: object = None) -> ndarray:
    """Zeros."""
    return ndarray([0] * count)


def arange(count: int) -> ndarray:
    """The numbers from 0 on."""
    return ndarray(range(count))


def indices(lengths: Sequence[int]) -> list[ndarray]:
    """For each axis the place along it, at every place of a grid."""
    places = list(product(*map(range, lengths)))
    return [ndarray(place[axis] for place in places) for axis in range(len(lengths))]


def unravel_index(chosen: Any, lengths: Sequence[int]) -> list[ndarray]:
    """For each axis the place along it, at some places of a grid, which are counted through."""
    axes = []
    for length in reversed(lengths):
        axes.append(chosen % length)
        chosen = chosen // length
    return axes[::-1]


def flatnonzero(truths: ndarray) -> ndarray:
    """The places that hold."""
    return ndarray(place for place, holds in enumerate(truths) if holds)


def isin(values: ndarray, known: ndarray) -> ndarray:
    """Whether each value is among the known ones."""
    among = set(known)
    return ndarray(value in among for value in values)


def append(one: ndarray, other: ndarray) -> ndarray:
    """Both, one after the other."""
    return ndarray([*one, *other])


def repeat(values: ndarray, numbers: ndarray) -> ndarray:
    """Each value as often as its number."""
    pairs = zip(values, numbers, strict=True)
    return ndarray(value for value, number in pairs for _ in range(number))


def cumsum(values: ndarray) -> ndarray:
    """The sums up to each place."""
    return ndarray(accumulate(values))


def maximum(one: Any, other: Any) -> ndarray:
    """The larger of two, at each place."""
    return ndarray(builtins.max(pair) for pair in _of_both(one, other))


def max(values: Any, initial: Any = -math.inf) -> Any:
    """The largest of some values."""
    return builtins.max(initial, *(values if isinstance(values, ndarray) else [values]))


def sort(values: Iterable[Any]) -> ndarray:
    """The values in order."""
    return ndarray(sorted(values))


def _generator(seed: int) -> SimpleNamespace:
    drawn = _random.Random(seed)
    return SimpleNamespace(
        choice=lambda number, most, replace: ndarray(drawn.sample(range(number), most))
    )


random = SimpleNamespace(default_rng=_generator)
typing = SimpleNamespace(NDArray=ndarray)
