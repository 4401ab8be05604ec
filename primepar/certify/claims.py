"""What is claimed of a primitive, for all lengths of its sides, as conditions over its maps.

The prover asks Z3 about these claims, and the checker follows the cases of a certificate through
the same ones. `docs/proofs.md` has the argument why they are enough, rule by rule. In short:

- coverage: every sub-operator is computed somewhere, and there are as many places as sub-operators;
- without declared homes: what a device needs next, some device works with now (placement), or at
  the last step of the phase before (alignment); dO and W are where O and dW end;
- with homes: every block rests on some device, so that it can be brought and summed at any time;
- deadlock-freedom and races: the order and the buffers of the lowering, for any number of steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import pairwise
from operator import and_, mul
from typing import Any, NamedTuple

from primepar.errors import ClaimError
from primepar.schedule.expression import Condition, Number, evaluate, name, nodes
from primepar.schedule.movement import NEXT_USE
from primepar.schedule.operators import PHASES, PRODUCTS, Phase, tensor_dims
from primepar.schedule.primitive import ANY, Primitive
from primepar.schedule.tracing import Maps, maps_of

PROPERTIES = (
    "coverage", "placement", "completion", "alignment", "deadlock-freedom", "races"
)  # fmt: skip
"""What is claimed of every primitive, in the order of reports."""
Slices = Mapping[str, Sequence[Number]]
"""Dim -> how many slices each of its digits has, as expressions of the sides."""


class Match(NamedTuple):
    """One digit of a block: on the device that is found, and as it is wanted there."""

    dim: str
    place: int
    there: Number
    wanted: Number


@dataclass(frozen=True)
class Claim:
    """The `body` holds for all values of `given`, with suitable values of `found`.

    Both list names with their exclusive limits; they start at 0, sides (without a limit) at 1. A
    certificate has an expression of the given names for every name that is to be found.
    """

    name: str
    properties: tuple[str, ...]
    given: tuple[tuple[str, Number | None], ...]
    found: tuple[tuple[str, Number], ...] = ()
    matches: tuple[Match, ...] = ()
    condition: Condition | bool = True
    is_ground: bool = False
    """Whether no other claim has a meaning where this one fails."""

    @property
    def body(self) -> Condition | bool:
        """That all digits match, and the condition holds."""
        return every((*(one.there == one.wanted for one in self.matches), self.condition))


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
    def lengths(self) -> dict[str, Number]:
        """Axis -> its length."""
        return {axis: name(side) for axis, side in self.primitive.axis_sides.items()}

    @property
    def sides(self) -> tuple[tuple[str, None], ...]:
        """The sides, as names that are given."""
        return tuple((side, None) for side in self.primitive.side_names)

    @property
    def device(self) -> tuple[tuple[str, Number], ...]:
        """The coordinates of any device."""
        return tuple(self.lengths.items())

    @property
    def other(self) -> tuple[tuple[str, Number], ...]:
        """The coordinates of a device that is to be found."""
        return tuple((f"at_{axis}", length) for axis, length in self.lengths.items())

    def read(self, node: Number, step: Number | None, *, there: bool = False) -> Any:
        """A digit at another step, and on the device that is to be found."""
        axes = self.primitive.axis_sides
        names = {axis: name(f"at_{axis}" if there else axis) for axis in axes}
        names |= {side: name(side) for side in self.primitive.side_names}
        return evaluate(node, names if step is None else {**names, "t": step})

    def digits(self, dims: Iterable[str]) -> list[tuple[str, int, Number]]:
        """Dim, place and number of slices of each digit."""
        return [(dim, place, count) for dim in dims
                for place, count in enumerate(self.slices.get(dim, ()))]  # fmt: skip


def claims(subject: Subject) -> Iterator[Claim]:
    """Every claim about a primitive. Raises `ClaimError` where its names are ambiguous."""
    names = [each for each, _ in (*subject.sides, *subject.device, *subject.other)] + ["t", "at_t"]
    names += [f"in_{dim}{place}" for dim, place, _ in subject.digits(subject.slices)]
    if len(set(names)) < len(names):
        raise ClaimError("expected axes and sides that are not called t, at_... or in_...")
    yield _has_work(subject)
    yield from _coverage(subject)
    if subject.maps.homes:
        yield from _homes(subject)
    else:
        yield from _placement(subject)
        yield from _alignment(subject)
    yield _order(subject)
    yield _buffers()


def every(conditions: Iterable[Any]) -> Any:
    """All of them hold."""
    return reduce(and_, conditions, True)


def _has_work(subject: Subject) -> Claim:
    """There is a step, and a slice of every digit; nothing is divided by less than 1."""
    maps = subject.maps
    counts = [count for _, _, count in subject.digits(subject.slices)]
    digits = [digit for slices in (*maps.phases.values(), *maps.homes.values())
              for index in slices.values() for digit in index]  # fmt: skip
    divisors = [
        node.parts[1]
        for digit in (*digits, maps.steps, *counts)
        for node in nodes(digit)
        if node.operator in ("%", "//")
    ]
    body = every(count >= 1 for count in (maps.steps, *counts, *divisors))
    given = (*subject.sides, *subject.device, ("t", maps.steps))
    return Claim("steps", ("coverage",), given, condition=body, is_ground=True)


def _coverage(subject: Subject) -> Iterator[Claim]:
    """Every sub-operator is computed at some place, and there are as many places.

    So each is computed once, and no place computes anything else: by counting.
    """
    maps = subject.maps
    for phase in PHASES:
        named = maps.phases[phase]
        cut = [(dim, place, count) for dim, place, count in subject.digits(named)
               if place < len(named[dim])]  # fmt: skip
        given = tuple((f"in_{dim}{place}", count) for dim, place, count in cut)
        found = (*subject.other, ("at_t", maps.steps))
        matches = tuple(
            Match(dim, place, subject.read(named[dim][place], name("at_t"), there=True),
                  name(f"in_{dim}{place}"))
            for dim, place, _ in cut
            if named[dim][place] is not ANY
        )  # fmt: skip
        yield Claim(f"coverage {phase}", ("coverage",), (*subject.sides, *given), found, matches)
        closed = [count for dim, place, count in cut if named[dim][place] is not ANY]
        places = reduce(mul, (*subject.lengths.values(), maps.steps), 1)
        count = every((*_small_sides(subject), reduce(mul, closed, 1) == places))
        yield Claim(f"count {phase}", ("coverage",), subject.sides, condition=count)


def _small_sides(subject: Subject) -> Iterator[Any]:
    """Truths that make each small side a case of its own, up to what numbers are compared with.

    So `s * steps == s` is decided for `steps = where(s >= 2, 1, s)`: at s = 1 both are 1.
    """
    counts = [count for _, _, count in subject.digits(subject.slices)]
    compared = [
        part
        for number in (subject.maps.steps, *counts)
        for node in nodes(number)
        if isinstance(node, Condition)
        for part in node.parts
        if isinstance(part, int)
    ]
    for side, _ in subject.sides:
        for length in range(1, max(compared, default=0) + 1):
            is_length = name(side) == length
            yield is_length | ~is_length


def _homes(subject: Subject) -> Iterator[Claim]:
    """Every block of I, W and O rests on some device; no slice index is out of range."""
    for tensor, home in subject.maps.homes.items():
        cut = subject.digits(tensor_dims(tensor))
        given = tuple((f"in_{dim}{place}", count) for dim, place, count in cut)
        closed = [(dim, place, count) for dim, place, count in cut
                  if place < len(home.get(dim, ())) and home[dim][place] is not ANY]  # fmt: skip
        matches = tuple(
            Match(dim, place, subject.read(home[dim][place], None, there=True),
                  name(f"in_{dim}{place}"))
            for dim, place, _ in closed
        )  # fmt: skip
        held = ("placement", "completion", "alignment")
        yield Claim(f"home {tensor}", held, (*subject.sides, *given), subject.other, matches)
        digits = [(home[dim][place], count) for dim, place, count in closed]
        inside = every((digit >= 0) & (digit < count) for digit, count in digits)
        given = (*subject.sides, *subject.device)
        yield Claim(f"range {tensor}", ("coverage",), given, condition=inside, is_ground=True)


def _placement(subject: Subject) -> Iterator[Claim]:
    """What a device needs at the next step, some device works with now."""
    steps, t = subject.maps.steps, name("t")
    for phase, made in PRODUCTS.items():
        for tensor in made.reads:
            if phase != "forward" and tensor in subject.primitive.keeps:
                continue  # Forward has brought every block to some device, where it is kept.
            one = _from_some(subject, f"{phase} {tensor}", "placement",
                             (phase, tensor, t), (phase, t + 1))  # fmt: skip
            given = (*one.given, ("t", steps - 1))
            yield replace(one, given=given)
            if subject.turns:
                yield _from_some(subject, f"{phase} {tensor} again", "placement",
                                 (phase, tensor, steps - 1), (phase, 0))  # fmt: skip


def _alignment(subject: Subject) -> Iterator[Claim]:
    """What a phase starts with, some device had at the end of the one before; O and dW stay."""
    last = subject.maps.steps - 1
    for (phase, tensor), then in NEXT_USE.items():
        yield _from_some(subject, f"{phase} {tensor} to {then}", "alignment",
                         (phase, tensor, last), (then, 0))  # fmt: skip
    for phase, tensor, then in (("forward", "O", "backward"), ("gradient", "dW", "forward")):
        yield _from_some(subject, f"{phase} {tensor} to {then}", "alignment",
                         (phase, tensor, last), (then, 0), stays=True)  # fmt: skip


def _from_some(
    subject: Subject,
    about: str,
    proves: str,
    has: tuple[Phase, str, Number],
    needs: tuple[Phase, Number],
    *,
    stays: bool = False,
) -> Claim:
    """A block that a device needs in one phase and step, some device has in another.

    Which blocks it needs is open in the digits that the map leaves open there.
    """
    phase, tensor, before = has
    then, after = needs
    have, need = subject.maps.phases[phase], subject.maps.phases[then]
    matches, opened = [], []
    for dim, place, count in subject.digits(tensor_dims(tensor)):
        digit = have.get(dim, ())[place] if place < len(have.get(dim, ())) else ANY
        wanted = need.get(dim, ())[place] if place < len(need.get(dim, ())) else ANY
        if digit is ANY:
            continue
        if wanted is ANY:
            opened.append((f"in_{dim}{place}", count))
        block = name(f"in_{dim}{place}") if wanted is ANY else subject.read(wanted, after)
        there = subject.read(digit, before, there=not stays)
        matches.append(Match(dim, place, there, block))
    given = (*subject.sides, *subject.device, *opened)
    return Claim(about, (proves,), given, () if stays else subject.other, tuple(matches))


# What holds by the order and the buffers of the lowering, whatever the maps


def _order(subject: Subject) -> Claim:
    """Whatever devices do together has one rank on all of them, and each goes up in rank.

    A phase posts and waits for what it starts with; then every step posts, waits and finishes
    sums. Both ends of a message, and all members of a collective, take part in the same of these.
    """
    steps, t, later = subject.maps.steps, name("t"), name("at_t")
    length, wrong = 4 * steps + 2, []
    for place in range(len(PHASES)):
        opening = place * length
        post = opening + 2 + 4 * t
        ranks = [opening, opening + 1, post, post + 1, post + 2, post + 3]
        wrong += [one < other for one, other in pairwise(ranks)]
        wrong.append(where_later(t, later, post + 3, post + 4 * (later - t)))
        wrong.append(post + 3 < opening + length)
    given = (*subject.sides, ("t", steps), ("at_t", steps))
    return Claim("order", ("deadlock-freedom",), given, condition=every(wrong))


def where_later(t: Any, later: Any, rank: Any, next_rank: Any) -> Any:
    """The rank of an earlier step is below that of a later one."""
    return ~(t < later) | (rank < next_rank)


def _buffers() -> Claim:
    """A block arrives only where it is not, so in a buffer that is not in use; 1 is true."""
    arrives, here, same, other = map(name, ("arrives", "is_here", "is_same", "other_is_here"))
    only_missing = ~(arrives == 1) | (here == 0)
    one_buffer = ~(same == 1) | (here == other)
    used = (arrives == 1) & (other == 1) & (same == 1)
    given = tuple((str(each), 2) for each in (arrives, here, same, other))
    never = ~(only_missing & one_buffer & used)
    return Claim("buffers", ("races",), given, condition=never)
