"""Sequences of primitives with concrete sides: the dimension slice indices of every device.

A sequence composes its primitives as Algorithm 1 of PrimePar does: the first primitive takes the
leading digits of the device index and cuts every dim first, the next cuts each slice again. The
time index is nested, the first primitive's step being the outermost (ours: with the single `t`
of the published algorithm, two temporal primitives cover only some of the sub-operators).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import product
from math import prod

from primepar.errors import PrimitiveError, SequenceError
from primepar.schedule.evidence import InvolvedDevice, MeshSides
from primepar.schedule.expression import evaluate
from primepar.schedule.mesh_digits import Coordinates as Coordinates
from primepar.schedule.mesh_digits import SliceIndex, digits_on, steps_on
from primepar.schedule.operators import DIMS, PHASES, Dim, Index, Linear, Phase, tensor_dims
from primepar.schedule.primitive import ANY, Primitive
from primepar.schedule.tracing import formula, maps_of

FlatSlices = dict[Dim, tuple[int, ...]]
"""Dim -> the slices of it that a rank works on, each counted through."""


def device_order(sides: tuple[int, ...]) -> list[Coordinates]:
    """Coordinates of the devices in rank order.

    Where all sides are the same power of two, the bits of the coordinates are interleaved, the
    first axis leading each group of bits (Algorithm 1); otherwise the order is row-major.
    """
    points = list(product(*(range(side) for side in sides)))
    bits = sides[0].bit_length() - 1 if sides else 0
    if len(set(sides)) == 1 and sides[0] == 1 << bits:
        points.sort(key=lambda point: _interleaved(point, bits))
    return points


def _interleaved(point: Coordinates, bits: int) -> int:
    digits = [(axis >> bit) & 1 for bit in reversed(range(bits)) for axis in point]
    return int("".join(map(str, digits)) or "0", 2)


@dataclass(frozen=True)
class Element:
    """One primitive of a sequence with the length of each of its sides."""

    primitive: Primitive
    sides: tuple[int, ...]

    def __post_init__(self) -> None:
        names = self.primitive.side_names
        if len(names) != len(self.sides) or any(side < 1 for side in self.sides):
            raise SequenceError(
                f"{type(self.primitive).__name__}: expected one positive length per side "
                f"({', '.join(names) or 'none'}), got {self.sides}"
            )

    @cached_property
    def axis_lengths(self) -> tuple[int, ...]:
        """Devices along each axis."""
        by_name = dict(zip(self.primitive.side_names, self.sides, strict=True))
        return tuple(by_name[side] for side in self.primitive.axis_sides.values())

    @cached_property
    def devices(self) -> list[Coordinates]:
        """Coordinates of this element's devices, in the order of their part of the rank."""
        return device_order(self.axis_lengths)

    @cached_property
    def _along(self) -> dict[str, int]:
        return dict(zip(self.primitive.side_names, self.sides, strict=True))

    @cached_property
    def steps(self) -> int:
        """Steps of a phase. Raises `PrimitiveError` if that is no positive integer."""
        return steps_on(self.primitive, self.sides)

    @cached_property
    def digits(self) -> dict[tuple[Phase, Coordinates, int], dict[str, SliceIndex]]:
        """Digits of every dim at each (phase, device, step)."""
        digits: dict[tuple[Phase, Coordinates, int], dict[str, SliceIndex]] = {}
        maps, places = maps_of(self.primitive), list(product(self.devices, range(self.steps)))
        known: dict[int, list[dict[str, SliceIndex]]] = {}
        for phase in PHASES:
            traced = maps.phases[phase]
            if id(traced) not in known:
                known[id(traced)] = digits_on(self.primitive, self.sides, phase, traced, places)
            keys = ((phase, *place) for place in places)
            digits.update(zip(keys, known[id(traced)], strict=True))
        return digits

    @cached_property
    def home_digits(self) -> dict[tuple[str, Coordinates], dict[str, SliceIndex]]:
        """Digits of each tensor's home: as declared, or where forward has it where nothing is."""
        homes = maps_of(self.primitive).homes
        if not homes:
            return {
                (tensor, device): self.digits["forward", device, step]
                for tensor, step in (("I", 0), ("W", 0), ("O", self.steps - 1))
                for device in self.devices
            }
        by_device: dict[tuple[str, Coordinates], dict[str, SliceIndex]] = {}
        places = [(device, None) for device in self.devices]
        for tensor, traced in homes.items():
            what = f"home of {tensor}"
            digits = digits_on(self.primitive, self.sides, what, traced, places)
            keys = ((tensor, device) for device in self.devices)
            by_device.update(zip(keys, digits, strict=True))
        return by_device

    @cached_property
    def radices(self) -> dict[str, Index]:
        """Dim -> number of slices of each digit, over all phases, devices, steps and homes."""
        indices: dict[str, set[SliceIndex]] = {}
        for digits in (*self.digits.values(), *self.home_digits.values()):
            for dim, index in digits.items():
                indices.setdefault(dim, set()).add(index)
        radices: dict[str, list[int]] = {}
        for dim, every in indices.items():
            known = radices[dim] = [1] * max(map(len, every))
            for index in every:
                for place, digit in enumerate(index):
                    if isinstance(digit, int):
                        known[place] = max(known[place], digit + 1)
        return {dim: tuple(known) for dim, known in radices.items()}

    def slices(self, phase: Phase, device: Coordinates, step: int, dim: Dim) -> tuple[int, ...]:
        """Flat slices of `dim` that a device works on; all of them where the map leaves it open."""
        return self._slices[phase, device, step].get(dim, (0,))

    @cached_property
    def _slices(self) -> dict[tuple[Phase, Coordinates, int], FlatSlices]:
        known: dict[tuple[Dim, SliceIndex], tuple[int, ...]] = {}
        slices: dict[tuple[Phase, Coordinates, int], FlatSlices] = {}
        for key, digits in self.digits.items():
            slices[key] = {}
            for dim in self.radices:
                index = dim, digits.get(dim, ())
                if index not in known:
                    known[index] = self._whole(digits, dim)
                slices[key][dim] = known[index]
        return slices

    def all_slices(self, phase: Phase, device: Coordinates, step: int) -> FlatSlices:
        """Dim -> flat slices that a device works on, of all dims that the primitive names."""
        return self._slices[phase, device, step]

    @cached_property
    def counts(self) -> dict[Dim, int]:
        """Dim -> number of slices, for those that the maps or homes name."""
        return {dim: prod(radices) for dim, radices in self.radices.items()}

    def home(self, tensor: str, device: Coordinates, dim: Dim) -> tuple[int, ...]:
        """Flat slices of `dim` of the resident block of `tensor` on a device."""
        return self._whole(self.home_digits[tensor, device], dim)

    def sent(self, operator: Linear) -> Fraction | None:
        """Elements that leave each device in a training step, by the primitive's own formula."""
        return self._amount("sent", operator)

    def held(self, operator: Linear) -> Fraction | None:
        """Elements live at once on a device at most, by the primitive's own formula."""
        return self._amount("held", operator)

    def _amount(self, method: str, operator: Linear) -> Fraction | None:
        rows = operator.B * operator.M
        sizes = {"M": Fraction(rows), "N": Fraction(operator.N), "K": Fraction(operator.K)}
        kind = type(self.primitive).__name__
        place = f"M={rows} N={operator.N} K={operator.K}, sides {self.sides}"
        traced = formula(self.primitive, method)
        if traced is None:
            return None
        try:
            sides = {name: Fraction(side) for name, side in self._along.items()}
            amount = Fraction(evaluate(traced, {**sizes, **sides}))
        except ArithmeticError as error:
            raise PrimitiveError(
                f"{kind}.{method}: expected an amount, got {type(error).__name__}: {error}, "
                f"for {place}"
            ) from None
        if amount < 0:
            raise PrimitiveError(
                f"{kind}.{method}: expected 0 elements or more, got {amount} for {place}: "
                "correct the formula"
            )
        return amount

    def _whole(self, digits: dict[str, SliceIndex], dim: Dim) -> tuple[int, ...]:
        radices, given = self.radices.get(dim, ()), digits.get(dim, ())
        left_out = (ANY,) * (len(radices) - len(given))
        choices = [
            (digit,) if isinstance(digit, int) else range(radix)
            for digit, radix in zip((*given, *left_out), radices, strict=True)
        ]
        return tuple(_flat(index, radices) for index in product(*choices))


def _flat(digits: Index, radices: Index) -> int:
    flat = 0
    for digit, radix in zip(digits, radices, strict=True):
        flat = flat * radix + digit
    return flat


def numbered(names: list[str]) -> tuple[str, ...]:
    """The names, those that come more than once with a number behind them."""
    return tuple(
        f"{name}{names[:place].count(name) + 1}" if names.count(name) > 1 else name
        for place, name in enumerate(names)
    )


@dataclass(frozen=True)
class Sequence:
    """A partition of the linear operator over a mesh: primitives in order, outermost first."""

    elements: tuple[Element, ...]

    @classmethod
    def of(cls, primitive: Primitive, *sides: int) -> Sequence:
        """The sequence of one primitive."""
        return cls((Element(primitive, sides),))

    def __str__(self) -> str:
        return self._text

    @cached_property
    def _text(self) -> str:
        return ",".join(element.primitive.text(element.sides) for element in self.elements)

    @cached_property
    def ranks(self) -> int:
        """Number of devices."""
        return prod(len(element.devices) for element in self.elements)

    @cached_property
    def steps(self) -> int:
        """Steps of a phase: the product over the elements."""
        return prod(element.steps for element in self.elements)

    @cached_property
    def axes(self) -> tuple[str, ...]:
        """Names of all axes, numbered where two elements share a name."""
        return numbered(
            [axis for element in self.elements for axis in element.primitive.axis_sides]
        )

    @cached_property
    def axis_lengths(self) -> tuple[int, ...]:
        """Devices along each of `axes`."""
        return tuple(length for element in self.elements for length in element.axis_lengths)

    @cached_property
    def coordinates(self) -> list[Coordinates]:
        """Coordinates of every rank along `axes`."""
        parts = product(*(element.devices for element in self.elements))
        return [tuple(axis for part in device for axis in part) for device in parts]

    @cached_property
    def grid(self) -> dict[Dim, int]:
        """Dim -> number of slices; `B` only where the sequence names it."""
        slices = {
            dim: prod(element.counts.get(dim, 1) for element in self.elements) for dim in DIMS
        }
        named = {dim for element in self.elements for dim in element.counts}
        return {dim: count for dim, count in slices.items() if dim != "B" or dim in named}

    @property
    def mesh(self) -> MeshSides:
        """The sides and the axes as evidence; names that several members share are numbered."""
        names = [name for element in self.elements for name in element.primitive.side_names]
        sides = [length for element in self.elements for length in element.sides]
        return MeshSides(
            dict(zip(numbered(names), sides, strict=True)),
            dict(zip(self.axes, self.axis_lengths, strict=True)),
        )

    def device(self, rank: int, step: int | None = None) -> InvolvedDevice:
        """A device as evidence, at a step."""
        return InvolvedDevice(rank, dict(zip(self.axes, self.coordinates[rank], strict=True)), step)

    def place(self, rank: int) -> str:
        """How messages name a device, `device 2 (r=1, c=0)`."""
        return str(self.device(rank))

    @property
    def has_homes(self) -> bool:
        """Whether tensors return to declared homes, or stay where a phase leaves them."""
        return any(element.primitive.home is not None for element in self.elements)

    @property
    def keeps(self) -> frozenset[str]:
        """Operands whose copies are kept from forward for the later phases."""
        return frozenset(name for element in self.elements for name in element.primitive.keeps)

    def slices(self, phase: Phase, rank: int, step: int) -> FlatSlices:
        """Dim -> slices that `rank` works on at `step`: the DSIs of PrimePar, section 3.1."""
        if len(self.elements) == 1:
            (element,) = self.elements
            slices = element.all_slices(phase, element.devices[rank], step)
            return {dim: slices.get(dim, (0,)) for dim in self.grid}
        parts = list(self._split(rank, step))
        return {
            dim: self._compose(
                dim, [element.slices(phase, device, inner, dim) for element, device, inner in parts]
            )
            for dim in self.grid
        }

    def _compose(self, dim: Dim, parts: list[tuple[int, ...]]) -> tuple[int, ...]:
        """Each element's slices cut by the next element's."""
        flat: tuple[int, ...] = (0,)
        for element, slices in zip(self.elements, parts, strict=True):
            radix = element.counts.get(dim, 1)
            flat = tuple(outer * radix + inner for outer in flat for inner in slices)
        return flat

    def _split(self, rank: int, step: int) -> Iterator[tuple[Element, Coordinates, int]]:
        """Each element with its device and its own step, for one rank and one nested step."""
        ranks, steps = self.ranks, self.steps
        for element in self.elements:
            ranks //= len(element.devices)
            steps //= element.steps
            device, rank = divmod(rank, ranks)
            inner_step, step = divmod(step, steps)
            yield element, element.devices[device], inner_step

    def home(self, tensor: str, rank: int) -> tuple[Index, ...]:
        """Resident blocks of `tensor` on `rank`; a gradient has the home of its tensor."""
        base = tensor.removeprefix("d")
        parts = list(self._split(rank, 0))
        slices = [
            self._compose(dim, [element.home(base, device, dim) for element, device, _ in parts])
            for dim in tensor_dims(tensor)
            if dim in self.grid
        ]
        return tuple(product(*slices))
