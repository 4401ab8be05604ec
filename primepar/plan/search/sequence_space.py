"""The sequences that a search chooses from, over 2^n devices.

A sequence is any number of cuts, each along one device bit, and at most one primitive with several
steps or gathers, on any of the bits. The space `paper` has cuts of M, N and K, and P on 2^k x 2^k
devices. `all` has every registered primitive but grids, and `grids` these too, on every mesh that
it fits. Rows are one dim here, so the paper's B is M. Operators that are not linear shard rows,
shard columns or replicate along each bit; in `all` and `grids` they may also have the layout in
which such a primitive leaves O.

A question may fix degrees of parallelism, as --tp 4, in the words of Megatron (`Axes`). A linear
operator of a layer has its rows cut in some slices, and each slice has a number of devices that
divide its products in other ways: tensor parallelism. Slices of whole sequences are data
parallelism, and parts of one sequence are context parallelism. Example: eight sequences under
`M4,K2` are four copies of two devices, `--dp 4 --tp 2`. One sequence under it is in four parts,
`--cp 4 --tp 2`. Other operators are free: a norm of sequence parallelism has rows on all devices.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Several
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import product
from math import gcd, prod
from typing import Final, Literal, NamedTuple

from primepar.errors import ConfigError, PrimitiveError, SequenceError
from primepar.models.graph import Operator
from primepar.partition.by_dimension import ByBatch, ByInput, ByOutput, BySequence, Replicated
from primepar.partition.grid import GridKept
from primepar.partition.primepar import PrimePar
from primepar.partition.registry import PRIMITIVES, parse_sequence
from primepar.partition.summa import SummaDeep
from primepar.plan.cost.candidate import LINEAR, Candidate, device_bits, element_spread, whole
from primepar.plan.cost.sweeps import moving
from primepar.schedule.primitive import Primitive
from primepar.schedule.sequence import Element

SpaceName = Literal["paper", "all", "grids"]
PAPER: Final[tuple[type[Primitive], ...]] = (BySequence, ByInput, ByOutput, PrimePar)
"""Primitives of the paper's space; B is M where the rows of all sequences are one dim."""

CUTS: Final[tuple[type[Primitive], ...]] = (BySequence, ByInput, ByOutput, Replicated)
"""Primitives that only cut a dim, or nothing."""


@dataclass(frozen=True)
class SequenceSpace:
    """Sequences over 2^n devices, up to permutations of the device bits of one level of links.

    `levels` has the level of every device bit. Of sequences that differ only by such a permutation
    of their cuts there is one. Where all levels are different, these are all sequences.
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
        kinds = _searched(self.name)
        elements = [
            element for k in range(1, len(self.levels) + 1) for element in _elements(kinds, k)
        ]
        cuts = [
            element for element in elements if moving(element).is_cut and device_bits(element) == 1
        ]
        movers = [element for element in elements if not moving(element).is_cut]
        return tuple(_grown(self.levels, cuts, movers, whole()))

    @cached_property
    def local(self) -> tuple[Candidate, ...]:
        """Sequences of an operator that is not linear, one for each layout."""
        return tuple(_grown(self.levels, _plain(), self._with_one_block, whole("O")))

    @cached_property
    def _with_one_block(self) -> tuple[Element, ...]:
        """Elements that are no cuts and leave one block of O on every device."""
        if self.name == "paper":
            return ()
        elements = (element for k in range(1, len(self.levels) + 1)
                    for element in _elements(_searched(self.name), k))  # fmt: skip
        return tuple(element for element in elements
                     if not moving(element).is_cut and _has_one_block_of_o(element))  # fmt: skip

    @cached_property
    def summed(self) -> tuple[Candidate, ...]:
        """Sequences of an operator that is summed over a dim, as the embedding's vocabulary."""
        return tuple(_grown(self.levels, _plain(ByInput), self._with_one_block, whole("O")))


def allows(slices: frozenset[int] | None, operator: Operator, candidate: Candidate) -> bool:
    """Whether an operator may have a sequence; linear ones of layers have these slices of rows."""
    if slices is None or operator.kind != "linear" or operator.name == "head":
        return True
    cuts = (element for element in candidate.elements if isinstance(element.primitive, BySequence))
    return 1 << sum(map(device_bits, cuts)) in slices


def _searched(name: SpaceName) -> tuple[type[Primitive], ...]:
    """Primitives of a space; that with grids is three times as large as `all`."""
    if name == "paper":
        return PAPER
    every = tuple(PRIMITIVES.values())
    grids = (GridKept, SummaDeep)
    return every if name == "grids" else tuple(k for k in every if not issubclass(k, grids))


@lru_cache(maxsize=2)
def _plain(*others: type[Primitive]) -> tuple[Element, ...]:
    kinds: list[type[Primitive]] = [BySequence, ByOutput, Replicated, *others]
    return tuple(Element(kind(), (2,)) for kind in kinds)


def _has_one_block_of_o(element: Element) -> bool:
    """Whether every device holds one block of O after forward."""
    return all(len(held) == 1 for held in moving(element).movement.end("forward", "O"))


def _grown(
    levels: tuple[int, ...], cuts: Several[Element], movers: Iterable[Element], start: Candidate,
    first: int = 0,
) -> Iterator[Candidate]:  # fmt: skip
    """Every sequence of cuts with at most one of `movers`, grown from the prefix `start`.

    Adjacent cuts on bits of one level are in the order of `cuts`.
    """
    if not levels:
        yield start
        return
    alike = levels[:1] == levels[1:2]
    for number, element in enumerate(cuts[first:], first):
        after = number if alike else 0
        yield from _grown(levels[1:], cuts, movers, start.then(element), after)
    for element in movers:
        if device_bits(element) <= len(levels):
            yield from _grown(levels[device_bits(element) :], cuts, (), start.then(element))


@lru_cache(maxsize=64)
def _elements(kinds: tuple[type[Primitive], ...], bits: int) -> tuple[Element, ...]:
    """Elements of these primitives on 2^`bits` devices; one of those with equal behaviour.

    Cuts are those on one bit: on more, several of them are the same.
    """
    elements: dict[object, Element] = {}
    for kind in kinds:
        if kind is ByBatch or kind.virtual or (bits > 1 and kind in CUTS):
            continue  # a space counts cuts in bits of the devices, and a virtual axis is none
        primitive = kind()
        powers = [1 << k for k in range(bits + 1)]
        for sides in product(powers, repeat=len(primitive.side_names)):
            element = Element(primitive, sides)
            if prod(element.axis_lengths) == 1 << bits and _known(element):
                elements.setdefault(moving(element).behaviour, element)
    return tuple(elements.values())


def _known(element: Element) -> bool:
    """Whether the spelling parses to the same element, and its layouts can be planned."""
    spelt = element.primitive.text(element.sides)
    try:
        (parsed,) = parse_sequence(spelt).elements
        for tensor in LINEAR:
            element_spread(element, tensor)
    except (SequenceError, PrimitiveError):
        return False
    return type(parsed.primitive) is type(element.primitive) and parsed.sides == element.sides


class Axes(NamedTuple):
    """Devices along each axis; None where the search chooses."""

    tp: int | None = None
    pp: int | None = None
    dp: int | None = None
    cp: int | None = None

    def slices(self, devices: int, sequences: int, replicas: int = 1) -> frozenset[int] | None:
        """Slices of the rows of `sequences` on a power of two of devices; None for any number.

        There may be several `replicas` of these devices and sequences.
        """
        if (self.tp, self.dp, self.cp) == (None, None, None):
            return None
        allowed, slices = list[int](), 1
        while slices <= devices:
            whole = gcd(slices, sequences)
            degrees = devices // slices, replicas * whole, slices // whole
            asked = self.tp, self.dp, self.cp
            if all(want in (None, degree) for want, degree in zip(asked, degrees, strict=True)):
                allowed.append(slices)
            slices *= 2
        return frozenset(allowed)

    def refusal(self, devices: int, batch: int) -> ConfigError:
        """The error for devices that have no such axes."""
        given = [f"--{axis} {size}" for axis, size in self._asdict().items() if size is not None]
        return ConfigError(
            f"{given[0].partition(' ')[0]}: expected degrees that multiply to the {devices} "
            f"devices, of which --dp divides the batch of {batch}, got {' '.join(given)}: leave "
            "one out"
        )


FREE = Axes()
"""No axis is fixed."""
