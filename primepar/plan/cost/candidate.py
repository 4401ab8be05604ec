"""A candidate: one sequence over 2^n devices, with the places of its elements and its layouts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, reduce
from math import prod
from typing import Final

from primepar.plan.cost.device_slices import Spread, element_spread
from primepar.plan.cost.sweeps import Moving, moving
from primepar.schedule.sequence import Element, Sequence

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
