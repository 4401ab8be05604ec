"""What a primitive owes, generated from its maps: one claim, one sentence, one question to Z3."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import prod

import z3

from primepar.schedule.operators import PHASES, Phase
from primepar.verify.primitive import terms
from primepar.verify.primitive.fit import Sample, Span, Transition, fit_moves, transitions
from primepar.verify.primitive.fit_sender import FitError, Sender
from primepar.verify.primitive.order import Alternatives, Claim, order
from primepar.verify.primitive.symbol import Term
from primepar.verify.primitive.symbolic import Block, Point, SymbolicMap, overlaps


@dataclass(frozen=True)
class Movement:
    """A transition with the spans that were fitted to it, or the reason why none fits."""

    transition: Transition
    spans: tuple[Span, ...] = ()
    reason: str | None = None
    rests: bool = False
    """Whether sums rest wherever their products are made, until the phase ends."""

    @classmethod
    def fitted(cls, seen: list[Sample], transition: Transition) -> Movement:
        """Fit the spans to the samples."""
        try:
            return cls(transition, fit_moves(seen, transition))
        except FitError as error:
            if transition.is_partial and all(sample.rests(transition) for sample in seen):
                return cls(transition, rests=True)
            return cls(transition, reason=str(error))

    @property
    def name(self) -> str:
        """How sentences name it, `forward, I`."""
        moved = self.transition
        if moved.following is None:
            return f"{moved.phase}, {moved.tensor}"
        return f"{moved.phase} to {moved.following}, {moved.next_tensor}"


def claims(symbolic: SymbolicMap, seen: list[Sample]) -> Iterator[Claim | Alternatives]:
    """All claims of a primitive, property by property."""
    yield from coverage(symbolic)
    moved = [Movement.fitted(seen, transition) for transition in transitions()]
    for name in ("placement", "completion", "alignment"):
        for movement in moved:
            if movement.transition.proves == name:
                yield from _movement(symbolic, movement)
    yield from _deadlock_freedom(symbolic, moved)


def coverage(symbolic: SymbolicMap) -> Iterator[Claim]:
    """Every sub-operator of every phase is done exactly once."""
    inside = _at_some_step(symbolic)
    yield Claim("coverage", "there is a device with a step", inside, is_sanity=True)
    yield Claim("coverage", "there is at least one step", symbolic.steps.term < 1)
    for phase in PHASES:
        yield from _coverage_of(symbolic, phase)


def _at_some_step(symbolic: SymbolicMap) -> Term:
    now = symbolic.now
    return terms.And(symbolic.in_mesh(symbolic.here), now >= 0, now < symbolic.steps.term)


def _coverage_of(symbolic: SymbolicMap, phase: Phase) -> Iterator[Claim]:
    space, slices = symbolic.space, symbolic.digits[phase]
    inside = _at_some_step(symbolic)
    outside = terms.Not(symbolic.in_grid(slices))
    sentence = f"{phase}: every slice index is in its grid"
    yield Claim("coverage", sentence, terms.And(inside, outside), is_ground=True)

    other, then = symbolic.point("'"), terms.Int("t'")
    elsewhere = [
        a != b for a, b in zip((*symbolic.here, symbolic.now), (*other, then), strict=True)
    ]
    both = terms.And(inside, symbolic.in_mesh(other), then >= 0, then < symbolic.steps.term)
    same = overlaps(slices, symbolic.sub_operator(phase, other, then))
    yield Claim(
        "coverage",
        f"{phase}: no sub-operator is computed at two places or steps",
        terms.And(both, terms.Or(*elsewhere), same),
    )
    lengths = [space.term(length) for length in symbolic.lengths]
    done = prod(lengths, start=symbolic.steps.term)
    counts = (count for _, count in symbolic.counted(slices))
    wanted = prod(counts, start=terms.IntVal(1))
    yield Claim(
        "coverage",
        f"{phase}: devices times steps are as many as the sub-operators",
        z3.simplify(done != wanted, som=True),
    )


@dataclass(frozen=True)
class _Moment:
    """A movement with its blocks as terms: of any device before, and of this device after."""

    symbolic: SymbolicMap
    movement: Movement
    have: Callable[[Point], Block]
    need: Block

    @classmethod
    def of(cls, symbolic: SymbolicMap, movement: Movement) -> _Moment:
        """Between two steps `t` and `t + 1`, or between the last step and the first of the next."""
        moved, now = movement.transition, symbolic.now
        following = moved.following or moved.phase
        before, after = (now, now + 1) if moved.following is None else (
            symbolic.steps.term - 1, terms.IntVal(0)
        )  # fmt: skip
        return cls(
            symbolic,
            movement,
            lambda device: symbolic.block(moved.phase, moved.tensor, device, before),
            symbolic.block(following, moved.next_tensor, symbolic.here, after),
        )

    def during(self, place: int) -> Term:
        """This device is in the mesh, and now is in that span of the movement."""
        symbolic, spans = self.symbolic, self.movement.spans
        inside = symbolic.in_mesh(symbolic.here)
        if self.movement.transition.following is not None:
            return inside
        now, term = symbolic.now, symbolic.space.term
        later = [now < term(span.first) for span in spans[place + 1 :]]
        first = term(spans[place].first)
        last = symbolic.steps.term - 1
        return terms.And(inside, now >= 0, now < last, now >= first, *later)

    def span_text(self, place: int) -> str:
        """How sentences name the movement in that span."""
        moved, spans = self.movement, self.movement.spans
        if moved.transition.following is not None:
            return moved.name
        names = self.symbolic.space.names
        first = spans[place].first.text(names)
        if place + 1 == len(spans):
            return f"{moved.name}, from t = {first} on" if place else moved.name
        return f"{moved.name}, {first} <= t < {spans[place + 1].first.text(names)}"


def _movement(symbolic: SymbolicMap, movement: Movement) -> Iterator[Claim | Alternatives]:
    moment, transition = _Moment.of(symbolic, movement), movement.transition
    if movement.reason is not None:
        sentence = f"{movement.name}: one rule says where each block comes from"
        yield Claim(transition.proves, sentence, None, movement.reason)
    elif movement.rests:
        yield _rest(moment)
    elif transition.following is None:
        yield _no_gap(symbolic, movement)
    for place, span in enumerate(movement.spans):
        during, text = moment.during(place), moment.span_text(place)
        sanity = f"{text}: there is such a device and step"
        yield Claim(transition.proves, sanity, during, is_sanity=True)
        if span.sender is None or not transition.may_hop:
            stays = symbolic.contains(moment.have(symbolic.here), moment.need)
            sentence = f"{text}: every device has already what it needs next"
            yield Claim(transition.proves, sentence, terms.And(during, terms.Not(stays)))
        else:
            yield from _hop(moment, span.sender, during, text)


def _rest(moment: _Moment) -> Claim:
    symbolic, transition = moment.symbolic, moment.movement.transition
    here, now, other = symbolic.here, symbolic.now, symbolic.point("'")
    before, phase, tensor = terms.Int("t before"), transition.phase, transition.tensor
    own, left = (symbolic.block(phase, tensor, device, before) for device in (here, other))
    arrives = terms.Not(overlaps(own, moment.need))
    leaves = terms.Not(overlaps(left, symbolic.block(phase, tensor, other, now + 1)))
    both = terms.And(symbolic.in_mesh(here), symbolic.in_mesh(other))
    at_step = terms.And(before >= 0, before <= now, now < symbolic.steps.term - 1)
    passed_on = terms.And(arrives, leaves, overlaps(left, moment.need))
    sentence = f"{moment.movement.name}: what one device leaves is never the next of another"
    return Claim(transition.proves, sentence, terms.And(both, at_step, passed_on))


def _no_gap(symbolic: SymbolicMap, movement: Movement) -> Claim:
    """The spans were seen on a few sides only: on another there may be steps before the first."""
    now, firsts = symbolic.now, [symbolic.space.term(span.first) for span in movement.spans]
    uncovered = terms.And(
        now >= 0, now < symbolic.steps.term - 1, *(now < first for first in firsts)
    )
    sentence = f"{movement.name}: the rules leave out no step"
    return Claim(movement.transition.proves, sentence, uncovered)


def _hop(
    moment: _Moment, sender: Sender, during: Term, text: str
) -> Iterator[Claim | Alternatives]:
    """What moves comes from that one sender, and no other holder is nearer."""
    symbolic, transition = moment.symbolic, moment.movement.transition
    source = symbolic.sender(symbolic.here, sender)
    moves = terms.TRUE
    if not transition.is_partial:
        moves = terms.Not(symbolic.contains(moment.have(symbolic.here), moment.need))
    missing = terms.Not(symbolic.contains(moment.have(source), moment.need))
    name = symbolic.sender_text(sender)
    yield Claim(
        transition.proves,
        f"{text}: what a device needs next and has not, {name} has",
        terms.And(during, moves, missing),
    )
    wanted = terms.And(during, moves)
    sentence = f"{text}: no device nearer than {name} has it"

    def holds(device: Point) -> Term:
        return overlaps(moment.have(device), moment.need)

    yield none_nearer(symbolic, sender, Claim(transition.proves, sentence, wanted), holds)
    if transition.proves != "placement":
        yield one_to_one(symbolic, sender, transition.proves, text)


def none_nearer(
    symbolic: SymbolicMap, sender: Sender, wanted: Claim, holds: Callable[[Point], Term]
) -> Claim | Alternatives:
    """That where `wanted` holds no device that holds the block is nearer than the sender."""
    source, other = symbolic.sender(symbolic.here, sender), symbolic.point("'")

    def any_other() -> list[Claim]:
        nearer = symbolic.is_nearer(other, source, symbolic.here)
        found = terms.And(symbolic.in_mesh(other), holds(other), nearer)
        return [replace(wanted, counter=terms.And(wanted.counter, found))]

    few = symbolic.among_nearest(sender, symbolic.here, holds)
    if few is None:
        return any_other()[0]
    return Alternatives((replace(wanted, counter=terms.And(wanted.counter, few)),), any_other)


def one_to_one(symbolic: SymbolicMap, sender: Sender, proves: str, text: str) -> Claim:
    """No two devices have the same sender."""
    other = symbolic.point("'")
    both = terms.And(symbolic.in_mesh(symbolic.here), symbolic.in_mesh(other))
    differ = terms.Or(*(a != b for a, b in zip(symbolic.here, other, strict=True)))
    sources = symbolic.sender(symbolic.here, sender), symbolic.sender(other, sender)
    same = terms.And(*(a == b for a, b in zip(*sources, strict=True)))
    shared = terms.Or(terms.And(differ, same), terms.Not(symbolic.in_mesh(sources[0])))
    return Claim(
        proves,
        f"{text}: {symbolic.sender_text(sender)} is a device that sends to no other",
        terms.And(both, shared),
    )


def _deadlock_freedom(symbolic: SymbolicMap, moved: list[Movement]) -> Iterator[Claim]:
    for movement in moved:
        moment = _Moment.of(symbolic, movement)
        if movement.reason is not None:
            sentence = f"{movement.name}: every receive has its send"
            yield Claim("deadlock-freedom", sentence, None, movement.reason)
        for place, span in enumerate(movement.spans):
            if span.sender is not None and movement.transition.may_hop:
                text = moment.span_text(place)
                yield one_to_one(symbolic, span.sender, "deadlock-freedom", text)
    yield order(symbolic)
