"""Guesses from concrete sides: how many slices there are, and where each block comes from.

Nothing here is trusted. A guess names what to prove, and Z3 proves it or does not: a wrong one
costs a proof and never gives a wrong verdict.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from itertools import product
from math import prod
from typing import TypeVar

from primepar.schedule.movement import NEXT_USE
from primepar.schedule.operators import PHASES, PRODUCTS, Phase, tensor_dims
from primepar.schedule.primitive import ANY, Primitive, call_map
from primepar.schedule.sequence import Coordinates, Element, SliceIndex
from primepar.verify.fit_sender import FitError, Row, Sender
from primepar.verify.primitive_affine import Affine

Digits = tuple[SliceIndex, ...]
"""A block, or all the blocks that share these digits: for each dim those that the map names."""

MOST_DEVICES = 130
MOST_POINTS = 130
"""Devices times steps of the base mesh, where its sides are more than 3."""


@dataclass(frozen=True)
class Transition:
    """Where a tensor lies at one moment of a phase and at the next, within a phase or between two.

    `proves` is the property that holds if it can be made; `may_hop` allows blocks to be sent.
    """

    proves: str
    phase: Phase
    tensor: str
    following: Phase | None
    next_tensor: str
    may_hop: bool

    @property
    def is_partial(self) -> bool:
        """Whether the blocks are sums that are not finished."""
        return self.following is None and PRODUCTS[self.phase].writes == self.tensor


def transitions() -> tuple[Transition, ...]:
    """All that a primitive has: between steps for every tensor, and between phases."""
    within = [
        Transition(
            "completion" if tensor == phase_product.writes else "placement",
            phase, tensor, None, tensor, may_hop=True,
        )
        for phase, phase_product in PRODUCTS.items()
        for tensor in (*phase_product.reads, phase_product.writes)
    ]  # fmt: skip
    between = [
        Transition("alignment", phase, tensor, following, tensor, may_hop=True)
        for (phase, tensor), following in NEXT_USE.items()
    ]
    resting = [
        Transition("alignment", "forward", "O", "backward", "dO", may_hop=False),
        Transition("alignment", "gradient", "dW", "forward", "W", may_hop=False),
    ]
    return (*within, *between, *resting)


@dataclass(frozen=True)
class Span:
    """From step `first` until the next span, blocks come from `sender` or, where None, stay."""

    first: Affine
    sender: Sender | None


def distance(source: Coordinates, target: Coordinates, lengths: Coordinates) -> tuple[int, ...]:
    """Order on holders: fewest axes crossed, shortest way round, then one direction."""
    triples = zip(source, target, lengths, strict=True)
    offset = [(there - here) % length for there, here, length in triples]
    around = [min(step, length - step) for step, length in zip(offset, lengths, strict=True)]
    return (sum(step != 0 for step in offset), sum(around), *offset)


@dataclass(frozen=True)
class Sample:
    """A primitive on one concrete mesh."""

    element: Element
    _known: dict[Transition, list[Sender | None]] = field(
        default_factory=dict, repr=False, compare=False
    )

    @cached_property
    def longer(self) -> list[Sample]:
        """Samples of which every side is longer by 1 than here, if they are not too large."""
        primitive, sides = self.element.primitive, [side + 1 for side in self.element.sides]
        meshes = [
            sides,
            *([*sides[:at], side + 1, *sides[at + 1 :]] for at, side in enumerate(sides)),
        ]
        elements = [Element(primitive, tuple(mesh)) for mesh in meshes]
        small = all(prod(element.axis_lengths) <= MOST_DEVICES for element in elements)
        return [Sample(element) for element in elements] if small else []

    @property
    def lengths(self) -> Coordinates:
        """Devices along each axis."""
        return self.element.axis_lengths

    @cached_property
    def devices(self) -> list[Coordinates]:
        """Coordinates of all devices, row-major."""
        return list(product(*map(range, self.lengths)))

    def digits(self, phase: Phase, tensor: str, device: Coordinates, step: int) -> Digits:
        """The digits of a tensor's block that the map names."""
        return self._digits[phase, tensor][device, step]

    @cached_property
    def _digits(self) -> dict[tuple[Phase, str], dict[tuple[Coordinates, int], Digits]]:
        found: dict[tuple[Phase, str], dict[tuple[Coordinates, int], Digits]] = {
            (phase, tensor): {}
            for phase, made in PRODUCTS.items()
            for tensor in (*made.reads, made.writes)
        }
        dims = {tensor: tensor_dims(tensor) for _, tensor in found}
        for (phase, device, step), named in self._slices.items():
            made = PRODUCTS[phase]
            for tensor in (*made.reads, made.writes):
                block = tuple([named.get(dim, ()) for dim in dims[tensor]])
                found[phase, tensor][device, step] = block
        return found

    @cached_property
    def _slices(self) -> dict[tuple[Phase, Coordinates, int], dict[str, SliceIndex]]:
        element = self.element
        return {
            (phase, device, step): call_map(element.primitive, phase, device, step, element.sides)
            for phase in PHASES
            for device in self.devices
            for step in range(element.steps)
        }

    def moves(self, transition: Transition) -> list[Sender | None]:
        """The sender for every step, or the one between phases; None where nothing moves.

        Raises `FitError` if a block is nowhere or no one rule gives all senders.
        """
        if transition not in self._known:
            steps = self.element.steps
            pairs = [(t, t + 1) for t in range(steps - 1)]
            if transition.following is not None:
                pairs = [(steps - 1, 0)]
            self._known[transition] = [self._move(transition, *pair) for pair in pairs]
        return self._known[transition]

    def rests(self, transition: Transition) -> bool:
        """Whether a block that one device leaves is never the next of another one."""
        phase, tensor = transition.phase, transition.tensor
        for t in range(self.element.steps - 1):
            steps = [(self.digits(phase, tensor, d, t), self.digits(phase, tensor, d, t + 1))
                     for d in self.devices]  # fmt: skip
            left = {before for before, after in steps if before != after}
            if not left.isdisjoint(after for before, after in steps if before != after):
                return False
        return True

    def _move(self, transition: Transition, step: int, next_step: int) -> Sender | None:
        following = transition.following or transition.phase
        have = {d: self.digits(transition.phase, transition.tensor, d, step) for d in self.devices}
        need = {d: self.digits(following, transition.next_tensor, d, next_step) for d in have}
        first = zip(have[self.devices[0]], need[self.devices[0]], strict=True)
        places = [_named_in_both(*pair) for pair in first]
        at = cache(lambda digits: _at(digits, places))
        holders: dict[Digits, list[Coordinates]] = {}
        for device, digits in have.items():
            holders.setdefault(at(digits), []).append(device)
        sources = {
            device: self._nearest(holders.get(at(need[device]), []), device)
            for device in self.devices
        }
        moving = {device: source for device, source in sources.items() if source != device}
        if not moving:
            return None
        offsets = {self.between(source, device) for device, source in moving.items()}
        if len(offsets) == 1:
            return Sender.neighbour(offsets.pop())
        sender = self._affine(sources)
        if any(sender.of(device, self.lengths) != source for device, source in moving.items()):
            raise FitError(f"no one rule says which device has it at t={step}, {self.at}")
        return sender

    def _nearest(self, holders: list[Coordinates], target: Coordinates) -> Coordinates:
        if not holders:
            raise FitError(f"a device needs what no device has, {self.at}")
        if target in holders:
            return target
        return min(holders, key=lambda holder: distance(holder, target, self.lengths))

    def between(self, source: Coordinates, target: Coordinates) -> Row:
        """How far away the source is, each entry in (-length / 2, length / 2]."""
        triples = zip(source, target, self.lengths, strict=True)
        steps = [((there - here) % length, length) for there, here, length in triples]
        return tuple(step - length if 2 * step > length else step for step, length in steps)

    def _affine(self, sources: dict[Coordinates, Coordinates]) -> Sender:
        """The only affine rule that can explain the senders to the first device of every axis."""
        sides = list(self.element.primitive.axis_sides.values())
        origin = (0,) * len(sides)
        columns = []
        for axis, side in enumerate(sides):
            unit = tuple(int(axis == other) for other in range(len(sides)))
            column = self.between(sources[unit], sources[origin])
            columns.append(
                [step * (side == other) for step, other in zip(column, sides, strict=True)]
            )
        matrix = tuple(zip(*columns, strict=True))
        return Sender(matrix, self.between(sources[origin], origin))

    @property
    def at(self) -> str:
        """How messages name the mesh, `s=6`."""
        names = zip(self.element.primitive.side_names, self.element.sides, strict=True)
        return ", ".join(f"{name}={side}" for name, side in names)


def _named_in_both(one: SliceIndex, other: SliceIndex) -> list[int]:
    pairs = enumerate(zip(one, other, strict=False))
    return [place for place, (a, b) in pairs if a is not ANY and b is not ANY]


def _at(digits: Digits, places: list[list[int]]) -> Digits:
    return tuple(
        tuple(own[place] for place in named if place < len(own))
        for own, named in zip(digits, places, strict=True)
    )


def samples(primitive: Primitive) -> list[Sample]:
    """The meshes to guess from: a base, and for each side one more in which it is longer by 1.

    Raises `PrimitiveError` if the map is no map of slices there or on a smaller mesh.
    """
    count = len(primitive.side_names)
    bases = [tuple(side - (place > 0) for place in range(count)) for side in (4, 3)]
    bases.append((2,) * count)
    small = (base for base in bases if _is_small(Element(primitive, base)))
    base = next(small, bases[-1])
    longer = [tuple(side + (i == place) for i, side in enumerate(base)) for place in range(count)]
    smaller = [(side,) * count for side in range(1, base[0])] if base else []
    elements = [Element(primitive, sides) for sides in (*smaller, base, *longer)]
    for element in elements:
        element.radices  # noqa: B018
    return [Sample(element) for element in elements[len(smaller) :]]


def _is_small(element: Element) -> bool:
    devices = prod(element.axis_lengths)
    short = max(element.sides, default=0) <= 3
    return devices <= MOST_DEVICES and (short or devices * element.steps <= MOST_POINTS)


def fit_affine(seen: Sequence[Sample], values: Sequence[int]) -> Affine:
    """The affine form that has these values on the samples; there always is exactly one."""
    slopes = tuple(value - values[0] for value in values[1:])
    base = Affine(0, slopes).at(seen[0].element.sides)
    return Affine(values[0] - base, slopes)


def fit_radices(seen: Sequence[Sample]) -> dict[str, tuple[Affine, ...]]:
    """Dim -> number of slices of each digit. Raises `FitError` if maps name digits irregularly."""
    radices = [sample.element.radices for sample in seen]
    shapes = {tuple((dim, len(digits)) for dim, digits in each.items()) for each in radices}
    if len(shapes) > 1:
        raise FitError("the map names more dims or digits for some sides than for others")
    return {
        dim: tuple(
            fit_affine(seen, values) for values in zip(*(r[dim] for r in radices), strict=True)
        )
        for dim in radices[0]
    }


def fit_moves(seen: Sequence[Sample], transition: Transition) -> tuple[Span, ...]:
    """The spans of steps and the sender in each; longer meshes tell where these do not.

    Raises `FitError` if no such rule fits.
    """
    try:
        return _fit_moves(seen, transition)
    except FitError:
        if not seen[0].longer:
            raise
        return _fit_moves(seen[0].longer, transition)


def _fit_moves(seen: Sequence[Sample], transition: Transition) -> tuple[Span, ...]:
    return tuple(Span(*run) for run in fit_runs(seen, [each.moves(transition) for each in seen]))


Rule = TypeVar("Rule")


def fit_runs(
    seen: Sequence[Sample], moves: Sequence[Sequence[Rule | Sender]]
) -> list[tuple[Affine, Rule | Sender]]:
    """The first step of each run of equal rules, given the rules of every sample step by step.

    Raises `FitError` if the samples have not the same runs.
    """
    runs = [
        [(step, rule) for step, rule in enumerate(each) if step == 0 or each[step - 1] != rule]
        for each in moves
    ]
    if len(set(map(len, runs))) > 1:
        raise FitError("it moves differently for different sides")
    return [
        (fit_affine(seen, [at for at, _ in run]), fit_rule(seen, [rule for _, rule in run]))
        for run in zip(*runs, strict=True)
    ]


def fit_rule(seen: Sequence[Sample], rules: Sequence[Rule | Sender]) -> Rule | Sender:
    """The one rule that each sample has. Raises `FitError` if they have several."""
    senders = [rule for rule in rules if isinstance(rule, Sender)]
    if len(senders) == len(rules):
        return Sender.common(senders, [sample.lengths for sample in seen])
    if any(rule != rules[0] for rule in rules):
        raise FitError("it moves differently for different sides")
    return rules[0]
