"""A candidate: one sequence over 2^n devices, with the places of its elements and its layouts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Final

from primepar.plan.cost.device_slices import Spread, element_spread
from primepar.plan.cost.sweeps import Moving, moving
from primepar.schedule.sequence import Element

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

    @property
    def cuts(self) -> Iterator[tuple[Moving, tuple[int, ...]]]:
        """The cuts, each with its device bits."""
        for element, bits in self.places:
            if moving(element).is_cut:
                yield moving(element), bits

    @property
    def steps(self) -> int:
        """Steps of a phase: the product over the elements."""
        return prod(element.steps for element, _ in self.places)

    @property
    def mover(self) -> tuple[Moving, tuple[int, ...]] | None:
        """The primitive that is no cut, with its device bits; None where all are cuts."""
        movers = ((moving(e), bits) for e, bits in self.places if not moving(e).is_cut)
        return next(movers, None)

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


def whole(*tensors: str) -> Candidate:
    """The empty sequence, for one device; for a linear operator unless tensors are named."""
    return Candidate((), tuple((tensor, Spread.whole()) for tensor in tensors or LINEAR))
