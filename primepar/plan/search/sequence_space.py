"""The sequences that a search chooses from, over 2^n devices.

A sequence is any number of cuts, each along one device bit, around at most one primitive that
moves, on any of the bits. The paper's own space has cuts of M, N and K and P on 2^k x 2^k devices;
`all` has every registered primitive on every mesh that it fits. Rows are one dim here, so the
paper's B is M. Operators that are not linear take a cut of rows or columns or a replica for every
bit; in `all` they may also lie as a moving primitive leaves O.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Several
from dataclasses import dataclass
from functools import cached_property, lru_cache, reduce
from itertools import groupby, permutations, product
from math import prod
from typing import Final, Literal

from primepar.errors import PrimitiveError, SequenceError
from primepar.models.graph import Operator
from primepar.partition.by_dimension import ByBatch, ByInput, ByOutput, BySequence, Replicated
from primepar.partition.primepar import PrimePar
from primepar.partition.registry import PRIMITIVES, parse_sequence
from primepar.plan.cost.device_slices import Spread, element_spread
from primepar.plan.cost.sweeps import Moving, moving
from primepar.schedule.primitive import Primitive
from primepar.schedule.sequence import Element

SpaceName = Literal["paper", "all"]
LINEAR: Final = ("I", "W", "O", "dI")
"""Tensors of a linear operator whose layouts a search needs."""
PAPER: Final[tuple[type[Primitive], ...]] = (BySequence, ByInput, ByOutput, PrimePar)
"""Primitives of the paper's space; B is M where the rows of all sequences are one dim."""


@dataclass(frozen=True, eq=False)
class Candidate:
    """One sequence over 2^n devices: its elements, each with the device bits that it takes."""

    elements: tuple[Element, ...]
    spreads: tuple[tuple[str, Spread], ...]

    @cached_property
    def places(self) -> tuple[tuple[Element, tuple[int, ...]], ...]:
        """Elements with their device bits, the outermost bit being 0."""
        found, at = [], 0
        for element in self.elements:
            bits = _bits(element)
            found.append((element, tuple(range(at, at + bits))))
            at += bits
        return tuple(found)

    @property
    def cuts(self) -> Iterator[tuple[Moving, tuple[int, ...]]]:
        """The cuts, each with its device bits."""
        for element, bits in self.places:
            if moving(element).is_cut:
                yield moving(element), bits

    @property
    def mover(self) -> tuple[Moving, tuple[int, ...]] | None:
        """The primitive that moves, with its device bits."""
        found = ((moving(e), bits) for e, bits in self.places if not moving(e).is_cut)
        return next(found, None)

    @property
    def spread(self) -> dict[str, Spread]:
        """Tensor -> where it lies between phases."""
        return dict(self.spreads)

    def then(self, element: Element) -> Candidate:
        """The sequence with one more element, inside."""
        spreads = ((each, own.then(element_spread(element, each))) for each, own in self.spreads)
        return Candidate((*self.elements, element), tuple(spreads))

    @cached_property
    def text(self) -> str:
        """Spelling with cuts of one dim side by side as one, `K2,K2` being `K4`."""
        tokens: list[tuple[str, int]] = []
        for element in self.elements:
            label, cut = element.primitive.label, moving(element).is_cut
            if cut and tokens and tokens[-1][0] == label:
                tokens[-1] = label, len(element.devices) * tokens[-1][1]
            else:
                spelt = element.primitive.text(element.sides)
                tokens.append((label, len(element.devices)) if cut else (spelt, 0))
        return ",".join(f"{label}{side or ''}" for label, side in tokens)


def _bits(element: Element) -> int:
    return len(element.devices).bit_length() - 1


def whole(*tensors: str) -> Candidate:
    """The sequence of one device, of a linear operator unless other tensors are named."""
    return Candidate((), tuple((each, Spread.whole()) for each in tensors or LINEAR))


@dataclass(frozen=True)
class SequenceSpace:
    """Sequences over 2^n devices, of which bits of one of the `levels` may change places.

    Of sequences whose cuts differ in that alone there is one. Where all levels are different, these
    are all sequences.
    """

    name: SpaceName
    levels: tuple[int, ...]

    @classmethod
    def whole(cls, name: SpaceName, bits: int) -> SequenceSpace:
        """All sequences over 2^`bits` devices."""
        return cls(name, tuple(range(bits)))

    def of(self, operator: Operator) -> tuple[Candidate, ...]:
        """Sequences of an operator."""
        return {"linear": self.linear, "embedding": self.summed}.get(operator.kind) or self.local

    @cached_property
    def linear(self) -> tuple[Candidate, ...]:
        """Sequences of a linear operator."""
        kinds = PAPER if self.name == "paper" else tuple(PRIMITIVES.values())
        elements = [each for k in range(1, len(self.levels) + 1) for each in _elements(kinds, k)]
        cuts = [each for each in elements if moving(each).is_cut and _bits(each) == 1]
        movers = [each for each in elements if not moving(each).is_cut]
        return tuple(_grown(self.levels, cuts, movers, whole()))

    @cached_property
    def local(self) -> tuple[Candidate, ...]:
        """Sequences of an operator that is not linear, one for each layout."""
        movers = []
        if self.name == "all":
            known = tuple(PRIMITIVES.values())
            elements = (each for k in range(1, len(self.levels) + 1)
                        for each in _elements(known, k))  # fmt: skip
            movers = [each for each in elements if not moving(each).is_cut and _lies(each)]
        return tuple(_grown(self.levels, _plain(), movers, whole("O")))

    @cached_property
    def summed(self) -> tuple[Candidate, ...]:
        """Sequences of an operator that is summed over a dim, as the embedding's vocabulary."""
        return tuple(_grown(self.levels, _plain(ByInput), (), whole("O")))


@lru_cache(maxsize=2)
def _plain(*others: type[Primitive]) -> tuple[Element, ...]:
    kinds: list[type[Primitive]] = [BySequence, ByOutput, Replicated, *others]
    return tuple(Element(kind(), (2,)) for kind in kinds)


def _lies(element: Element) -> bool:
    """Whether O lies in one block on every device."""
    return all(len(held) == 1 for held in moving(element).movement.end("forward", "O"))


def _grown(
    levels: tuple[int, ...], cuts: Several[Element], movers: Iterable[Element], start: Candidate,
    first: int = 0,
) -> Iterator[Candidate]:  # fmt: skip
    """Every sequence of cuts with at most one mover, by their prefixes.

    Cuts side by side that take bits of one level are in the order of `cuts`.
    """
    if not levels:
        yield start
        return
    alike = levels[:1] == levels[1:2]
    for at, element in enumerate(cuts[first:], first):
        after = at if alike else 0
        yield from _grown(levels[1:], cuts, movers, start.then(element), after)
    for element in movers:
        if _bits(element) <= len(levels):
            yield from _grown(levels[_bits(element) :], cuts, (), start.then(element))


def orders(candidate: Candidate, levels: Several[int]) -> Iterator[Candidate]:
    """The sequence with cuts that take bits of one level in one order of cuts, for every order."""

    def level(place: tuple[Element, tuple[int, ...]]) -> int | None:
        element, bits = place
        return levels[bits[0]] if moving(element).is_cut else None

    runs = [[each for each, _ in run] for _, run in groupby(candidate.places, key=level)]
    cuts = dict.fromkeys(each for run in runs for each in run if moving(each).is_cut)
    found = dict.fromkeys(
        tuple(each for run in runs for each in (sorted(run, key=order.index) if run[1:] else run))
        for order in permutations(cuts)
    )
    for elements in found:
        yield reduce(Candidate.then, elements, whole(*candidate.spread))


@lru_cache(maxsize=64)
def _elements(kinds: tuple[type[Primitive], ...], bits: int) -> tuple[Element, ...]:
    """Elements of these primitives on 2^`bits` devices, one of those that do the same."""
    found: dict[object, Element] = {}
    for kind in kinds:
        if kind is ByBatch:
            continue
        primitive = kind()
        powers = [1 << k for k in range(bits + 1)]
        for sides in product(powers, repeat=len(primitive.side_names)):
            element = Element(primitive, sides)
            if prod(element.axis_lengths) == 1 << bits and _known(element):
                found.setdefault(moving(element).behaviour, element)
    return tuple(found.values())


def _known(element: Element) -> bool:
    """Whether the element's spelling is its own, and its layouts are ones that can be planned."""
    spelt = element.primitive.text(element.sides)
    try:
        (parsed,) = parse_sequence(spelt).elements
        for tensor in LINEAR:
            element_spread(element, tensor)
    except (SequenceError, PrimitiveError):
        return False
    return type(parsed.primitive) is type(element.primitive) and parsed.sides == element.sides
