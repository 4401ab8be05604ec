"""Guesses for primitives with homes: where a missing block comes from, step by step.

Nothing here is trusted, as in `fit`: a guess names what to prove.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product

from primepar.schedule.operators import PRODUCTS, Index, Phase, tensor_dims
from primepar.schedule.primitive import ANY, call_home
from primepar.schedule.sequence import HOMES, Coordinates, Element, SliceIndex
from primepar.verify.fit import Digits, Sample, distance, fit_rule, fit_runs
from primepar.verify.fit_sender import FitError, Row, Sender
from primepar.verify.primitive_affine import Affine

MOST_FACTORS = 6
"""A rule with larger factors explains nothing; symbols could not follow it either."""

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
    """A primitive with homes on one concrete mesh; `locators` says where each tensor rests."""

    sample: Sample
    locators: dict[str, Locator]
    _known: dict[tuple[tuple[str, ...], Digits], frozenset[Index]] = field(default_factory=dict)

    @property
    def element(self) -> Element:
        """The primitive with its sides."""
        return self.sample.element

    @cached_property
    def _worked(self) -> dict[tuple[Phase, str, int], dict[Coordinates, frozenset[Index]]]:
        return {
            (phase, tensor, t): {
                device: self._blocks(phase, tensor, device, t) for device in self.sample.devices
            }
            for phase, made in PRODUCTS.items()
            for tensor in (*made.reads, made.writes)
            for t in range(self.element.steps)
        }

    def _blocks(self, phase: Phase, tensor: str, device: Coordinates, t: int) -> frozenset[Index]:
        dims = tensor_dims(tensor)
        digits = self.sample.digits(phase, tensor, device, t)
        if (dims, digits) not in self._known:
            slices = (self.element.slices(phase, device, t, dim) for dim in dims)
            self._known[dims, digits] = _blocks(slices)
        return self._known[dims, digits]

    @cached_property
    def _homes(self) -> dict[str, dict[Coordinates, frozenset[Index]]]:
        element = self.element
        return {
            tensor: {
                device: _blocks(element.home(tensor, device, dim) for dim in tensor_dims(tensor))
                for device in self.sample.devices
            }
            for tensor in HOMES
        }

    def _kept(self, phase: Phase, tensor: str, device: Coordinates) -> frozenset[Index]:
        if phase == "forward" or tensor not in self.element.primitive.keeps:
            return frozenset()
        steps = range(self.element.steps)
        return frozenset[Index]().union(
            *(self._worked["forward", tensor, t][device] for t in steps)
        )

    def rests_at_home(self, phase: Phase, tensor: str) -> bool:
        """Whether a tensor never leaves its home in a phase."""
        home = self._homes[tensor.removeprefix("d")]
        steps = range(self.element.steps)
        worked = (self._worked[phase, tensor, t] for t in steps)
        return all(need <= home[device] for each in worked for device, need in each.items())

    def alike(self, tensor: str) -> bool:
        """Whether backward and gradient want the same blocks at every step."""
        steps = range(self.element.steps)
        pairs = ([self._worked[phase, tensor, t] for phase in ("backward", "gradient")]
                 for t in steps)  # fmt: skip
        return all(one == other for one, other in pairs)

    def finishes(self, phase: Phase, tensor: str) -> bool:
        """Whether a sum that a device leaves away from its home is added to by none after it."""
        home = self._homes[tensor.removeprefix("d")]
        later = frozenset[Index]()
        then: dict[Coordinates, frozenset[Index]] = dict.fromkeys(home, later)
        for t in reversed(range(self.element.steps)):
            now = self._worked[phase, tensor, t]
            if any((now[device] - then[device] - home[device]) & later for device in home):
                return False
            later, then = later.union(*now.values()), now
        return True

    def opening(self, phase: Phase, tensor: str) -> Rule:
        """How step 0 gets an operand. Raises `FitError` if no one rule says it."""
        return self._operand(phase, tensor, -1)

    def rules(self, phase: Phase, tensor: str) -> list[Rule]:
        """How each step gets what the next one needs, or passes on its sums."""
        moved = self._partial if PRODUCTS[phase].writes == tensor else self._operand
        return [moved(phase, tensor, t) for t in range(self.element.steps - 1)]

    def _operand(self, phase: Phase, tensor: str, t: int) -> Rule:
        home = self._homes[tensor.removeprefix("d")]
        kept = {device: self._kept(phase, tensor, device) for device in home}
        before = self._worked[phase, tensor, t] if t >= 0 else dict.fromkeys(home, frozenset())
        wanted = [
            (device, index)
            for device, need in self._worked[phase, tensor, t + 1].items()
            for index in sorted(need - home[device] - before[device] - kept[device])
        ]
        working = {device: (before[device] | kept[device]) - home[device] for device in home}
        return self._rule(wanted, working, self.locators[tensor.removeprefix("d")], t)

    def _partial(self, phase: Phase, tensor: str, t: int) -> Rule:
        home = self._homes[tensor.removeprefix("d")]
        now, then = self._worked[phase, tensor, t], self._worked[phase, tensor, t + 1]
        arrives = [(device, index) for device, need in then.items() for index in need - now[device]]
        leaves = {device: now[device] - then[device] - home[device] for device in home}
        return self._rule(arrives, leaves, None, t)

    def _rule(
        self,
        wanted: list[tuple[Coordinates, Index]],
        working: dict[Coordinates, frozenset[Index]],
        otherwise: Locator | None,
        t: int,
    ) -> Rule:
        """The nearest peer at one offset for all; or home, for those that no peer has."""
        peers: dict[Index, list[Coordinates]] = {}
        for device, blocks in working.items():
            for index in blocks:
                peers.setdefault(index, []).append(device)
        lengths = self.sample.lengths
        offsets = {
            self._offset(peers[index], device, lengths) if index in peers else None
            for device, index in wanted
        }
        if offsets <= {None}:
            return otherwise if wanted else None
        if len(offsets) > 1:
            raise FitError(f"no one rule says which device has it at t={t}, {self.sample.at}")
        return Sender.neighbour(next(offset for offset in offsets if offset is not None))

    def _offset(self, holders: list[Coordinates], device: Coordinates, lengths: Row) -> Row:
        nearest = min(holders, key=lambda holder: distance(holder, device, lengths))
        return self.sample.between(nearest, device)


def _blocks(slices: Iterable[tuple[int, ...]]) -> frozenset[Index]:
    return frozenset(product(*slices))


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
    homes: dict[Coordinates, list[SliceIndex]]

    @classmethod
    def of(cls, sample: Sample, tensor: str, radices: Radices) -> _Rest:
        """Call the home of every device."""
        dims, element = tensor_dims(tensor), sample.element
        homes = {}
        for device in sample.devices:
            named = call_home(element.primitive, tensor, device, element.sides)
            homes[device] = [named.get(dim, ()) for dim in dims]
        return cls(sample, tensor, [radices.get(dim, ()) for dim in dims], homes)

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
        holders = [home for home, named in self.homes.items() if _holds(named, block)]
        if not holders:
            raise FitError(f"{self.tensor}[{_text(block)}] rests on no device, {self.sample.at}")
        return min(holders, key=lambda holder: distance(holder, device, lengths))


def _holds(named: list[SliceIndex], block: list[Index]) -> bool:
    return all(
        own is ANY or own == digit
        for index, given in zip(named, block, strict=True)
        for own, digit in zip(index, given, strict=False)
    )


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
