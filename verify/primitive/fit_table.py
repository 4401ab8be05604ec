"""The maps of a primitive on one concrete mesh as arrays, each called once for all its points.

A map that gives other slices for arrays than for numbers is called number by number; on which
meshes that is looked at `fit.samples` says.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

from primepar.errors import PrimitiveError
from primepar.schedule.operators import PHASES, Phase
from primepar.schedule.primitive import ANY, AnyDigit, call_home, call_map
from primepar.schedule.sequence import HOMES, MOST_SLICES, Coordinates, Element, SliceIndex
from primepar.verify.primitive.fit_sender import FitError, Row

Numbers = npt.NDArray[np.int64]
Points = npt.NDArray[np.bool_]
"""A truth for each point."""
Column = Numbers | AnyDigit
"""One digit at all points, or `ANY`."""
Table = dict[str, tuple[Column, ...]]
"""Dim -> its digits, those that the map names."""


@dataclass(frozen=True)
class Tables:
    """A primitive on one mesh; `by_number` if its maps are not to be called with arrays."""

    element: Element
    by_number: bool = False

    @cached_property
    def devices(self) -> list[Coordinates]:
        """Coordinates of all devices, row-major."""
        return list(product(*map(range, self.element.axis_lengths)))

    @cached_property
    def maps(self) -> dict[Phase, Table]:
        """The digits of each phase; of every array the dimensions are the axes and the step.

        Raises `FitError` if only some points leave a digit open, `PrimitiveError` if the maps are
        none of slices.
        """
        element = self.element
        shape = (*element.axis_lengths, element.steps)
        if not self.by_number:
            *at, t = np.indices(shape)
            with suppress(PrimitiveError):
                return {
                    phase: _spread(
                        call_map(element.primitive, phase, tuple(at), t, element.sides), shape
                    )
                    for phase in PHASES
                }
        points = list(product(self.devices, range(element.steps)))
        return {
            phase: _stacked([element.digits[phase, at, t] for at, t in points], shape)
            for phase in PHASES
        }

    @cached_property
    def homes(self) -> dict[str, Table]:
        """The digits of the home of I, W and O, the dimensions being the axes; raises likewise."""
        element, shape = self.element, self.element.axis_lengths
        if element.primitive.home is None:
            return {}
        if not self.by_number:
            at = tuple(np.indices(shape))
            with suppress(PrimitiveError):
                return {
                    tensor: _spread(call_home(element.primitive, tensor, at, element.sides), shape)
                    for tensor in HOMES
                }
        return {
            tensor: _stacked([element.home_digits[tensor, at] for at in self.devices], shape)
            for tensor in HOMES
        }

    @cached_property
    def radices(self) -> dict[str, Row]:
        """Dim -> number of slices of each digit, as `Element.radices`."""
        if self.by_number:
            return self.element.radices
        known: dict[str, list[int]] = {}
        for table in (*self.maps.values(), *self.homes.values()):
            for dim, columns in table.items():
                own = known.setdefault(dim, [])
                own += [1] * (len(columns) - len(own))
                for place, column in enumerate(columns):
                    if not isinstance(column, AnyDigit):
                        own[place] = max(own[place], int(column.max()) + 1)
        return {dim: tuple(own) for dim, own in known.items()}

    def is_like(self, other: Tables) -> bool:
        """Whether both have the same digits."""
        try:
            pairs = [*zip(self.maps.values(), other.maps.values(), strict=True),
                     *zip(self.homes.values(), other.homes.values(), strict=True)]  # fmt: skip
        except FitError:
            return False
        return all(same_tables(one, two) for one, two in pairs)


def _spread(named: Mapping[str, tuple[Any, ...]], shape: Row) -> Table:
    """The digits that a map gives for arrays. Raises `PrimitiveError` if these are no slices."""
    return {dim: tuple(_column(digit, shape) for digit in index) for dim, index in named.items()}


def _column(digit: Any, shape: Row) -> Column:
    if isinstance(digit, AnyDigit):
        return ANY
    column = np.asarray(digit)
    if column.dtype.kind not in "biu" or column.min() < 0 or column.max() >= MOST_SLICES:
        raise PrimitiveError(f"expected slice indices, got {digit!r}")
    return np.broadcast_to(column.astype(np.int64), shape)


def _stacked(rows: list[dict[str, SliceIndex]], shape: Row) -> Table:
    """The digits that a map gives for one point after the other."""
    opens = {tuple((dim, _opens(index)) for dim, index in sorted(row.items())) for row in rows}
    if len(opens) > 1:
        raise FitError("a digit is open on some devices or at some steps only")
    return {
        dim: tuple(
            ANY if digit is ANY else np.array([row[dim][at] for row in rows]).reshape(shape)
            for at, digit in enumerate(index)
        )
        for dim, index in rows[0].items()
    }


def _opens(index: SliceIndex) -> tuple[bool, ...]:
    return tuple(digit is ANY for digit in index)


def same_tables(one: Table, other: Table) -> bool:
    """Whether they have the same digits at all points."""
    if [(dim, len(own)) for dim, own in one.items()] != [(d, len(own)) for d, own in other.items()]:
        return False
    pairs = (pair for dim in one for pair in zip(one[dim], other[dim], strict=True))
    return all(np.array_equal(np.asarray(a), np.asarray(b)) for a, b in pairs)
