"""Guesses from concrete sides: how many slices there are, and where each block comes from.

Nothing here is trusted. A guess names what to prove, and Z3 proves it or does not: a wrong one
costs a proof and never gives a wrong verdict.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import TypeVar

import numpy as np

from primepar.schedule.movement import NEXT_USE
from primepar.schedule.operators import PRODUCTS, Phase, tensor_dims
from primepar.schedule.primitive import AnyDigit, Primitive
from primepar.schedule.sequence import Coordinates, Element
from primepar.verify.primitive.affine import Affine
from primepar.verify.primitive.fit_sender import FitError, Row, Sender
from primepar.verify.primitive.fit_table import Numbers, Points, Table, Tables, same_tables

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


@dataclass(frozen=True)
class Sample:
    """A primitive on one concrete mesh."""

    tables: Tables
    _known: dict[Transition, list[Sender | None]] = field(
        default_factory=dict, repr=False, compare=False
    )

    @property
    def element(self) -> Element:
        """The primitive with its sides."""
        return self.tables.element

    def on(self, sides: Row) -> Sample:
        """The same primitive on another mesh."""
        return Sample(Tables(Element(self.element.primitive, sides), self.tables.by_number))

    @cached_property
    def longer(self) -> list[Sample]:
        """Samples of which every side is longer by 1 than here, if they are not too large."""
        sides = [side + 1 for side in self.element.sides]
        meshes = [
            sides,
            *([*sides[:at], side + 1, *sides[at + 1 :]] for at, side in enumerate(sides)),
        ]
        found = [self.on(tuple(mesh)) for mesh in meshes]
        return found if all(prod(each.lengths) <= MOST_DEVICES for each in found) else []

    @property
    def lengths(self) -> Coordinates:
        """Devices along each axis."""
        return self.element.axis_lengths

    @property
    def devices(self) -> list[Coordinates]:
        """Coordinates of all devices, row-major."""
        return self.tables.devices

    def block(self, phase: Phase, tensor: str) -> Table:
        """The digits of a tensor's blocks, over the devices and the steps."""
        named = self.tables.maps[phase]
        return {dim: named.get(dim, ()) for dim in tensor_dims(tensor)}

    def home(self, tensor: str) -> Table:
        """The digits of the blocks of a tensor that rest, over the devices."""
        named = self.tables.homes[tensor.removeprefix("d")]
        return {dim: named.get(dim, ()) for dim in tensor_dims(tensor)}

    def is_alike(self, tensor: str, one: Phase, other: Phase) -> bool:
        """Whether two phases have the same digits of a tensor at every step."""
        return same_tables(self.block(one, tensor), self.block(other, tensor))

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
        for t in range(self.element.steps - 1):
            held = self._held(transition, t, t + 1)
            moves = ~held.diagonal()
            if held[moves][:, moves].any():
                return False
        return True

    def _held(self, transition: Transition, step: int, next_step: int) -> Points:
        """Whether each device has, before, what each needs after: a row for each that has it."""
        following = transition.following or transition.phase
        have = self.block(transition.phase, transition.tensor)
        need = self.block(following, transition.next_tensor)
        count = len(self.devices)
        held = np.ones((count, count), bool)
        for dim in have:
            for one, other in zip(have[dim], need[dim], strict=False):
                if not isinstance(one, AnyDigit) and not isinstance(other, AnyDigit):
                    before, after = one[..., step].ravel(), other[..., next_step].ravel()
                    held &= before[:, np.newaxis] == after
        return held

    def _move(self, transition: Transition, step: int, next_step: int) -> Sender | None:
        held = self._held(transition, step, next_step)
        if not held.any(axis=0).all():
            raise FitError(f"a device needs what no device has, {self.at}")
        sources = self.nearest(held, np.arange(len(held)))
        (moving,) = np.nonzero(sources != np.arange(len(held)))
        if not len(moving):
            return None
        offsets = self.offsets(sources[moving], moving)
        if len(offsets) == 1:
            return Sender.neighbour(offsets.pop())
        at = self.devices
        sender = self._affine({at[device]: at[source] for device, source in enumerate(sources)})
        if any(sender.of(at[device], self.lengths) != at[sources[device]] for device in moving):
            raise FitError(f"no one rule says which device has it at t={step}, {self.at}")
        return sender

    def nearest(self, holders: Points, targets: Numbers) -> Numbers:
        """For each target the nearest of the devices that its column says; they are numbered."""
        order, _ = self._ways
        far = np.where(holders, order[:, targets], order.max() + 1)
        return np.asarray(far.argmin(axis=0))

    def offsets(self, sources: Numbers, targets: Numbers) -> set[Row]:
        """How far away the sources are, each entry in (-length / 2, length / 2]."""
        _, steps = self._ways
        return set(map(tuple, steps[sources, targets].tolist()))

    @cached_property
    def _ways(self) -> tuple[Numbers, Numbers]:
        """From each device to each: a number for their order, and the offset.

        Nearer is what crosses fewer axes, then the shorter way round, then one direction.
        """
        at = np.array(self.devices).reshape(len(self.devices), len(self.lengths))
        lengths = np.array(self.lengths, int)
        steps = (at[:, np.newaxis] - at) % lengths
        around = np.minimum(steps, lengths - steps)
        order = (steps != 0).sum(axis=-1) * (lengths.sum() + 1) + around.sum(axis=-1)
        for axis, length in enumerate(self.lengths):
            order = order * length + steps[..., axis]
        return order, np.where(2 * steps > lengths, steps - lengths, steps)

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
    element = Element(primitive, base)
    for each in (*(Element(primitive, sides) for sides in smaller), element):
        each.radices  # noqa: B018
    numbers = Tables(element, by_number=True)
    first = Sample(Tables(element, not Tables(element).is_like(numbers)))
    found = [first, *map(first.on, longer)]
    for sample in found:
        sample.tables.radices  # noqa: B018
    return found


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
    radices = [sample.tables.radices for sample in seen]
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
