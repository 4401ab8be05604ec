"""Guesses for primitives with homes: where a missing block comes from, step by step.

Nothing here is trusted, as in `fit`: a guess names what to prove.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np

from primepar.schedule.operators import PRODUCTS, Index, Phase, tensor_dims
from primepar.schedule.primitive import ANY, AnyDigit
from primepar.schedule.sequence import HOMES, Coordinates
from primepar.verify.primitive.affine import Affine
from primepar.verify.primitive.fit import Sample, fit_rule, fit_runs
from primepar.verify.primitive.fit_sender import FitError, Row, Sender
from primepar.verify.primitive.fit_table import Points, Table

MOST_FACTORS = 6
"""A rule with larger factors explains nothing; symbols could not follow it either."""

MOST_BLOCKS = 2**26
"""Blocks of a tensor times devices times steps of one mesh."""

Radices = dict[str, tuple[Affine, ...]]


@dataclass(frozen=True)
class Locator:
    """The home of a block that is nearest to a device, every axis a ring.

    For each axis one factor for every coordinate of the device, one for every digit of the block,
    and a constant.
    """

    coordinates: tuple[Row, ...]
    digits: tuple[Row, ...]
    offset: Row

    @property
    def replica_axes(self) -> tuple[int, ...] | None:
        """Axes along which a block rests on every device; None if the rule does not tell."""
        rows = zip(self.coordinates, self.digits, self.offset, strict=True)
        free = tuple(
            axis
            for axis, (row, digits, step) in enumerate(rows)
            if row == tuple(int(axis == other) for other in range(len(row)))
            and not any((*digits, step))
        )
        bound = [row for axis, row in enumerate(self.coordinates) if axis not in free]
        told = all(not factor or axis in free for row in bound for axis, factor in enumerate(row))
        return free if told else None


@dataclass(frozen=True)
class Either:
    """A peer where one has it, by no one rule, and else the home of the block."""

    home: Locator


Rule = Sender | Locator | Either | None
"""Where what a device needs next and has not comes from; None where it has everything."""


@dataclass(frozen=True)
class RuleSpan:
    """From step `first` until the next span the rule holds."""

    first: Affine
    rule: Rule


@dataclass(frozen=True)
class HomeSample:
    """A primitive with homes on one concrete mesh; `locators` says where each tensor rests.

    Sets of blocks are arrays of bools with a row for each device and a column for each block.
    """

    sample: Sample
    locators: dict[str, Locator]
    _known: dict[tuple[str, str], Points] = field(default_factory=dict)

    @property
    def steps(self) -> int:
        """Steps of a phase."""
        return self.sample.element.steps

    def _worked(self, phase: Phase, tensor: str) -> Points:
        """The blocks of a product, for each device and each step."""
        if (phase, tensor) not in self._known:
            shape = (len(self.sample.devices), self.steps)
            table = self.sample.block(phase, tensor)
            self._known[phase, tensor] = self._blocks(tensor, table, shape)
        return self._known[phase, tensor]

    def _home(self, tensor: str) -> Points:
        """The blocks that rest on each device."""
        if ("home", tensor) not in self._known:
            shape = (len(self.sample.devices),)
            self._known["home", tensor] = self._blocks(tensor, self.sample.home(tensor), shape)
        return self._known["home", tensor]

    def _blocks(self, tensor: str, table: Table, shape: Row) -> Points:
        """Which blocks have these digits at the points of that shape."""
        radices = self.sample.tables.radices
        places = [(dim, at) for dim in table for at in range(len(radices.get(dim, ())))]
        lengths = tuple(radices[dim][at] for dim, at in places)
        if prod((*shape, *lengths)) > MOST_BLOCKS:
            raise FitError(f"{tensor} is cut in too many blocks to look at, {self.sample.at}")
        found = np.ones((*shape, prod(lengths)), bool)
        digits = np.indices(lengths).reshape(len(places), prod(lengths))
        for (dim, at), digit in zip(places, digits, strict=True):
            column = table[dim][at] if at < len(table[dim]) else ANY
            if not isinstance(column, AnyDigit):
                found &= column.reshape(shape)[..., np.newaxis] == digit
        return found

    def _kept(self, phase: Phase, tensor: str) -> Points:
        if phase == "forward" or tensor not in self.sample.element.primitive.keeps:
            return np.zeros_like(self._home(tensor))
        return np.asarray(self._worked("forward", tensor).any(axis=1))

    def rests_at_home(self, phase: Phase, tensor: str) -> bool:
        """Whether a tensor never leaves its home in a phase."""
        away = self._worked(phase, tensor) & ~self._home(tensor)[:, np.newaxis]
        return not away.any()

    def alike(self, tensor: str) -> bool:
        """Whether backward and gradient want the same blocks at every step."""
        one, other = (self._worked(phase, tensor) for phase in ("backward", "gradient"))
        return np.array_equal(one, other)

    def finishes(self, phase: Phase, tensor: str) -> bool:
        """Whether a sum that a device leaves away from its home is added to by none after it."""
        worked, home = self._worked(phase, tensor), self._home(tensor)
        for t in range(self.steps - 1):
            left = worked[:, t] & ~worked[:, t + 1] & ~home
            if (left & worked[:, t + 1 :].any(axis=(0, 1))).any():
                return False
        return True

    def opening(self, phase: Phase, tensor: str) -> Rule:
        """How step 0 gets an operand. Raises `FitError` if no one rule says it."""
        return self._operand(phase, tensor, -1)

    def rules(self, phase: Phase, tensor: str) -> list[Rule]:
        """How each step gets what the next one needs, or passes on its sums."""
        moved = self._partial if PRODUCTS[phase].writes == tensor else self._operand
        return [moved(phase, tensor, t) for t in range(self.steps - 1)]

    def _operand(self, phase: Phase, tensor: str, t: int) -> Rule:
        worked, home, kept = (
            self._worked(phase, tensor), self._home(tensor), self._kept(phase, tensor)
        )  # fmt: skip
        here = kept | worked[:, t] if t >= 0 else kept
        wanted, working = worked[:, t + 1] & ~home & ~here, here & ~home
        return self._rule(wanted, working, self.locators[tensor.removeprefix("d")], t)

    def _partial(self, phase: Phase, tensor: str, t: int) -> Rule:
        worked = self._worked(phase, tensor)
        now, then = worked[:, t], worked[:, t + 1]
        return self._rule(then & ~now, now & ~then & ~self._home(tensor), None, t)

    def _rule(self, wanted: Points, working: Points, otherwise: Locator | None, t: int) -> Rule:
        """The nearest peer at one offset for all; or home, for those that no peer has."""
        targets, blocks = wanted.nonzero()
        if not len(targets):
            return None
        peers = working[:, blocks]
        has_peer = peers.any(axis=0)
        if not has_peer.any():
            return otherwise
        if has_peer.all():
            offsets = self.sample.offsets(self.sample.nearest(peers, targets), targets)
            if len(offsets) == 1:
                return Sender.neighbour(offsets.pop())
        raise FitError(f"no one rule says which device has it at t={t}, {self.sample.at}")


def fit_locators(seen: Sequence[Sample], radices: Radices) -> dict[str, Locator | FitError]:
    """Where each of I, W and O rests, or why no one rule says it."""
    found: dict[str, Locator | FitError] = {}
    for tensor in HOMES:
        try:
            found[tensor] = _Rest.of(seen[0], tensor, radices).locator()
        except FitError as error:
            found[tensor] = error
    return found


@dataclass(frozen=True)
class _Rest:
    """Where the blocks of one tensor rest on one mesh."""

    sample: Sample
    tensor: str
    digits: list[tuple[Affine, ...]]
    """For each dim of the tensor the numbers of slices of its digits."""

    @classmethod
    def of(cls, sample: Sample, tensor: str, radices: Radices) -> _Rest:
        """The homes on the devices of a mesh."""
        return cls(sample, tensor, [radices.get(dim, ()) for dim in tensor_dims(tensor)])

    def locator(self) -> Locator:
        """The only affine rule that can explain the homes nearest to the first devices."""
        primitive, sides = self.sample.element.primitive, self.sample.element.sides
        names = primitive.side_names
        axes = [
            Affine(0, tuple(int(side == name) for name in names))
            for side in primitive.axis_sides.values()
        ]
        forms = [*axes, *(radix for digits in self.digits for radix in digits)]
        start = self._nearest((0,) * len(forms))
        columns = []
        for place, form in enumerate(forms):
            moved = start
            if form.at(sides) > 1:
                moved = self._nearest(tuple(int(place == other) for other in range(len(forms))))
            step = self.sample.between(moved, start)
            pairs = zip(step, axes, strict=True)
            columns.append(tuple(part * (form == axis) for part, axis in pairs))
        rows = [tuple(column[axis] for column in columns) for axis in range(len(axes))]
        if any(sum(map(abs, row)) > MOST_FACTORS for row in rows):
            raise FitError(f"no one rule says where {self.tensor} rests, {self.sample.at}")
        cut = len(axes)
        offset = self.sample.between(start, (0,) * cut)
        return Locator(tuple(row[:cut] for row in rows), tuple(row[cut:] for row in rows), offset)

    def _nearest(self, at: Row) -> Coordinates:
        """The home nearest to a device of a block, `at` being its coordinates and its digits."""
        lengths = self.sample.lengths
        device, left, block = at[: len(lengths)], at[len(lengths) :], []
        for digits in self.digits:
            block.append(left[: len(digits)])
            left = left[len(digits) :]
        count = len(self.sample.devices)
        holders = np.ones(count, bool)
        for columns, given in zip(self.sample.home(self.tensor).values(), block, strict=True):
            for column, digit in zip(columns, given, strict=False):
                if not isinstance(column, AnyDigit):
                    holders &= column.ravel() == digit
        if not holders.any():
            raise FitError(f"{self.tensor}[{_text(block)}] rests on no device, {self.sample.at}")
        target = np.array([self.sample.devices.index(device)])
        (nearest,) = self.sample.nearest(holders[:, np.newaxis], target)
        return self.sample.devices[int(nearest)]


def _text(block: list[Index]) -> str:
    parts = [str(digits[0]) if len(digits) == 1 else str(digits) for digits in block if digits]
    return ",".join(parts).replace(", ", ",")


def fit_opening(seen: Sequence[HomeSample], phase: Phase, tensor: str) -> Rule:
    """The rule of step 0. Raises `FitError` if it is not the same for different sides."""
    rules = [sample.opening(phase, tensor) for sample in seen]
    return fit_rule([sample.sample for sample in seen], rules)


def fit_rules(seen: Sequence[HomeSample], phase: Phase, tensor: str) -> tuple[RuleSpan, ...]:
    """The spans of steps and the rule in each. Raises `FitError` if no such rules fit."""
    runs = [sample.rules(phase, tensor) for sample in seen]
    return tuple(RuleSpan(*run) for run in fit_runs([each.sample for each in seen], runs))
