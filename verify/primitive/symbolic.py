"""The maps of a primitive as Z3 terms: each is called once, with symbols, and instantiated."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from primepar.errors import PrimitiveError, SymbolicError
from primepar.schedule.operators import PHASES, Phase, tensor_dims
from primepar.schedule.primitive import ANY, Primitive, Value, call_home, call_map
from primepar.schedule.sequence import HOMES
from primepar.verify.primitive import terms
from primepar.verify.primitive.affine import Affine, sum_text
from primepar.verify.primitive.fit_sender import Row, Sender
from primepar.verify.primitive.locate import Locator
from primepar.verify.primitive.symbol import Space, Symbol, Term

T = TypeVar("T")
Point = tuple[Term, ...]
"""One Z3 integer for each device axis."""
Block = dict[str, tuple[Term, ...]]
"""For each dim of a tensor the digits that the map names; one that is left out or `ANY` is open."""


@dataclass
class SymbolicMap:
    """A primitive over all meshes at once.

    `radices` gives the number of slices of every digit. Raises `SymbolicError` if a map does what
    symbols cannot follow, `PrimitiveError` if it raises.
    """

    primitive: Primitive
    radices: dict[str, tuple[Affine, ...]]
    space: Space = field(init=False)
    steps: Symbol = field(init=False)
    digits: dict[Phase, dict[str, tuple[Term, ...]]] = field(init=False)
    homes: dict[str, Block] = field(init=False)
    """Digits of the home of I, W and O; empty where the primitive declares none."""
    _known: dict[tuple[object, ...], tuple[Point, Any]] = field(default_factory=dict)
    """What was made before, by a name and Z3 terms, with these, which must live as long."""

    def __post_init__(self) -> None:
        self.space = Space(self.primitive.side_names)
        sides = self.primitive.axis_sides.values()
        self.lengths = [self.space.side(side) for side in sides]
        self.here, self.now = self.point(""), terms.Int("t")
        try:
            self.steps = self.space.of(self.primitive.steps(*self.space.sides))
            self.digits = {phase: self._called(phase) for phase in PHASES}
            declared = HOMES if self.primitive.home else ()
            self.homes = {tensor: self._called_home(tensor) for tensor in declared}
        except SymbolicError:
            raise
        except PrimitiveError as error:
            raise SymbolicError(f"called with symbols: {error}") from None

    def _called(self, phase: Phase) -> dict[str, tuple[Term, ...]]:
        device = tuple(map(self.space.below, self.here, self.lengths))
        step = self.space.below(self.now, self.steps.high)
        slices = call_map(self.primitive, phase, device, step, self.space.sides)
        return self._terms(phase, slices)

    def _called_home(self, tensor: str) -> Block:
        device = tuple(map(self.space.below, self.here, self.lengths))
        slices = call_home(self.primitive, tensor, device, self.space.sides)
        return self._terms(f"home of {tensor}", slices)

    def _terms(self, what: str, slices: dict[str, tuple[Value, ...]]) -> Block:
        if any(len(index) > len(self.radices.get(dim, ())) for dim, index in slices.items()):
            raise SymbolicError(
                f"{what} names other dims or digits for symbols than for numbers: "
                "let it name the same ones for every device, step and side"
            )
        of = self.space.of
        return {
            dim: tuple(digit if digit is ANY else of(digit).term for digit in index)
            for dim, index in slices.items()
        }

    def once(self, name: str, make: Callable[[], T]) -> T:
        """What `make` gives, made once."""
        return self._made(name, (), make)

    def _made(self, name: object, given: Point, make: Callable[[], T]) -> T:
        """What `make` gives for these terms, made once."""
        key = (name, *(each.ast.value for each in given))
        if key not in self._known:
            self._known[key] = given, make()
        return self._known[key][1]  # type: ignore[no-any-return]

    def point(self, tag: str) -> Point:
        """Fresh coordinates of a device."""
        return tuple(terms.Int(f"{axis}{tag}") for axis in self.primitive.axis_sides)

    def in_mesh(self, device: Point) -> Term:
        """Every coordinate is 0 or more and below the length of its axis."""
        return self._made("in the mesh", device, lambda: self._in_mesh(device))

    def _in_mesh(self, device: Point) -> Term:
        limits = [self.space.term(length) for length in self.lengths]
        return terms.And(*map(terms.inside, device, limits))

    @property
    def all_sides(self) -> Term:
        """Every side is 1 or more."""
        return terms.And(*(side.term >= 1 for side in self.space.sides))

    def sender(self, device: Point, sender: Sender) -> Point:
        """The device that sends to `device`."""
        return self._made(sender, device, lambda: self._sender(device, sender))

    def _sender(self, device: Point, sender: Sender) -> Point:
        symbols = list(map(self.space.below, device, self.lengths))
        return self._wrapped(list(sender.matrix), symbols, sender.offset)

    def block(self, phase: Phase, tensor: str, device: Point, step: Term) -> Block:
        """The blocks of `tensor` that a device works on."""
        digits = self.sub_operator(phase, device, step)
        return {dim: digits.get(dim, ()) for dim in tensor_dims(tensor)}

    def home(self, tensor: str, device: Point) -> Block:
        """The blocks of `tensor`, or of what it is the gradient of, that rest on a device."""
        base = tensor.removeprefix("d")
        into = list(zip(self.here, device, strict=True))
        digits = self._made(base, device, lambda: _substituted(self.homes[base], into))
        return {dim: digits.get(dim, ()) for dim in tensor_dims(tensor)}

    def any_block(self, tensor: str, tag: str = "") -> Block:
        """One block of `tensor`, every digit a Z3 integer of its own."""
        return {
            dim: tuple(
                terms.Int(f"{dim}{place}{tag}") for place in range(len(self.radices.get(dim, ())))
            )
            for dim in tensor_dims(tensor)
        }

    def in_grid(self, block: Block) -> Term:
        """Every digit is 0 or more and below its number of slices."""
        return terms.And(*(terms.inside(at, count) for at, count in self.counted(block)))

    def counted(self, block: Block) -> list[tuple[Term, Term]]:
        """Every digit that is not open, and its number of slices."""
        return [
            (digit, self.space.term(self.radices[dim][place]))
            for dim, index in block.items()
            for place, digit in enumerate(index)
            if digit is not ANY
        ]

    def opened(self, block: Block) -> list[tuple[str, int]]:
        """(dim, place) of the digits that a block leaves open."""
        return [
            (dim, place)
            for dim, digits in block.items()
            for place in range(len(self.radices.get(dim, ())))
            if place >= len(digits) or digits[place] is ANY
        ]

    def located(self, locator: Locator, device: Point, block: Block) -> Point:
        """The device where `locator` says that the block rests."""
        symbols = list(map(self.space.below, device, self.lengths))
        for dim, index in block.items():
            symbols += map(self.space.below, index, self.radices.get(dim, ()))
        return self._wrapped(
            [(*row, *more) for row, more in zip(locator.coordinates, locator.digits, strict=True)],
            symbols,
            locator.offset,
        )

    def _wrapped(self, rows: list[Row], symbols: list[Symbol], offset: Row) -> Point:
        """Factors times symbols and a constant, for every axis, round the ring."""
        point = []
        for row, step, length in zip(rows, offset, self.lengths, strict=True):
            parts = [factor * at for factor, at in zip(row, symbols, strict=True) if factor]
            far: Symbol = sum(parts, start=self.space.of(step))
            point.append((far % self.space.exactly(length)).term)
        return tuple(point)

    def sub_operator(self, phase: Phase, device: Point, step: Term) -> Block:
        """The digits of a device's sub-operator."""
        point = (*device, step)
        into = list(zip((*self.here, self.now), point, strict=True))
        return self._made(phase, point, lambda: _substituted(self.digits[phase], into))

    def contains(self, have: Block, need: Block) -> Term:
        """All blocks of `need` are among those of `have`."""
        same = [overlaps(have, need)]
        for dim, held in have.items():
            named = {place for place, digit in enumerate(need[dim]) if digit is not ANY}
            same += [
                self.space.term(self.radices[dim][place]) == 1
                for place, digit in enumerate(held)
                if digit is not ANY and place not in named
            ]
        return terms.And(*same)

    def is_nearer(self, one: Point, other: Point, device: Point) -> Term:
        """The way from `one` to `device` comes before the way from `other`."""
        return precedes(self._distance(one, device), self._distance(other, device))

    def among_nearest(
        self, sender: Sender, device: Point, holds: Callable[[Point], Term]
    ) -> Term | None:
        """A device that holds is nearer than the sender; None where that is to be asked otherwise.

        Whatever the sides, it is one of a few neighbours if the sender is a near one itself. On
        short rings some of them may be further away than it seems, or be the sender.
        """
        neighbours = sender.nearer()
        if neighbours is None:
            return None
        source = self.sender(device, sender)
        devices = (self.sender(device, Sender.neighbour(offset)) for offset in neighbours)
        return terms.Or(*(terms.And(terms.differ(at, source), holds(at)) for at in devices))

    def _distance(self, source: Point, target: Point) -> list[Term]:
        return self._made("distance", (*source, *target), lambda: self._measured(source, target))

    def _measured(self, source: Point, target: Point) -> list[Term]:
        zero = terms.IntVal(0)
        crossed, around, offset = [zero], [zero], []
        for there, here, form in zip(source, target, self.lengths, strict=True):
            length = self.space.term(form)
            step = terms.If(there >= here, there - here, there - here + length)
            offset.append(step)
            crossed.append(terms.If(terms.equal(step, zero), zero, terms.IntVal(1)))
            around.append(terms.If(2 * step <= length, step, length - step))
        return [terms.Sum(crossed), terms.Sum(around), *offset]

    def sender_text(self, sender: Sender) -> str:
        """How sentences name the device that sends, `(r, c + 1)`."""
        return self._device_text(list(sender.matrix), (), sender.offset)

    def locator_text(self, locator: Locator, tensor: str) -> str:
        """How sentences name where a block rests, `(r, N)`, its digits named by their dims."""
        named = {dim: len(self.radices.get(dim, ())) for dim in tensor_dims(tensor)}
        digits = [
            f"{dim}[{place}]" if count > 1 else dim
            for dim, count in named.items()
            for place in range(count)
        ]
        rows = zip(locator.coordinates, locator.digits, strict=True)
        return self._device_text([(*row, *more) for row, more in rows], digits, locator.offset)

    def _device_text(self, rows: list[Row], digits: Iterable[str], offset: Row) -> str:
        names = (*self.primitive.axis_sides, *digits, "")
        parts = [zip((*row, step), names, strict=True)
                 for row, step in zip(rows, offset, strict=True)]  # fmt: skip
        return f"({', '.join(sum_text(list(part)) for part in parts)})"


def precedes(one: list[Term], other: list[Term]) -> Term:
    """The first comes before the second, digit by digit."""
    less = terms.FALSE
    for a, b in reversed(list(zip(one, other, strict=True))):
        less = terms.Or(a < b, terms.And(a == b, less))
    return less


def overlaps(one: Block, other: Block) -> Term:
    """The two sets have a block in common."""
    pairs = [pair for dim in one for pair in zip(one[dim], other[dim], strict=False)]
    return terms.And(*(terms.equal(a, b) for a, b in pairs if a is not ANY and b is not ANY))


def _substituted(block: Block, into: list[tuple[Term, Term]]) -> Block:
    old, new = (list(column) for column in zip(*into, strict=True)) if into else ([], [])
    if all(a.ast.value == b.ast.value for a, b in zip(old, new, strict=True)):
        return block
    return {
        dim: tuple(digit if digit is ANY else terms.replaced(digit, old, new) for digit in index)
        for dim, index in block.items()
    }
