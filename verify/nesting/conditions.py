"""What a nesting asks of its members beyond their own proofs, where none of them has homes.

Which of the conditions there are depends on who takes several steps and who moves between phases.
With homes there are none: what is needed rests somewhere at any time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from time import perf_counter

import z3

from primepar.errors import SymbolicError
from primepar.schedule.movement import NEXT_USE
from primepar.schedule.nesting import Nesting
from primepar.schedule.operators import PRODUCTS, Phase
from primepar.schedule.primitive import Primitive
from primepar.verify.nesting.language import why_not_proved
from primepar.verify.primitive.claims import Movement
from primepar.verify.primitive.fit import Sample, Transition, fit_radices, samples
from primepar.verify.primitive.fit_sender import FitError, Sender
from primepar.verify.primitive.order import Claim
from primepar.verify.primitive.proof import Obligation, Prover
from primepar.verify.primitive.symbol import Term
from primepar.verify.primitive.symbolic import Block, Point, SymbolicMap, overlaps


def conditions(nesting: Nesting, deadline: float) -> Iterator[Obligation]:
    """All conditions of a nesting, each asked of Z3 once for members of one kind."""
    if nesting.has_homes:
        return
    known: dict[type[Primitive], _Member] = {}
    for primitive, name in zip(nesting.members, nesting.names, strict=True):
        known.setdefault(type(primitive), _Member(primitive, name, deadline))
    members = [known[type(primitive)] for primitive in nesting.members]
    try:
        yield from _phase_by_phase(members)
        yield from _between_phases(members)
    except (FitError, SymbolicError) as error:
        yield Obligation("alignment", "what members ask of one another", 0.0, str(error))


def _phase_by_phase(members: list[_Member]) -> Iterator[Obligation]:
    """Members in one with several steps run their phase again and again."""
    again = [
        member
        for place, member in enumerate(members)
        if member.goes_on and any(outer.goes_on for outer in members[:place])
    ]
    for member in dict.fromkeys(again):
        yield from member.turns()


def _between_phases(members: list[_Member]) -> Iterator[Obligation]:
    """Where several members move a tensor at once, it is one hop for each device only if whole."""
    for (phase, tensor), following in NEXT_USE.items():
        transition = Transition("alignment", phase, tensor, following, tensor, may_hop=True)
        moving = [member for member in members if member.sender(transition) is not None]
        if len(moving) > 1:
            for member in dict.fromkeys(moving):
                yield from map(member.asked, member.moves_whole(transition))


@dataclass(frozen=True, eq=False)
class _Member:
    """A member over all meshes; how messages name it."""

    primitive: Primitive
    name: str
    deadline: float

    @cached_property
    def seen(self) -> list[Sample]:
        return samples(self.primitive)

    @cached_property
    def symbolic(self) -> SymbolicMap:
        return SymbolicMap(self.primitive, fit_radices(self.seen))

    @cached_property
    def _prover(self) -> Prover:
        return Prover(self.symbolic, self.deadline)

    def asked(self, claim: Claim) -> Obligation:
        """How a claim ends; sides of the member alone are none of the nesting."""
        return replace(self._prover.obligation(claim), sides=None)

    @property
    def goes_on(self) -> bool:
        """Whether there may be more than one step."""
        return self.symbolic.steps.form != self.symbolic.space.number(1)

    def sender(self, transition: Transition) -> Sender | None:
        """Who sends in a transition. Raises `FitError` if no one rule says it."""
        moved = Movement.fitted(self.seen, transition)
        if moved.reason is not None:
            raise FitError(f"{moved.name}: {moved.reason}")
        (span,) = moved.spans
        return span.sender

    def turns(self) -> Iterator[Obligation]:
        """What the first step of a phase needs, some device has at its last."""
        for phase, made in PRODUCTS.items():
            for tensor in made.reads:
                start = perf_counter()
                sentence = (
                    f"{self.name} inside of several steps: {phase}, {tensor}: what the first step "
                    "needs, some device has at the last"
                )
                reason = self._turns(phase, tensor)
                yield Obligation("placement", sentence, perf_counter() - start, reason)

    def _turns(self, phase: Phase, tensor: str) -> str | None:
        """Why it is not so; None if it is. A solver that holds nothing else is quick at it."""
        symbolic, here, other = self.symbolic, self.symbolic.here, self.symbolic.point("'")
        turn = Transition("placement", phase, tensor, phase, tensor, may_hop=True)
        has = z3.And(symbolic.in_mesh(other), z3.Not(self._lacks(turn, other, here)))
        nobody = z3.ForAll(list(other), z3.Not(has))
        given = (symbolic.all_sides, symbolic.in_mesh(here))
        return why_not_proved((*given, nobody), self.deadline, "not so for some sides")

    def moves_whole(self, transition: Transition) -> Iterator[Claim]:
        """Each device has all that it needs or nothing of it, and its source sends to no other."""
        symbolic, here, other = self.symbolic, self.symbolic.here, self.symbolic.point("'")
        about = f"{self.name}, which moves {transition.tensor} where others do, after "
        about += f"{transition.phase}"
        partly = z3.And(
            self._lacks(transition, here, here),
            overlaps(self._have(transition, here), self._need(transition, here)),
        )
        sentence = f"{about}: a device that lacks a block lacks all"
        yield Claim("alignment", sentence, z3.And(symbolic.in_mesh(here), partly))
        sources = zip(self._source(transition, here), self._source(transition, other), strict=True)
        both = z3.And(symbolic.in_mesh(here), symbolic.in_mesh(other))
        differ = z3.Or(*(a != b for a, b in zip(here, other, strict=True)))
        shared = z3.And(both, differ, *(a == b for a, b in sources))
        sentence = f"{about}: no two devices have their blocks from one"
        yield Claim("alignment", sentence, shared)

    def _source(self, transition: Transition, device: Point) -> Point:
        """The device that sends to this one; itself if it has what it needs."""
        sender = self.sender(transition)
        if sender is None:
            return device
        lacks, source = (
            self._lacks(transition, device, device),
            self.symbolic.sender(device, sender),
        )
        return tuple(z3.If(lacks, a, b) for a, b in zip(source, device, strict=True))

    def _lacks(self, transition: Transition, holder: Point, device: Point) -> Term:
        """The holder has not all that the device needs next."""
        have, need = self._have(transition, holder), self._need(transition, device)
        return z3.Not(self.symbolic.contains(have, need))

    def _have(self, transition: Transition, device: Point) -> Block:
        last = self.symbolic.steps.term - 1
        return self.symbolic.block(transition.phase, transition.tensor, device, last)

    def _need(self, transition: Transition, device: Point) -> Block:
        following = transition.following or transition.phase
        return self.symbolic.block(following, transition.tensor, device, z3.IntVal(0))
