"""Where the tensors of a sequence lie: for each device some slices of the rows by some of columns.

Slices are told by their digits, major first: a device holds all slices that have some digits in
common, as `1*0` for the slices 4 and 6 of 8. What a sequence leaves is the digits of its elements
one after another, as each element cuts what the one before it left.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from primepar.errors import SequenceError
from primepar.plan.cost.sweeps import moving
from primepar.schedule.layout import Layout
from primepar.schedule.lowering import layout
from primepar.schedule.operators import Phase, tensor_dims
from primepar.schedule.sequence import Element

Digits = NDArray[np.uint32]
ENDS: Final[dict[str, tuple[Phase, bool]]] = {
    "I": ("forward", False),
    "W": ("forward", False),
    "O": ("forward", True),
    "dI": ("backward", True),
}
"""Tensor -> the phase that says where it lies between phases, and whether at the phase's end."""


@dataclass(frozen=True, eq=False)
class Slices:
    """Slices of a dim that every device holds: those whose `fixed` digits are the device's."""

    digits: int
    fixed: int
    values_D: Digits

    @classmethod
    def whole(cls, devices: int) -> Slices:
        """The dim uncut on every device."""
        return cls(0, 0, np.zeros(devices, np.uint32))

    @property
    def count(self) -> int:
        """Slices of the dim."""
        return 1 << self.digits

    @property
    def each(self) -> int:
        """Slices of one device."""
        return 1 << self.digits - self.fixed.bit_count()

    def then(self, inner: Slices) -> Slices:
        """Every slice cut again, on the devices of the next element."""
        values = (self.values_D[:, None] << np.uint32(inner.digits)) | inner.values_D
        fixed = self.fixed << inner.digits | inner.fixed
        return Slices(self.digits + inner.digits, fixed, values.ravel())

    def held(self, device: int) -> list[int]:
        """Slices of one device."""
        value = int(self.values_D[device])
        return [each for each in range(self.count) if each & self.fixed == value]


@dataclass(frozen=True, eq=False)
class Spread:
    """Slices of rows and of columns that every device holds."""

    rows: Slices
    columns: Slices

    @classmethod
    def whole(cls, devices: int = 1) -> Spread:
        """Everything on every device."""
        return cls(Slices.whole(devices), Slices.whole(devices))

    @property
    def grid(self) -> tuple[int, int]:
        """Slices of the rows and of the columns."""
        return self.rows.count, self.columns.count

    def then(self, inner: Spread) -> Spread:
        """Every slice cut again by the next element, on its devices."""
        return Spread(self.rows.then(inner.rows), self.columns.then(inner.columns))

    def turned(self) -> Spread:
        """Rows and columns exchanged."""
        return Spread(self.columns, self.rows)


@lru_cache(maxsize=4096)
def element_spread(element: Element, tensor: str) -> Spread:
    """Where an element leaves a tensor between phases, over its first and its last dim.

    Raises `SequenceError` where what a device holds is no product of slices with common digits.
    """
    phase, last = ENDS[tensor]
    found = layout(moving(element).movement, phase, tensor, last=last)
    named = [dim for dim in tensor_dims(tensor) if dim in moving(element).sequence.grid]
    first, second = tensor_dims(tensor)[-2:]
    spread = Spread(*(_slices(found, named.index(dim)) if dim in named
                      else Slices.whole(found.ranks) for dim in (first, second)))  # fmt: skip
    blocks = spread.rows.each * spread.columns.each
    cut = [count for count in spread.grid if count > 1]
    if {len(own) for own in found.held} != {blocks} or [c for c in found.grid if c > 1] != cut:
        raise SequenceError(
            f"expected slices of {first} by slices of {second} of {tensor} on every device, got "
            f"other blocks for {element.primitive.text(element.sides)}: this is not planned"
        )
    return spread


def _slices(found: Layout, dim: int) -> Slices:
    """What the devices hold of one dim; more than that where digits do not tell it."""
    digits = (found.grid[dim] - 1).bit_length()
    own = [found.slices(rank, dim) for rank in range(found.ranks)]
    fixed = (1 << digits) - 1
    for slices in own:
        for each in slices:
            fixed &= ~(each ^ slices[0])
    values = np.array([slices[0] & fixed for slices in own], np.uint32)
    return Slices(digits, fixed, values)
