"""The claims that make a primitive correct for all lengths of its sides, as conditions on its maps.

The prover asks Z3 about these claims; the checker follows the cases of a certificate through the
same ones. `docs/rules.md` has the argument, claim by claim, why they are sufficient.

A claim about all values of some names claims nothing where there is no value. So the first one,
that there is a step and a slice of every digit, is about the sides alone. Where it holds, every
other one has values on every mesh, or states where not (`empty_if`). A primitive that has no step
at all from side 7 on was once proved: *for every step t there is a step*.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
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
"""The properties that the claims establish, in the order of reports."""
Slices = Mapping[str, Sequence[Number]]
"""Dim -> the number of slices of each of its digits, as expressions of the sides."""
SMALL_SIDE = 8
"""Sides up to this one may be cases of their own."""

Given = tuple[tuple[str, Number | None], ...]
"""Names with their exclusive upper limits; None for a side, which has no limit."""


class Match(NamedTuple):
    """One digit of a block index, of the block that a device holds and of the needed one."""

    dim: str
    place: int
    held: Number
    needed: Number


@dataclass(frozen=True)
class Claim:
    """For all values of `given` there are values of `witnesses` for which `body` holds.

    Names start at 0, sides at 1. A certificate has an expression in the given names for every
    witness.
    """

    name: str
    properties: tuple[str, ...]
    given: Given
    witnesses: tuple[tuple[str, Number], ...] = ()
    matches: tuple[Match, ...] = ()
    condition: Condition | bool = True
    is_precondition: bool = False
    """Whether the other claims have no meaning where this one fails."""
    empty_if: Condition | bool = False
    """Where `given` has no values, and why that is right: a phase of one step has no next step."""

    @property
    def body(self) -> Condition | bool:
        """All digits match, and the condition holds."""
        matching = (match.held == match.needed for match in self.matches)
        body: Condition | bool = every((*matching, self.condition))
        return body


@dataclass(frozen=True)
class Subject:
    """A primitive, with what its claims depend on.

    `repeats` states that it is nested inside a primitive of several steps, so that its own steps
    are repeated.
    """

    primitive: Primitive
    slices: Slices
    repeats: bool = False

    @property
    def maps(self) -> Maps:
        """The maps as expressions."""
        return maps_of(self.primitive)

    @property
    def sides(self) -> Given:
        """The names of the sides, without limits."""
        return tuple((side, None) for side in self.primitive.side_names)

    def device(self, prefix: str = "") -> tuple[tuple[str, Number], ...]:
        """The coordinates of any device; with the prefix `at_`, those of the witness."""
        axes = self.primitive.axis_sides.items()
        return tuple((prefix + axis, name(side)) for axis, side in axes)

    def read(self, node: Number, step: Number, *, at_witness: bool = False) -> Any:
        """A digit at a step, on any device or on the witness."""
        axes, sides = self.primitive.axis_sides, self.primitive.side_names
        names = {axis: name(f"at_{axis}" if at_witness else axis) for axis in axes}
        return evaluate(node, {**names, **{side: name(side) for side in sides}, "t": step})

    def digits(self, dims: Iterable[str]) -> list[tuple[str, int, Number]]:
        """(dim, place, number of slices) of each digit."""
        return [(dim, place, count) for dim in dims
                for place, count in enumerate(self.slices.get(dim, ()))]  # fmt: skip


def claims(subject: Subject) -> Iterator[Claim]:
    """Yield every claim about a primitive."""
    yield from _has_work(subject)
    yield from _coverage(subject)
    yield from _homes(subject) if subject.maps.homes else _moves(subject)
    yield _order(subject)
    yield _buffers()


def _has_work(subject: Subject) -> Iterator[Claim]:
    """There is a step, and a slice of every digit; no divisor is less than 1."""
    maps = subject.maps
    counts = [count for _, _, count in subject.digits(subject.slices)]
    body = every(count >= 1 for count in (maps.steps, *counts))
    yield Claim("steps", ("coverage",), subject.sides, condition=body, is_precondition=True)
    layouts = (*maps.phases.values(), *maps.homes.values())
    digits = [digit for layout in layouts for index in layout.values() for digit in index]
    # Python raises for `% 0` where a solver may choose any value. So all divisors are proved to be
    # positive first.
    divisors = {id(node.parts[1]): node.parts[1] for node in nodes(maps.steps, *counts, *digits)
                if node.operator in ("%", "//")}  # fmt: skip
    given = (*subject.sides, *subject.device(), ("t", maps.steps))
    body = every(divisor >= 1 for divisor in divisors.values())
    yield Claim("divisors", ("coverage",), given, condition=body, is_precondition=True)


def _coverage(subject: Subject) -> Iterator[Claim]:
    """Every sub-operator is computed at some (device, step), and their numbers are equal.

    By counting, each is then computed once, and no device computes anything else.
    """
    steps = subject.maps.steps
    witnesses = (*subject.device("at_"), ("at_t", steps))
    for phase, slices in subject.maps.phases.items():
        # `{}` names no digit, so all digits of M, N and K are given: for every sub-operator there
        # must be a device and a step.
        cut, matches = _matched(subject, subject.slices, (slices, name("at_t")), ({}, 0))
        given = (*subject.sides, *cut)
        yield Claim(f"coverage {phase}", ("coverage",), given, witnesses, matches)
        places = reduce(mul, (*dict(subject.device()).values(), steps), 1)
        computed = reduce(mul, dict(cut).values(), 1)
        # Onto and equally many, so one to one: with 4 devices and 2 steps, 8 products that are all
        # computed by 8 places leave none for a second time.
        count = every((*_small_sides(subject), computed == places))
        yield Claim(f"count {phase}", ("coverage",), subject.sides, condition=count)


def _matched(
    subject: Subject, dims: Iterable[str], held: tuple[Digits, Number],
    needed: tuple[Digits, Number], *, at_witness: bool = True,
) -> tuple[tuple[tuple[str, Number], ...], tuple[Match, ...]]:  # fmt: skip
    """The digits that have to match for a device that holds a block to have the needed one.

    `held` and `needed` are slices with the step at which they are read. A digit that `needed`
    leaves open is a given name, and comes first; a digit that `held` leaves open matches any index.
    """
    given, matches = [], []
    for dim, place, count in subject.digits(dims):
        # A device that holds all slices of a digit (`ANY`) has whichever one is needed.
        digit, sought = digit_of(held[0], dim, place), digit_of(needed[0], dim, place)
        if digit is ANY:
            continue
        if sought is ANY:
            given.append((f"in_{dim}{place}", count))
        block = name(f"in_{dim}{place}") if sought is ANY else subject.read(sought, needed[1])
        holder = subject.read(digit, held[1], at_witness=at_witness)
        matches.append(Match(dim, place, holder, block))
    return tuple(given), tuple(matches)


def _small_sides(subject: Subject) -> Iterator[Any]:
    """Tautologies that make some sides cases of their own: small ones, and those near a threshold.

    So `s * steps == s` can be decided for `steps = where(s >= 2, 1, s)`: at s = 1 both are 1. Of
    `where(s >= 1000, 1, s)` these are 1 to 8, 999, 1000 and 1001: their number does not grow with
    the threshold.
    """
    counts = [count for _, _, count in subject.digits(subject.slices)]
    compared = {part for node in nodes(subject.maps.steps, *counts) if isinstance(node, Condition)
                for part in node.parts if type(part) is int}  # fmt: skip
    small = range(1, min(max(compared, default=0), SMALL_SIDE) + 1)
    lengths = {*small, *(number + near for number in compared for near in (-1, 0, 1))}
    for side, _ in subject.sides:
        for length in sorted(length for length in lengths if length >= 1):
            is_length = name(side) == length
            yield is_length | ~is_length


def _homes(subject: Subject) -> Iterator[Claim]:
    """Every block of I, W and O is resident on some device; no slice index is out of range."""
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
        yield Claim(f"range {tensor}", ("coverage",), given, condition=inside, is_precondition=True)


def _moves(subject: Subject) -> Iterator[Claim]:
    """A block that a device needs at one step, some device works with at the step before.

    Between steps of a phase this is placement. From the last step to the first step of the phase
    that reads the tensor next it is alignment; there O and dW stay on their devices.
    """
    steps, t = subject.maps.steps, name("t")
    last = steps - 1
    operands = [(phase, tensor) for phase, product in PRODUCTS.items() for tensor in product.reads]
    for phase, tensor in operands:
        if phase != "forward" and tensor in subject.primitive.keeps:
            continue  # Forward has sent every block to some device, which keeps it.
        about, given = f"{phase} {tensor}", (("t", last),)
        moved = _moved(subject, about, "placement", tensor, (phase, t), (phase, t + 1), given)
        # `t < steps - 1` has no value where there is one step, and then nothing moves.
        yield replace(moved, empty_if=steps == 1)
        if subject.repeats:
            # Inside an outer member of several steps the first step follows the last one: the
            # blocks that it starts with must be somewhere then.
            about, end, start = f"{about} again", (phase, last), (phase, 0)
            yield _moved(subject, about, "placement", tensor, end, start)
    stay = {("forward", "O"): "backward", ("gradient", "dW"): "forward"}
    for (phase, tensor), then in (NEXT_USE | stay).items():
        about, end, stays = f"{phase} {tensor} to {then}", (phase, last), (phase, tensor) in stay
        # O is not sent at the end of forward: the device that has the finished sum must be the one
        # that reads dO in its place, so there is no witness to choose.
        yield _moved(subject, about, "alignment", tensor, end, (then, 0), stays=stays)


def _moved(
    subject: Subject, about: str, proves: str, tensor: str, held: tuple[Phase, Number],
    needed: tuple[Phase, Number], given: Given = (), *, stays: bool = False,
) -> Claim:  # fmt: skip
    phases, dims = subject.maps.phases, tensor_dims(tensor)
    have, need = (phases[held[0]], held[1]), (phases[needed[0]], needed[1])
    opened, matches = _matched(subject, dims, have, need, at_witness=not stays)
    # Which device has the block is not stated, so it is a witness: there must be one, from which
    # the block is sent. What stays has no choice: the holder is the device itself.
    witnesses = () if stays else subject.device("at_")
    given = (*subject.sides, *subject.device(), *given, *opened)
    return Claim(about, (proves,), given, witnesses, matches)


# Claims about the order and the buffers of the lowering; they do not depend on the maps


def _order(subject: Subject) -> Claim:
    """What devices do together has one position in the order on all of them, and positions grow.

    At the start of a phase its first operands are posted (position 0) and waited for (1). Step t
    posts (2 + 4t), waits (3 + 4t), adds what arrived (4 + 4t) and finishes sums (5 + 4t). Both ends
    of a message, and all members of a collective, have one of these positions. The next phase
    starts after `4 steps + 2`.
    """
    steps, t, later = subject.maps.steps, name("t"), name("at_t")
    # `~a | b` is *if a then b*: all of step t comes before all of a later step.
    grows = ~(t < later) | (5 + 4 * t < 2 + 4 * later)
    body = grows & (2 + 4 * t > 1) & (5 + 4 * t < 4 * steps + 2)
    given = (*subject.sides, ("t", steps), ("at_t", steps))
    return Claim("order", ("deadlock-freedom",), given, condition=body)


def _buffers() -> Claim:
    """A block arrives only on a device without it, so in a buffer that is not in use; 1 is true."""
    arrives, here, is_same, other = map(name, ("arrives", "is_here", "is_same", "other_is_here"))
    only_missing = ~(arrives == 1) | (here == 0)
    # If the arriving block and the one in the buffer are the same block, one is here exactly if the
    # other is. So what arrives is not here, and nothing that is here is overwritten.
    one_buffer = ~(is_same == 1) | (here == other)
    overwrites = (arrives == 1) & (other == 1) & (is_same == 1)
    given = tuple((str(fact), 2) for fact in (arrives, here, is_same, other))
    body = ~(only_missing & one_buffer & overwrites)
    return Claim("buffers", ("races",), given, condition=body)
