"""What is claimed of a primitive, for all lengths of its sides, as conditions over its maps.

The prover asks Z3 about these claims; the checker follows the cases of a certificate through the
same ones. `docs/rules.md` has the argument why they are enough, claim by claim.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import mul
from typing import Any, NamedTuple

from primepar.schedule.expression import Condition, Number, evaluate, every, name, nodes
from primepar.schedule.movement import NEXT_USE
from primepar.schedule.operators import PRODUCTS, Phase, tensor_dims
from primepar.schedule.primitive import ANY, Primitive
from primepar.schedule.tracing import Digits, Maps, digit_of, maps_of

PROPERTIES = (
    "coverage", "placement", "completion", "alignment", "deadlock-freedom", "races"
)  # fmt: skip
"""What is claimed of every primitive, in the order of reports."""
Slices = Mapping[str, Sequence[Number]]
"""Dim -> how many slices each of its digits has, as expressions of the sides."""


Given = tuple[tuple[str, Number | None], ...]
"""Names with their exclusive limits; None for a side."""


class Match(NamedTuple):
    """One digit of a block: on the device that is found, and as it is wanted there."""

    dim: str
    place: int
    there: Number
    wanted: Number


@dataclass(frozen=True)
class Claim:
    """The `body` holds for all values of `given`, with suitable values of `found`.

    Names start at 0, sides (which have no limit) at 1. A certificate has an expression of the given
    names for every name that is to be found.
    """

    name: str
    properties: tuple[str, ...]
    given: Given
    found: tuple[tuple[str, Number], ...] = ()
    matches: tuple[Match, ...] = ()
    condition: Condition | bool = True
    is_ground: bool = False
    """Whether no other claim has a meaning where this one fails."""

    @property
    def body(self) -> Condition | bool:
        """That all digits match, and the condition holds."""
        matching = (match.there == match.wanted for match in self.matches)
        body: Condition | bool = every((*matching, self.condition))
        return body


@dataclass(frozen=True)
class Subject:
    """A primitive as its claims read it; `turns` where it is nested in one of several steps."""

    primitive: Primitive
    slices: Slices
    turns: bool = False

    @property
    def maps(self) -> Maps:
        """The maps as expressions."""
        return maps_of(self.primitive)

    @property
    def sides(self) -> Given:
        """The sides, as names that are given."""
        return tuple((side, None) for side in self.primitive.side_names)

    def device(self, prefix: str = "") -> tuple[tuple[str, Number], ...]:
        """The coordinates of any device; with a prefix those of one that is to be found."""
        axes = self.primitive.axis_sides.items()
        return tuple((prefix + axis, name(side)) for axis, side in axes)

    def read(self, node: Number, step: Number, *, there: bool = False) -> Any:
        """A digit at a step, of any device or of the one that is to be found."""
        axes, sides = self.primitive.axis_sides, self.primitive.side_names
        names = {axis: name(f"at_{axis}" if there else axis) for axis in axes}
        return evaluate(node, {**names, **{side: name(side) for side in sides}, "t": step})

    def digits(self, dims: Iterable[str]) -> list[tuple[str, int, Number]]:
        """Dim, place and number of slices of each digit."""
        return [(dim, place, count) for dim in dims
                for place, count in enumerate(self.slices.get(dim, ()))]  # fmt: skip


def claims(subject: Subject) -> Iterator[Claim]:
    """Every claim about a primitive."""
    yield _has_work(subject)
    yield from _coverage(subject)
    yield from _homes(subject) if subject.maps.homes else _moves(subject)
    yield _order(subject)
    yield _buffers()


def _has_work(subject: Subject) -> Claim:
    """There is a step, and a slice of every digit; nothing is divided by less than 1."""
    maps = subject.maps
    counts = [count for _, _, count in subject.digits(subject.slices)]
    slices = (*maps.phases.values(), *maps.homes.values())
    digits = [digit for each in slices for index in each.values() for digit in index]
    divisors = [
        node.parts[1]
        for digit in (*digits, maps.steps, *counts)
        for node in nodes(digit)
        if node.operator in ("%", "//")
    ]
    body = every(count >= 1 for count in (maps.steps, *counts, *divisors))
    given = (*subject.sides, *subject.device(), ("t", maps.steps))
    return Claim("steps", ("coverage",), given, condition=body, is_ground=True)


def _coverage(subject: Subject) -> Iterator[Claim]:
    """Every sub-operator is computed at some place, and there are as many places.

    So each is computed once, and no place computes anything else: by counting.
    """
    steps = subject.maps.steps
    found = (*subject.device("at_"), ("at_t", steps))
    for phase, slices in subject.maps.phases.items():
        cut, matches = _matched(subject, subject.slices, (slices, name("at_t")), ({}, 0))
        given = (*subject.sides, *cut)
        yield Claim(f"coverage {phase}", ("coverage",), given, found, matches)
        places = reduce(mul, (*dict(subject.device()).values(), steps), 1)
        computed = reduce(mul, dict(cut).values(), 1)
        count = every((*_small_sides(subject), computed == places))
        yield Claim(f"count {phase}", ("coverage",), subject.sides, condition=count)


def _matched(
    subject: Subject, dims: Iterable[str], held: tuple[Digits, Number],
    needed: tuple[Digits, Number], *, there: bool = True,
) -> tuple[tuple[tuple[str, Number], ...], tuple[Match, ...]]:  # fmt: skip
    """What matches where a device has, by some slices at a step, what is needed by others.

    Digits that `needed` leaves open are given, and come first; those that `held` does match any.
    """
    given, matches = [], []
    for dim, place, count in subject.digits(dims):
        digit, wanted = digit_of(held[0], dim, place), digit_of(needed[0], dim, place)
        if digit is ANY:
            continue
        if wanted is ANY:
            given.append((f"in_{dim}{place}", count))
        block = name(f"in_{dim}{place}") if wanted is ANY else subject.read(wanted, needed[1])
        matches.append(Match(dim, place, subject.read(digit, held[1], there=there), block))
    return tuple(given), tuple(matches)


def _small_sides(subject: Subject) -> Iterator[Any]:
    """Truths that make each small side a case of its own, up to what numbers are compared with.

    So `s * steps == s` is decided for `steps = where(s >= 2, 1, s)`: at s = 1 both are 1.
    """
    counts = [count for _, _, count in subject.digits(subject.slices)]
    conditions = [node for number in (subject.maps.steps, *counts) for node in nodes(number)
                  if isinstance(node, Condition)]  # fmt: skip
    numbers = [part for node in conditions for part in node.parts if isinstance(part, int)]
    for side, _ in subject.sides:
        for length in range(1, max(numbers, default=0) + 1):
            is_length = name(side) == length
            yield is_length | ~is_length


def _homes(subject: Subject) -> Iterator[Claim]:
    """Every block of I, W and O rests on some device; no slice index is out of range."""
    for tensor, home in subject.maps.homes.items():
        cut, matches = _matched(subject, tensor_dims(tensor), (home, 0), ({}, 0))
        properties, given = ("placement", "completion", "alignment"), (*subject.sides, *cut)
        yield Claim(f"home {tensor}", properties, given, subject.device("at_"), matches)
        inside = every(
            (digit >= 0) & (digit < count)
            for dim, place, count in subject.digits(home)
            if (digit := digit_of(home, dim, place)) is not ANY
        )
        given = (*subject.sides, *subject.device())
        yield Claim(f"range {tensor}", ("coverage",), given, condition=inside, is_ground=True)


def _moves(subject: Subject) -> Iterator[Claim]:
    """A block that a device needs in one phase and step, some device works with in another.

    At the next step: placement. At the first step of the phase that reads the tensor next:
    alignment; there O and dW stay on their devices.
    """
    last, t = subject.maps.steps - 1, name("t")
    for phase, tensor in [(phase, each) for phase, made in PRODUCTS.items() for each in made.reads]:
        if phase != "forward" and tensor in subject.primitive.keeps:
            continue  # Forward has sent every block to some device, where it is kept.
        about, given = f"{phase} {tensor}", (("t", last),)
        yield _moved(subject, about, "placement", tensor, (phase, t), (phase, t + 1), given)
        if subject.turns:
            about, end, start = f"{about} again", (phase, last), (phase, 0)
            yield _moved(subject, about, "placement", tensor, end, start)
    stay = {("forward", "O"): "backward", ("gradient", "dW"): "forward"}
    for (phase, tensor), then in (NEXT_USE | stay).items():
        about, end, stays = f"{phase} {tensor} to {then}", (phase, last), (phase, tensor) in stay
        yield _moved(subject, about, "alignment", tensor, end, (then, 0), stays=stays)


def _moved(
    subject: Subject, about: str, proves: str, tensor: str, held: tuple[Phase, Number],
    needed: tuple[Phase, Number], given: Given = (), *, stays: bool = False,
) -> Claim:  # fmt: skip
    phases, dims = subject.maps.phases, tensor_dims(tensor)
    have, need = (phases[held[0]], held[1]), (phases[needed[0]], needed[1])
    opened, matches = _matched(subject, dims, have, need, there=not stays)
    found = () if stays else subject.device("at_")
    given = (*subject.sides, *subject.device(), *given, *opened)
    return Claim(about, (proves,), given, found, matches)


# What holds by the order and the buffers of the lowering, whatever the maps


def _order(subject: Subject) -> Claim:
    """Whatever devices do together has one rank on all of them, and each goes up in rank.

    A phase posts (rank 0) and waits for (1) what it starts with; step t posts (2 + 4t), waits (3 +
    4t), adds what came (4 + 4t) and finishes sums (5 + 4t). Both ends of a message, and all members
    of a collective, have one of these ranks; the next phase starts behind `4 steps + 2`.
    """
    steps, t, later = subject.maps.steps, name("t"), name("at_t")
    grows = ~(t < later) | (5 + 4 * t < 2 + 4 * later)
    body = grows & (2 + 4 * t > 1) & (5 + 4 * t < 4 * steps + 2)
    given = (*subject.sides, ("t", steps), ("at_t", steps))
    return Claim("order", ("deadlock-freedom",), given, condition=body)


def _buffers() -> Claim:
    """A block arrives only where it is not, so in a buffer that is not in use; 1 is true."""
    arrives, here, is_same, other = map(name, ("arrives", "is_here", "is_same", "other_is_here"))
    only_missing = ~(arrives == 1) | (here == 0)
    one_buffer = ~(is_same == 1) | (here == other)
    overwrites = (arrives == 1) & (other == 1) & (is_same == 1)
    given = tuple((str(each), 2) for each in (arrives, here, is_same, other))
    body = ~(only_missing & one_buffer & overwrites)
    return Claim("buffers", ("races",), given, condition=body)
