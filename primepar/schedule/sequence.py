"""Sequences of primitives with concrete sides: the dimension slice indices of every device.

A sequence composes its primitives as Algorithm 1 of PrimePar does: the first primitive takes the
leading digits of the device index and cuts every dim first, the next cuts each slice again. The
time index is nested, the first primitive's step being the outermost (ours: with the single `t`
of the published algorithm, two temporal primitives cover only some of the sub-operators).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Several
from copy import copy
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import chain, product, repeat
from math import prod
from typing import Any

from primepar.errors import PrimitiveError, SequenceError
from primepar.schedule.evidence import InvolvedDevice, MeshSides
from primepar.schedule.expression import evaluate
from primepar.schedule.operators import DIMS, HOMES, PHASES, Dim, Index, Linear, Phase, tensor_dims
from primepar.schedule.primitive import ANY, AnyDigit, Primitive, Slices
from primepar.schedule.tracing import Digits, formula, label_of, maps_of

# The digits of all slice indices on one mesh: each expression is evaluated once, on arrays.

Coordinates = tuple[int, ...]
SliceIndex = tuple[int | AnyDigit, ...]
"""A slice index as a map gives it; what is left out at the end is open too."""
Places = Several[tuple[Coordinates, int | None]]
"""Devices, each with a step or without one."""
MOST_SLICES = 1_000_000
"""An index beyond is a mistake in the map, and not worth counting up to."""


def steps_on(primitive: Primitive, sides: tuple[int, ...]) -> int:
    """Steps of a phase. Raises `PrimitiveError` if that is no positive integer."""
    steps = _evaluated(primitive, sides, "steps", maps_of(primitive).steps, {})
    if not isinstance(steps, int) or steps < 1:
        raise PrimitiveError(
            f"{label_of(primitive, 'steps')}: expected a positive integer, got {steps!r}"
        )
    return steps


def digits_on(
    primitive: Primitive, sides: tuple[int, ...], what: str, traced: Digits, places: Places
) -> list[dict[str, SliceIndex]]:
    """Dim -> digits of `traced`, for every place of the mesh with these sides.

    Raises `PrimitiveError` for the first digit that is no slice index; `what` names the map.
    """
    import numpy as np

    axes = zip(*(device for device, _ in places), strict=True)
    values = {axis: np.array(along) for axis, along in zip(primitive.axis_sides, axes, strict=True)}
    values["t"] = np.array([step for _, step in places])
    columns: list[list[SliceIndex]] = []
    for dim, index in traced.items():
        digits = []
        for digit in index:
            value = digit if digit is ANY else _evaluated(primitive, sides, what, digit, values)
            # `M=r` has a value for each place, `K=0` one for all of them.
            column: list[Any] = np.broadcast_to(np.asarray(value), len(places)).tolist()
            _check(primitive, sides, f"{what}: expected a slice index of {dim}", column, places)
            digits.append(column)
        columns.append(list(zip(*digits, strict=True)))
    rows = zip(*columns, strict=True) if columns else repeat((), len(places))
    return [dict(zip(traced, row, strict=True)) for row in rows]


def _evaluated(
    primitive: Primitive,
    sides: tuple[int, ...],
    what: str,
    traced: Any,
    values: Mapping[str, Any],
) -> Any:
    try:
        return evaluate(traced, {**values, **dict(zip(primitive.side_names, sides, strict=True))})
    except PrimitiveError as error:
        raise PrimitiveError(f"{label_of(primitive, what)}: {error}, sides {sides}") from None


def _check(
    primitive: Primitive, sides: tuple[int, ...], what: str, column: list[Any], places: Places
) -> None:
    for digit, (device, step) in zip(column, places, strict=True):
        if digit is ANY or 0 <= digit < MOST_SLICES:
            continue
        axes = zip(primitive.axis_sides, device, strict=True)
        place = [f"{axis}={value}" for axis, value in axes]
        place += [] if step is None else [f"t={step}"]
        bound = f"below {MOST_SLICES}" if digit >= MOST_SLICES else "that is 0 or more"
        raise PrimitiveError(
            f"{label_of(primitive, what)} {bound}, got {digit!r} at "
            f"{', '.join(place) or 'the device'}, sides {sides}: wrap it with % of the side"
        )


FlatSlices = dict[Dim, tuple[int, ...]]
"""Dim -> the slices of it that a rank works on, each counted through."""


def device_order(sides: tuple[int, ...]) -> list[Coordinates]:
    """Coordinates of the devices in rank order.

    Where all sides are the same power of two, the bits of the coordinates are interleaved, the
    first axis leading each group of bits (Algorithm 1); otherwise the order is row-major.
    """
    points = list(product(*(range(side) for side in sides)))
    # On 4 x 4 the device (r1 r0, c1 c0), in bits, has the rank r1 c1 r0 c0: ranks 0 to 3 are the
    # first quarter of the mesh.
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
    def axes(self) -> tuple[str, ...]:
        """The axes that devices are along: without the virtual ones."""
        virtual = self.primitive.virtual
        return tuple(axis for axis in self.primitive.axis_sides if axis not in virtual)

    @cached_property
    def axis_lengths(self) -> tuple[int, ...]:
        """Devices along each of `axes`."""
        return tuple(self._along[self.primitive.axis_sides[axis]] for axis in self.axes)

    @cached_property
    def devices(self) -> list[Coordinates]:
        """Coordinates of this element's devices, in the order of their part of the rank."""
        return device_order(self.axis_lengths)

    @cached_property
    def places(self) -> dict[Coordinates, list[Coordinates]]:
        """Device -> coordinates along all axes that are its own, several with a virtual axis."""
        axes, lengths = self.primitive.axis_sides, self._along
        places: dict[Coordinates, list[Coordinates]] = {device: [] for device in self.devices}
        for place in product(*(range(lengths[side]) for side in axes.values())):
            along = dict(zip(axes, place, strict=True))
            places[tuple(along[axis] for axis in self.axes)].append(place)
        return places

    @cached_property
    def _along(self) -> dict[str, int]:
        return dict(zip(self.primitive.side_names, self.sides, strict=True))

    @cached_property
    def steps(self) -> int:
        """Steps of a phase. Raises `PrimitiveError` if that is no positive integer."""
        return steps_on(self.primitive, self.sides)

    @cached_property
    def digits(self) -> dict[tuple[Phase, Coordinates, int], dict[str, SliceIndex]]:
        """Digits of every dim at each (phase, place, step)."""
        digits: dict[tuple[Phase, Coordinates, int], dict[str, SliceIndex]] = {}
        maps, every = maps_of(self.primitive), chain(*self.places.values())
        places = list(product(every, range(self.steps)))
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
        homes, every = maps_of(self.primitive).homes, [*chain(*self.places.values())]
        if not homes:
            return {
                (tensor, place): self.digits["forward", place, step]
                for tensor, step in (("I", 0), ("W", 0), ("O", self.steps - 1))
                for place in every
            }
        by_place: dict[tuple[str, Coordinates], dict[str, SliceIndex]] = {}
        places = [(place, None) for place in every]
        for tensor, traced in homes.items():
            what = f"home of {tensor}"
            digits = digits_on(self.primitive, self.sides, what, traced, places)
            keys = ((tensor, place) for place in every)
            by_place.update(zip(keys, digits, strict=True))
        return by_place

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
                        # The largest value that any map gives, plus 1: a digit has as many slices
                        # in all phases alike, or a block would be another one in each.
                        known[place] = max(known[place], digit + 1)
        return {dim: tuple(known) for dim, known in radices.items()}

    def slices(self, phase: Phase, device: Coordinates, step: int, dim: Dim) -> tuple[int, ...]:
        """Flat slices of `dim` that a device works on; all of them where the map leaves it open."""
        return self._slices[phase, device, step].get(dim, (0,))

    @cached_property
    def _slices(self) -> dict[tuple[Phase, Coordinates, int], FlatSlices]:
        known: dict[tuple[Dim, SliceIndex], tuple[int, ...]] = {}
        slices: dict[tuple[Phase, Coordinates, int], FlatSlices] = {}
        for phase, device, step in product(PHASES, self.devices, range(self.steps)):
            parts: list[FlatSlices] = []
            for place in self.places[device]:
                digits = self.digits[phase, place, step]
                parts.append({})
                for dim in self.radices:
                    index = dim, digits.get(dim, ())
                    if index not in known:
                        known[index] = self._whole(digits, dim)
                    parts[-1][dim] = known[index]
            slices[phase, device, step] = _united(parts)
        return slices

    def all_slices(self, phase: Phase, device: Coordinates, step: int) -> FlatSlices:
        """Dim -> flat slices that a device works on, of all dims that the primitive names."""
        return self._slices[phase, device, step]

    @cached_property
    def counts(self) -> dict[Dim, int]:
        """Dim -> number of slices, for those that the maps or homes name."""
        return {dim: prod(radices) for dim, radices in self.radices.items()}

    def home(self, tensor: str, device: Coordinates, dim: Dim) -> tuple[int, ...]:
        """Flat slices of `dim` of the resident blocks of `tensor` on a device."""
        return self._homes[tensor, device].get(dim, (0,))

    @cached_property
    def _homes(self) -> dict[tuple[str, Coordinates], FlatSlices]:
        homes: dict[tuple[str, Coordinates], FlatSlices] = {}
        for tensor, device in product(HOMES, self.devices):
            dims = [dim for dim in tensor_dims(tensor) if dim in self.radices]
            parts = [
                {dim: self._whole(self.home_digits[tensor, place], dim) for dim in dims}
                for place in self.places[device]
            ]
            homes[tensor, device] = _united(parts)
        return homes

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
        # A digit that a map leaves open is all of its slices: `M=r` with M=(r, t) in another phase
        # is the whole row r.
        left_out = (ANY,) * (len(radices) - len(given))
        choices = [
            (digit,) if isinstance(digit, int) else range(radix)
            for digit, radix in zip((*given, *left_out), radices, strict=True)
        ]
        return tuple(_flat(index, radices) for index in product(*choices))


def _united(parts: list[FlatSlices]) -> FlatSlices:
    """What all places of a device have: they differ in one dim for each virtual axis."""
    if len(parts) == 1:
        return parts[0]
    return {dim: tuple(sorted({*chain(*(part[dim] for part in parts))})) for dim in parts[0]}


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
        return numbered([axis for element in self.elements for axis in element.axes])

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
            # The first element cuts the dim, the next one each of its slices: slice 1 of 2, and 2
            # of 3 in it, is 1 * 3 + 2 of 6.
            flat = tuple(outer * radix + inner for outer in flat for inner in slices)
        return flat

    def _split(self, rank: int, step: int) -> Iterator[tuple[Element, Coordinates, int]]:
        """Each element with its device and its own step, for one rank and one nested step."""
        ranks, steps = self.ranks, self.steps
        for element in self.elements:
            ranks //= len(element.devices)
            steps //= element.steps
            # Outermost first: of 2 x 3 devices, rank 4 is device 1 of the first element and 1 of
            # the second.
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


# Sequences without lengths: primitives one inside the other, for every length of every side.
#
# A nested device is a tuple of devices, one of each member. A nested step is a tuple of steps, of
# which the innermost is fast, and a nested block is a tuple of blocks. So what holds for each
# member holds for the tuple, with one addition: an inner member begins its steps again at each
# step of an outer one. For example, in `P,P` with sides 2 the steps are (0, 0), (0, 1), (1, 0),
# (1, 1). From (0, 1) to (1, 0) the inner P goes from its last step to its first, and its blocks
# must be there again.

Sides = tuple[int, ...]


def as_member(primitive: Primitive, *, homes: bool) -> Primitive:
    """The primitive as a sequence reads it: without formulas, and with homes if others have some.

    Where it declares none, I and W stay where forward starts with them, and O where it ends.
    """
    kind = type(primitive)
    members: dict[str, Any] = {"sent": Primitive.sent, "held": Primitive.held}
    if homes and primitive.home is None:
        members["home"] = _at_first_use
    member = copy(primitive)
    member.__class__ = type(kind.__name__, (kind,), members)
    return member


def _at_first_use(primitive: Primitive, tensor: str, *args: Any) -> Slices:
    axes = len(primitive.axis_sides)
    device, sides = args[:axes], args[axes:]
    t = primitive.steps(*sides) - 1 if tensor == "O" else 0
    return primitive.forward(*device, t, *sides)


@dataclass(frozen=True)
class Nesting:
    """Primitives in order, outermost first, each on a mesh of any size.

    `names` is how messages name each.
    """

    members: tuple[Primitive, ...]
    names: tuple[str, ...]

    def of(self, sides: Sides) -> Sequence:
        """The sequence with these lengths, those of each member in turn."""
        elements, left = [], sides
        for member in self.members:
            count = len(member.side_names)
            elements.append(Element(member, left[:count]))
            left = left[count:]
        return Sequence(tuple(elements))

    @property
    def has_homes(self) -> bool:
        """Whether tensors return to declared homes, or stay where a phase leaves them."""
        return any(member.home is not None for member in self.members)

    @cached_property
    def read(self) -> tuple[Primitive, ...]:
        """The members as the sequence reads them: where one has homes, all have."""
        return tuple(as_member(member, homes=self.has_homes) for member in self.members)

    @cached_property
    def turns(self) -> tuple[bool, ...]:
        """Whether each member begins its steps again: if one outside of it has several.

        With resident layouts nothing depends on it: what a step needs is resident on some device.
        """
        several = [str(maps_of(member).steps) != "1" for member in self.members]
        return tuple(
            not self.has_homes and any(several[:place]) for place in range(len(self.members))
        )

    @cached_property
    def side_names(self) -> tuple[str, ...]:
        """Names of all sides, numbered where two members share a name."""
        return numbered([name for member in self.members for name in member.side_names])

    @property
    def scope(self) -> str:
        """What a proof is about, `every s1, s2 >= 1 (axes d: s1; r, c: s2)`."""
        if not self.side_names:
            return "one device"
        sides, axes = iter(self.side_names), iter(self._axes)
        along: dict[str, list[str]] = {}
        for member in self.members:
            names = dict(zip(member.side_names, sides, strict=False))
            for side in member.axis_sides.values():
                along.setdefault(names[side], []).append(next(axes))
        several = len(along) > 1
        listed = [", ".join(some) + f": {side}" * several for side, some in along.items()]
        word = "axis" if len(self._axes) == 1 else "axes"
        return f"every {', '.join(self.side_names)} >= 1 ({word} {'; '.join(listed)})"

    @property
    def _axes(self) -> tuple[str, ...]:
        axes = [(axis, member) for member in self.members for axis in member.axis_sides]
        names = numbered([axis for axis, _ in axes])
        return tuple(
            f"virtual {text}" if axis in member.virtual else text
            for text, (axis, member) in zip(names, axes, strict=True)
        )
