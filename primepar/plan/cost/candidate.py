"""A candidate: one sequence over 2^n devices, with the places of its elements and its layouts.

A resident layout has some slices of rows by some of columns on each device. Slices are numbered in
binary, the most significant digit first. A device holds all slices whose fixed digits have its
values: `1*0` are the slices 4 and 6 of 8. The digits of a sequence are those of its elements one
after another, as each element cuts the slices of the one before it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache, reduce
from math import prod
from typing import Final

import numpy as np
from numpy.typing import NDArray

from primepar.errors import SequenceError
from primepar.plan.cost.sweeps import Moving, moving
from primepar.schedule.layout import Layout
from primepar.schedule.lowering import layout
from primepar.schedule.operators import Phase, tensor_dims
from primepar.schedule.sequence import Element, Sequence

Digits = NDArray[np.uint32]
ENDS: Final[dict[str, tuple[Phase, bool]]] = {
    "I": ("forward", False),
    "W": ("forward", False),
    "O": ("forward", True),
    "dI": ("backward", True),
}
"""Tensor -> the phase that defines its resident layout, and whether at the end of that phase."""


@dataclass(frozen=True, eq=False)
class Slices:
    """Slices of a dim that every device holds: those whose `fixed` digits have its values."""

    digits: int
    fixed: int
    values_D: Digits

    @classmethod
    def whole(cls, devices: int) -> Slices:
        """The dim uncut on every device."""
        return _shared(0, 0, bytes(4 * devices))

    @property
    def count(self) -> int:
        """Number of slices of the dim."""
        return 1 << self.digits

    @property
    def each(self) -> int:
        """Number of slices of one device."""
        return 1 << self.digits - self.fixed.bit_count()

    def then(self, inner: Slices) -> Slices:
        """Each slice cut again by the next element, on its devices; equal cuts share one object."""
        return _nested(self, inner)

    def held(self, device: int) -> list[int]:
        """The slices of one device."""
        value = int(self.values_D[device])
        return [index for index in range(self.count) if index & self.fixed == value]


@lru_cache(maxsize=1 << 10)
def _shared(digits: int, fixed: int, values: bytes) -> Slices:
    """The slices with these values; equal ones are one object."""
    return Slices(digits, fixed, np.frombuffer(values, np.uint32))


@lru_cache(maxsize=1 << 14)
def _nested(outer: Slices, inner: Slices) -> Slices:
    values = (outer.values_D[:, None] << np.uint32(inner.digits)) | inner.values_D
    fixed = outer.fixed << inner.digits | inner.fixed
    return Slices(outer.digits + inner.digits, fixed, values.ravel())


@dataclass(frozen=True, eq=False)
class Spread:
    """Slices of rows and of columns that every device holds."""

    rows: Slices
    columns: Slices

    @classmethod
    def whole(cls, devices: int = 1) -> Spread:
        """The whole tensor, replicated on every device."""
        return cls(Slices.whole(devices), Slices.whole(devices))

    @property
    def grid(self) -> tuple[int, int]:
        """Numbers of slices of the rows and of the columns."""
        return self.rows.count, self.columns.count

    def then(self, inner: Spread) -> Spread:
        """Every slice cut again by the next element, on its devices."""
        return Spread(self.rows.then(inner.rows), self.columns.then(inner.columns))

    def turned(self) -> Spread:
        """Rows and columns exchanged."""
        return Spread(self.columns, self.rows)


@lru_cache(maxsize=4096)
def element_spread(element: Element, tensor: str) -> Spread:
    """The resident layout of a tensor under one element, over its first and its last dim.

    Raises `SequenceError` where the blocks of a device are not a product of slices with common
    digits.
    """
    phase, last = ENDS[tensor]
    blocks_held = layout(moving(element).movement, phase, tensor, last=last)
    named = [dim for dim in tensor_dims(tensor) if dim in moving(element).sequence.grid]
    first, second = tensor_dims(tensor)[-2:]
    spread = Spread(*(_slices(blocks_held, named.index(dim)) if dim in named
                      else Slices.whole(blocks_held.ranks) for dim in (first, second)))  # fmt: skip
    blocks = spread.rows.each * spread.columns.each
    cut = [count for count in spread.grid if count > 1]
    if {len(blocks_of_rank) for blocks_of_rank in blocks_held.held} != {blocks} or [
        c for c in blocks_held.grid if c > 1
    ] != cut:
        raise SequenceError(
            f"expected slices of {first} by slices of {second} of {tensor} on every device, got "
            f"other blocks for {element.primitive.text(element.sides)}: this is not planned"
        )
    return spread


def _slices(layout: Layout, dim: int) -> Slices:
    """Slices of one dim on the devices; a superset of them where digits cannot describe them."""
    digits = (layout.grid[dim] - 1).bit_length()
    by_rank = [layout.slices(rank, dim) for rank in range(layout.ranks)]
    fixed = (1 << digits) - 1
    for slices in by_rank:
        for index in slices:
            fixed &= ~(index ^ slices[0])
    values = np.array([slices[0] & fixed for slices in by_rank], np.uint32)
    return _shared(digits, fixed, values.tobytes())


LINEAR: Final = ("I", "W", "O", "dI")
"""Tensors of a linear operator whose layouts a search needs."""


@dataclass(frozen=True, eq=False)
class Candidate:
    """One sequence over 2^n devices: its elements, and the blocks of its tensors by device."""

    elements: tuple[Element, ...]
    spreads: tuple[tuple[str, Spread], ...]

    @cached_property
    def places(self) -> tuple[tuple[Element, tuple[int, ...]], ...]:
        """Elements with their device bits; bit 0 is the outermost."""
        places, first = [], 0
        for element in self.elements:
            bits = device_bits(element)
            places.append((element, tuple(range(first, first + bits))))
            first += bits
        return tuple(places)

    @cached_property
    def _moved(self) -> range:
        """Places of the elements from the first to the last that is no cut."""
        movers = [place for place, (element, _) in enumerate(self.places)
                  if not moving(element).is_cut]  # fmt: skip
        return range(movers[0], movers[-1] + 1) if movers else range(0)

    @property
    def cuts(self) -> Iterator[tuple[Moving, tuple[int, ...]]]:
        """The cuts, each with its device bits, except those that `mover` includes."""
        for place, (element, bits) in enumerate(self.places):
            if place not in self._moved:
                yield moving(element), bits

    @property
    def steps(self) -> int:
        """Steps of a phase: the product over the elements."""
        return prod(element.steps for element, _ in self.places)

    @property
    def mover(self) -> tuple[Moving, tuple[int, ...]] | None:
        """The movement of the elements that are no cuts, with their device bits; None without any.

        Of several, the movement is that of all of them as one, with what is between them.
        """
        if not self._moved:
            return None
        places = [self.places[place] for place in self._moved]
        bits = tuple(bit for _, bits in places for bit in bits)
        return moving(*(element for element, _ in places)), bits

    @property
    def spread(self) -> dict[str, Spread]:
        """Tensor -> its resident layout between phases."""
        return dict(self.spreads)

    def then(self, element: Element) -> Candidate:
        """The sequence with one more element, on the next inner device bits."""
        spreads = (
            (tensor, spread.then(element_spread(element, tensor)))
            for tensor, spread in self.spreads
        )
        return Candidate((*self.elements, element), tuple(spreads))

    @cached_property
    def text(self) -> str:
        """Spelling with adjacent cuts of one dim merged: `K4` for `K2,K2`."""
        tokens: list[tuple[str, int]] = []
        for element in self.elements:
            label, cut = element.primitive.label, moving(element).is_cut
            if cut and tokens and tokens[-1][0] == label:
                tokens[-1] = label, len(element.devices) * tokens[-1][1]
            else:
                spelt = element.primitive.text(element.sides)
                tokens.append((label, len(element.devices)) if cut else (spelt, 0))
        return ",".join(f"{label}{side or ''}" for label, side in tokens)


def device_bits(element: Element) -> int:
    """Number of device bits that an element takes."""
    return len(element.devices).bit_length() - 1


def candidate_of(sequence: Sequence, *tensors: str) -> Candidate:
    """A sequence as a candidate; for a linear operator unless tensors are named.

    Raises `SequenceError` where its layouts are not those of digits of the devices' numbers.
    """
    return reduce(Candidate.then, sequence.elements, whole(*tensors))


def whole(*tensors: str) -> Candidate:
    """The empty sequence, for one device; for a linear operator unless tensors are named."""
    return Candidate((), tuple((tensor, Spread.whole()) for tensor in tensors or LINEAR))
