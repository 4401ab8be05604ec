"""Checks the certificate of a primitive, for all lengths of the sides of its mesh.

It calls the maps with `Linear` forms and follows every case. Certified are coverage, by a function
that finds the device and step of every sub-operator; and where blocks are: that what a device needs
next lies on the device that a rule names, or that every block has a home there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any, Literal

from msgspec import Struct

from primepar.certify.cases import Answer, Case, Linear, cases
from primepar.errors import ClaimError
from primepar.schedule.movement import NEXT_USE
from primepar.schedule.operators import PHASES, PRODUCTS, tensor_dims
from primepar.schedule.primitive import ANY, Primitive, call_home, call_map
from primepar.schedule.sequence import HOMES

PROPERTIES: tuple[str, ...] = ("coverage", "placement", "completion", "alignment")
"""What is certified, for all sides; deadlock-freedom and traffic are not."""
Sides = tuple[int, tuple[int, ...]]
"""A constant, and a factor for each side."""
Row = tuple[int, ...]


class Rule(Struct, frozen=True, forbid_unknown_fields=True):
    """For each axis the factors of what is given, and a constant; round the axis."""

    factors: tuple[Row, ...]
    offset: Row


class Span(Struct, frozen=True, forbid_unknown_fields=True):
    """From step `first` on a rule tells a device; without one it is the device itself."""

    first: Sides
    rule: Rule | None


class Witness(Struct, frozen=True, forbid_unknown_fields=True):
    """From the digits of a sub-operator its step, and with the step its device."""

    step: Rule
    device: tuple[Span, ...]


class PrimitiveCertificate(Struct, frozen=True, forbid_unknown_fields=True, tag="primitive"):
    """What the proof of a primitive for all sides rests on."""

    format: Literal["primepar-certificate"]
    version: Literal[1]
    slices: dict[str, tuple[Sides, ...]]
    """Dim -> how many slices each of its digits has."""
    witnesses: dict[str, Witness]
    """Phase -> where each sub-operator is computed."""
    moves: dict[str, tuple[Span, ...]]
    """What moves -> who has on this step what a device needs on the next."""
    homes: dict[str, Rule]
    """Tensor -> a device where a block rests, from the coordinates of any device and the digits."""
    answers: dict[str, tuple[Answer, ...]]
    """Claim -> what was answered at each of its comparisons."""


class Move(Struct, frozen=True):
    """A tensor between the steps of a phase, or on its way to a `following` phase."""

    phase: str
    tensor: str
    following: str | None
    next_tensor: str
    hops: bool
    """Whether it may come from another device."""

    @property
    def name(self) -> str:
        """What moves, `forward I`, `forward I to gradient I`."""
        if self.following is None:
            return f"{self.phase} {self.tensor}"
        return f"{self.phase} {self.tensor} to {self.following} {self.next_tensor}"

    @property
    def is_sum(self) -> bool:
        """Whether it is a sum that has more to come: such has one holder."""
        return self.following is None and PRODUCTS[self.phase].writes == self.tensor


def moves() -> list[Move]:
    """All that moves where a primitive has no homes."""
    found = [
        Move(phase, tensor, None, tensor, True)
        for phase, made in PRODUCTS.items()
        for tensor in (*made.reads, made.writes)
    ]
    found += [Move(phase, tensor, then, tensor, True) for (phase, tensor), then in NEXT_USE.items()]
    found.append(Move("forward", "O", "backward", "dO", False))
    return [*found, Move("gradient", "dW", "forward", "W", False)]


class Meshes:
    """All meshes of a primitive at once, in one case of a claim."""

    def __init__(self, primitive: Primitive, given: PrimitiveCertificate, case: Case) -> None:
        self.primitive, self.given, self.case = primitive, given, case
        self.sides = tuple(case.fresh(f"side {name}", 1) for name in primitive.side_names)
        length = dict(zip(primitive.side_names, self.sides, strict=True))
        self.lengths = tuple(length[side] for side in primitive.axis_sides.values())
        self.steps = self.number(0) + primitive.steps(*self.sides)

    def number(self, value: int) -> Linear:
        """A plain number."""
        return Linear(self.case, value, {})

    def of_sides(self, form: Sides) -> Linear:
        """A form of the sides."""
        pairs = zip(form[1], self.sides, strict=True)
        return sum((side * factor for factor, side in pairs), self.number(form[0]))

    def device(self, tag: str = "") -> tuple[Linear, ...]:
        """Any device."""
        axes = zip(self.primitive.axis_sides, self.lengths, strict=True)
        return tuple(self.case.fresh(axis + tag, 0, length) for axis, length in axes)

    def slices(self, dim: str) -> tuple[Linear, ...]:
        """How many slices each digit of a dim has."""
        return tuple(map(self.of_sides, self.given.slices.get(dim, ())))

    def ruled(self, rule: Rule, given: Sequence[Any], lengths: Sequence[Linear]) -> tuple[Any, ...]:
        """What a rule says."""
        rows = zip(rule.factors, rule.offset, lengths, strict=True)
        return tuple(
            sum((at * factor for at, factor in zip(given, row, strict=True)), self.number(step))
            % length
            for row, step, length in rows
        )

    def at_step(self, spans: Sequence[Span], t: Any, given: Sequence[Any]) -> Any:
        """The device that a rule tells at a step; None where it is the device itself."""
        for span in reversed(spans):
            if self.of_sides(span.first) <= t:
                return None if span.rule is None else self.ruled(span.rule, given, self.lengths)
        raise ClaimError("expected a rule for every step, got none")

    def named(self, phase: str, device: Sequence[Any], t: Any) -> dict[str, tuple[Any, ...]]:
        """Dim -> digits of the sub-operator of a device at a step."""
        return call_map(self.primitive, phase, tuple(device), t, self.sides)

    def in_grid(self, named: dict[str, tuple[Any, ...]]) -> bool:
        """Whether all digits that are named are those of slices."""
        return all(
            digit is ANY or (digit >= 0 and digit < count)
            for dim, index in named.items()
            for digit, count in zip(index, self.slices(dim)[: len(index)], strict=True)
        )

    def contains(
        self, tensor: str, have: dict[str, tuple[Any, ...]], need: dict[str, tuple[Any, ...]]
    ) -> bool:
        """Whether all blocks with the digits of one are among those of the other."""
        for dim in tensor_dims(tensor):
            wanted = need.get(dim, ())
            for place, digit in enumerate(have.get(dim, ())):
                want = wanted[place] if place < len(wanted) else ANY
                if digit is ANY:
                    continue
                if want is ANY:
                    if not self.slices(dim)[place] <= 1:
                        return False
                elif digit != want:
                    return False
        return True


def _has_work(meshes: Meshes, _: object) -> bool:
    """There is a step at least, and a slice of every digit."""
    counts = [count for dim in meshes.given.slices for count in meshes.slices(dim)]
    return meshes.steps >= 1 and all(count >= 1 for count in counts)


def _is_covered(meshes: Meshes, phase: str) -> bool:
    """Every sub-operator is in the grid, and the witness function finds where it is computed.

    So no two places compute one; there are as many of them as of places (`_counted`).
    """
    device, t = meshes.device(), meshes.case.fresh("step t", 0, meshes.steps)
    named, witness = meshes.named(phase, device, t), meshes.given.witnesses[phase]
    digits = [digit for index in named.values() for digit in index]
    if not meshes.in_grid(named):
        return False
    (step,) = meshes.ruled(witness.step, digits, [meshes.steps])
    if shape_of(named) != shape_of(_plain(meshes.primitive, phase)) or step != t:
        return False
    found = meshes.at_step(witness.device, step, digits)
    return all(one == other for one, other in zip(found, device, strict=True))


def shape_of(named: dict[str, tuple[Any, ...]]) -> list[tuple[str, int]]:
    """Dims, with the digits that are named."""
    return [(dim, len(index)) for dim, index in named.items()]


def _plain(primitive: Primitive, phase: str) -> dict[str, tuple[Any, ...]]:
    """The digits of one sub-operator, on the smallest mesh."""
    origin = (0,) * len(primitive.axis_sides)
    return call_map(primitive, phase, origin, 0, (1,) * len(primitive.side_names))


def _moves_rightly(meshes: Meshes, move: Move) -> bool:
    """What a device needs next is here, or where the rule says."""
    device, spans = meshes.device(), meshes.given.moves[move.name]
    if move.following is None and meshes.steps <= 1:
        return True
    if move.following is None:
        t = meshes.case.fresh("step t", 0, meshes.steps - 1)
        need = meshes.named(move.phase, device, t + 1)
    else:
        t, need = meshes.steps - 1, meshes.named(move.following, device, meshes.number(0))
    sender = meshes.at_step(spans, t, device)
    if not move.is_sum or sender is None:
        own = meshes.named(move.phase, device, t)
        if meshes.contains(move.tensor, own, need):
            return True
    if sender is None or not move.hops:
        return False
    return meshes.contains(move.tensor, meshes.named(move.phase, sender, t), need)


def _is_passed_on_once(meshes: Meshes, move: Move) -> bool:
    """No two devices go on with the sum of one."""
    if meshes.steps <= 1:
        return True
    here, other = meshes.device(), meshes.device("'")
    t = meshes.case.fresh("step t", 0, meshes.steps - 1)
    source = meshes.at_step(meshes.given.moves[move.name], t, here)
    again = meshes.at_step(meshes.given.moves[move.name], t, other)
    if source is None or again is None:
        return source is again
    same = all(one == two for one, two in zip(source, again, strict=True))
    return not same or all(one == two for one, two in zip(here, other, strict=True))


def _has_home(meshes: Meshes, tensor: str) -> bool:
    """Every block rests where the rule says, and no others rest."""
    device, block = meshes.device(), {}
    if not meshes.in_grid(call_home(meshes.primitive, tensor, device, meshes.sides)):
        return False
    for dim in tensor_dims(tensor):
        counts = enumerate(meshes.slices(dim))
        block[dim] = tuple(meshes.case.fresh(f"{dim} {at}", 0, count) for at, count in counts)
    digits = [digit for index in block.values() for digit in index]
    found = meshes.ruled(meshes.given.homes[tensor], (*device, *digits), meshes.lengths)
    home = call_home(meshes.primitive, tensor, found, meshes.sides)
    return meshes.contains(tensor, home, block)


def claims(primitive: Primitive) -> Iterator[tuple[str, Any, Any]]:
    """Every claim about a primitive: its name, the function that decides it, and what of."""
    yield "steps", _has_work, None
    for phase in PHASES:
        yield f"coverage {phase}", _is_covered, phase
    for tensor in HOMES if primitive.home else ():
        yield f"home {tensor}", _has_home, tensor
    for move in () if primitive.home else moves():
        yield f"move {move.name}", _moves_rightly, move
        if move.is_sum:
            yield f"once {move.name}", _is_passed_on_once, move


def certify_primitive(given: PrimitiveCertificate, primitive: Primitive) -> int:
    """Check a certificate and count its cases. Raises `ClaimError` for what does not hold."""
    wanted, followed = {name: (holds, of) for name, holds, of in claims(primitive)}, 0
    if given.answers.keys() != wanted.keys():
        raise ClaimError("answers: expected those of every claim about this primitive, got others")
    for phase in PHASES:
        _check_count(given, primitive, phase)
    for name, (holds, of) in wanted.items():
        try:
            for case in cases(given.answers[name]):
                followed += 1
                if not holds(Meshes(primitive, given, case), of):
                    raise ClaimError("expected it to hold in every case, got one where it does not")
        except (KeyError, ValueError, IndexError, TypeError) as error:
            raise ClaimError(f"{name}: expected rules of this primitive, got others: "
                             f"{type(error).__name__}") from None  # fmt: skip
        except ClaimError as error:
            raise ClaimError(f"{name}: {error}") from None
    return followed


def _check_count(given: PrimitiveCertificate, primitive: Primitive, phase: str) -> None:
    """Devices times steps are as many as sub-operators, as polynomials in the sides."""
    names = list(primitive.side_names)
    units = [(0, tuple(int(name == side) for name in names))
             for side in primitive.axis_sides.values()]  # fmt: skip
    case = Case((), lambda *_: (False, False))
    sides = [case.fresh(name, 1) for name in names]
    steps = Linear(case, 0, {}) + primitive.steps(*sides)
    places = _product([*units, (steps.constant, tuple(steps.factors.get(n, 0) for n in names))])
    named = shape_of(_plain(primitive, phase))
    digits = [form for dim, count in named for form in given.slices.get(dim, ())[:count]]
    if places != _product(digits):
        raise ClaimError(f"slices: expected as many sub-operators of {phase} as devices times "
                         "steps, got another number")  # fmt: skip


def _product(forms: Sequence[Sides]) -> dict[Row, int]:
    """A product of forms of the sides: the sides of each term -> its factor."""
    total: dict[Row, int] = {(): 1}
    for constant, factors in forms:
        parts = [((), constant), *(((place,), factor) for place, factor in enumerate(factors))]
        made: dict[Row, int] = {}
        for (term, factor), (side, times) in product(total.items(), parts):
            key = tuple(sorted((*term, *side)))
            made[key] = made.get(key, 0) + factor * times
        total = {term: factor for term, factor in made.items() if factor}
    return total
