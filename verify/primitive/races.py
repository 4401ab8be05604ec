"""Races of a primitive for every side: what arrives and what is sent while a step computes.

The lowering posts the transfers of the next step, multiplies, and waits. A message that arrives
meanwhile must not fill the buffer of a block that the device reads, adds to or sends, and a sum
must not be sent by a device that still adds to it. Which blocks those are follows from the maps,
and which of them have one buffer is a rule of the lowering: here each block has its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import inf

from primepar.schedule.movement import NEXT_USE
from primepar.schedule.operators import PRODUCTS, Phase
from primepar.verify.formulas.blocks import Blocks
from primepar.verify.formulas.sums import Kind, kind
from primepar.verify.primitive import terms
from primepar.verify.primitive.claims import Movement
from primepar.verify.primitive.fit import Sample, Transition
from primepar.verify.primitive.fit_sender import Sender
from primepar.verify.primitive.locate import fit_rules
from primepar.verify.primitive.moved import home_samples
from primepar.verify.primitive.order import Claim
from primepar.verify.primitive.symbol import Term
from primepar.verify.primitive.symbolic import Block, Point, SymbolicMap, overlaps

NAME = "races"
Rule = Callable[[Block, Block], Term]
"""Whether two blocks of one tensor on one device have one buffer."""


def races(
    symbolic: SymbolicMap, seen: list[Sample], one_buffer: Rule = overlaps
) -> Iterator[Claim]:
    """All claims about what is in flight during a step."""
    blocks = Blocks(symbolic, inf)
    for phase, made in PRODUCTS.items():
        for tensor in made.reads:
            yield from _Flight(symbolic, phase, tensor, one_buffer).operand()
        if kind(blocks, phase) is Kind.MOVES:
            flight = _Flight(symbolic, phase, made.writes, one_buffer)
            yield from flight.sum(_senders(symbolic, seen, phase))


def _senders(
    symbolic: SymbolicMap, seen: list[Sample], phase: Phase
) -> Iterator[tuple[Term, Sender]]:
    """The rules by which sums are passed on, each with the steps at which it holds."""
    tensor, now, term = PRODUCTS[phase].writes, symbolic.now, symbolic.space.term
    spans = (
        [(each.first, each.rule) for each in fit_rules(home_samples(symbolic, seen), phase, tensor)]
        if symbolic.homes
        else [(each.first, each.sender) for each in Movement.fitted(
            seen, Transition("completion", phase, tensor, None, tensor, may_hop=True)).spans]
    )  # fmt: skip
    for place, (first, rule) in enumerate(spans):
        if isinstance(rule, Sender):
            later = [now < term(start) for start, _ in spans[place + 1 :]]
            yield terms.And(now >= term(first), *later), rule


@dataclass(frozen=True)
class _Flight:
    """One tensor in one phase, while this device computes a step."""

    symbolic: SymbolicMap
    phase: Phase
    tensor: str
    one_buffer: Rule

    @property
    def name(self) -> str:
        return f"{self.phase}, {self.tensor}"

    def operand(self) -> Iterator[Claim]:
        """What arrives for the next step fills no buffer of what is here."""
        symbolic, now = self.symbolic, self.symbolic.now
        at_step = terms.And(now >= 0, now < symbolic.steps.term - 1)
        sentence = f"{self.name}: what arrives during a step has a buffer that is not in use"
        yield self._apart(sentence, at_step, self._works(symbolic.here, now + 1, self._one))
        following = NEXT_USE.get((self.phase, self.tensor))
        if following is not None and not symbolic.homes:
            last = now == symbolic.steps.term - 1
            first = symbolic.block(following, self.tensor, symbolic.here, terms.IntVal(0))
            sentence = f"{self.name}: what arrives for {following} has a buffer that is not in use"
            yield self._apart(sentence, last, overlaps(first, self._one))

    def _apart(self, sentence: str, at_step: Term, wanted: Term) -> Claim:
        """A block that is wanted and not here does not arrive in the buffer of one that is here."""
        here, now = self.symbolic.here, self.symbolic.now
        arrives = terms.And(wanted, terms.Not(self._lies(here, now, self._one)))
        used = self._lies(here, now, self._other)
        both = terms.And(self._inside, at_step, arrives, used)
        return Claim(NAME, sentence, terms.And(both, self.one_buffer(self._one, self._other)))

    def sum(self, senders: Iterator[tuple[Term, Sender]]) -> Iterator[Claim]:
        """A sum that arrives fills no buffer of another, and nobody adds to it when it is sent.

        The products of its step wait for it in a scratch.
        """
        symbolic, now = self.symbolic, self.symbolic.now
        here, then, one, other = symbolic.here, now + 1, self._one, self._other
        at_step = terms.And(self._inside, now >= 0, now < symbolic.steps.term - 1)
        for during, sender in senders:
            source = symbolic.sender(here, sender)
            added = self._works(here, then, one)
            arrives = terms.And(at_step, during, added, terms.Not(self._works(here, now, one)))
            sentence = f"{self.name}: what {symbolic.sender_text(sender)} sends it adds to no more"
            yield Claim(NAME, sentence, terms.And(arrives, self._works(source, then, one)))
            before = terms.Int("t before")
            rested = terms.And(before >= 0, before <= now, self._works(here, before, other))
            used = terms.Or(
                self._works(here, now, other), terms.And(rested, self._rests(here, other))
            )
            sentence = f"{self.name}: a sum that arrives has a buffer that is not in use"
            yield Claim(NAME, sentence, terms.And(arrives, used, self.one_buffer(one, other)))

    @property
    def _one(self) -> Block:
        return self.symbolic.any_block(self.tensor)

    @property
    def _other(self) -> Block:
        return self.symbolic.any_block(self.tensor, "'")

    @property
    def _inside(self) -> Term:
        symbolic = self.symbolic
        grids = symbolic.in_grid(self._one), symbolic.in_grid(self._other)
        return terms.And(symbolic.in_mesh(symbolic.here), *grids)

    def _works(self, device: Point, step: Term, block: Block) -> Term:
        return overlaps(self.symbolic.block(self.phase, self.tensor, device, step), block)

    def _rests(self, device: Point, block: Block) -> Term:
        if not self.symbolic.homes:
            return terms.FALSE
        return overlaps(self.symbolic.home(self.tensor, device), block)

    def _lies(self, device: Point, step: Term, block: Block) -> Term:
        """The block is in use by this step, at home, or kept."""
        symbolic = self.symbolic
        has = [self._works(device, step, block), self._rests(device, block)]
        if self.phase != "forward" and self.tensor in symbolic.primitive.keeps:
            kept = terms.Int("t kept")
            copied = overlaps(symbolic.block("forward", self.tensor, device, kept), block)
            has.append(terms.And(kept >= 0, kept < symbolic.steps.term, copied))
        return terms.Or(*has)
