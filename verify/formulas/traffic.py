"""Traffic of a primitive for every side: blocks that leave any device, counted and compared.

Who sends is of no matter. A block that a device needs and has not costs its size once, be it by a
message, a broadcast or an all-gather; so does a partial sum that is passed on. A finished sum of
which devices H have parts, at homes D, costs |H minus D| + 2 (|D| - 1) blocks: the parts that go
home, and a ring all-reduce among these. Where no homes are declared D is H.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import dataclass, field

from primepar.errors import SymbolicError
from primepar.schedule.movement import NEXT_USE
from primepar.schedule.operators import PRODUCTS, Phase
from primepar.verify.deadline import UndecidedError
from primepar.verify.formulas.amount import Amount, broken
from primepar.verify.formulas.blocks import Blocks
from primepar.verify.formulas.polynomial import Polynomial, Range
from primepar.verify.formulas.sets import NONE, BlockSet, Ones, subsets
from primepar.verify.formulas.sums import Kind, Sums, returns_to_a_sum
from primepar.verify.primitive import terms
from primepar.verify.primitive.order import Claim
from primepar.verify.primitive.symbol import Term
from primepar.verify.primitive.symbolic import Block

NAME = "traffic"


def traffic(blocks: Blocks, sums: Sums) -> Iterator[Claim]:
    """All claims about what a primitive sends; none if it has no formula."""
    try:
        sent = blocks.formula("sent")
        if sent is not None:
            yield from _Traffic(blocks, sums, sent).claims()
    except (SymbolicError, UndecidedError) as error:
        yield Claim(NAME, "what is sent is as much as the formula says", None, str(error))


@dataclass
class _Traffic:
    """What is sent: of each of `sets` so many times the blocks, and of tensors so many blocks."""

    blocks: Blocks
    sums: Sums
    sent: Amount
    sets: list[tuple[int, BlockSet]] = field(default_factory=list)
    more: list[tuple[str, Polynomial]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.homes = bool(self.blocks.symbolic.homes)

    def claims(self) -> Iterator[Claim]:
        """What is counted is what there is; the formula gives what is counted."""
        for phase, made in PRODUCTS.items():
            for tensor in made.reads:
                yield from self._operand(phase, tensor)
            yield from self._sum(phase, made.writes)
        if not self.homes:
            self._between()
        for _, counted in self.sets:
            yield from counted.claims(NAME)
        short = Ones().union(*(counted.short for _, counted in self.sets))
        for ones in subsets(short):
            yield self._equal(short, ones)

    def _equal(self, short: Ones, ones: Ones) -> Claim:
        counts = [(each.tensor, each.number(ones) * times) for times, each in self.sets]
        total = Polynomial.of(0)
        for tensor, count in (*counts, *self.more):
            total += count * self.blocks.elements(tensor)
        names = self.blocks.symbolic.space.names
        least = {f"side {names[at]}": 1 if at in ones else 2 for at in short}
        known = Range(least, frozenset(f"side {names[at]}" for at in ones))
        sent = self.sent * Amount.of(self.blocks.product(*self.blocks.symbolic.lengths))
        sentence = "the blocks that leave all devices are as many elements as devices times sent"
        return Claim(NAME, sentence, broken(sent, operator.eq, total, known))

    # Operands

    def _operand(self, phase: Phase, tensor: str) -> Iterator[Claim]:
        """Blocks that a device needs and has neither at home nor kept nor from the step before."""
        blocks, here = self.blocks, self.blocks.symbolic.here
        if self.homes and (phase, tensor) == ("gradient", "dO") and is_shared(blocks):
            return
        keeps = blocks.keeps(phase, tensor)

        def brought(step: Term, block: Block) -> Term:
            has = [blocks.works(phase, tensor, here, step - 1, block)]
            if not self.homes:
                return terms.And(step > 0, terms.Not(has[0]))
            has.append(blocks.rests(tensor, here, block))
            if keeps:
                has.append(blocks.works("forward", tensor, here, step, block))
            return terms.Not(terms.Or(*has))

        counted = BlockSet(f"{phase}, {tensor} that is brought", blocks, phase, tensor, brought)
        if self.homes and (phase, tensor) == ("gradient", "dO"):
            self._is_none(counted)
        if keeps:
            yield self._kept(phase, tensor)
        self.sets.append((1, counted))

    def _is_none(self, counted: BlockSet) -> None:
        """If nothing is brought, nothing can be brought once for two phases either."""
        if counted.rule() != NONE or counted.short:
            raise UndecidedError(NOT_SHARED)

    def _kept(self, phase: Phase, tensor: str) -> Claim:
        """What is kept from another step of forward is kept from the same one, or here anyway."""
        blocks, symbolic = self.blocks, self.blocks.symbolic
        here, now, block = symbolic.here, symbolic.now, symbolic.any_block(tensor)
        other = terms.Int("t kept")
        has = terms.Or(
            blocks.works("forward", tensor, here, now, block),
            blocks.works(phase, tensor, here, now - 1, block),
            blocks.rests(tensor, here, block),
        )
        needed = blocks.works(phase, tensor, here, now, block)
        copied = blocks.works("forward", tensor, here, other, block)
        counter = terms.And(blocks.inside(block, here), needed, copied, terms.Not(has))
        return Claim(NAME, f"{phase}, {tensor}: what is kept is kept from the same step", counter)

    def _between(self) -> None:
        """Blocks that are brought at the last step, for the phase that uses them next."""
        blocks, symbolic = self.blocks, self.blocks.symbolic
        last, first = symbolic.steps.term - 1, terms.IntVal(0)
        for (phase, tensor), following in NEXT_USE.items():

            def brought(_: Term, block: Block, phase: Phase = phase, tensor: str = tensor) -> Term:
                return terms.Not(blocks.works(phase, tensor, symbolic.here, last, block))

            name = f"{phase} to {following}, {tensor} that is brought"
            self.sets.append((1, BlockSet(name, blocks, following, tensor, brought, first)))

    # Sums

    def _sum(self, phase: Phase, tensor: str) -> Iterator[Claim]:
        """Parts of sums that leave a device, and what is reduced over several in the end."""
        blocks, symbolic = self.blocks, self.blocks.symbolic
        last = symbolic.steps.term - 1
        passes = not self.homes and self.sums.kinds[phase] is Kind.MOVES

        def leaves(step: Term, block: Block) -> Term:
            stays = [
                blocks.works(phase, tensor, symbolic.here, step + 1, block),
                blocks.rests(tensor, symbolic.here, block),
            ]
            return terms.And(terms.Not(terms.Or(*stays)), *([step < last] if passes else []))

        left = BlockSet(f"{phase}, {tensor} that is left", blocks, phase, tensor, leaves)
        self.more.append((tensor, blocks.number(tensor) * -2))
        if passes:
            end = f"{phase}, {tensor} at the end"
            self.sets.append((1, left))
            self.sets.append((2, BlockSet(end, blocks, phase, tensor, lambda *_: terms.TRUE, last)))
            return
        sentence = f"{phase}, {tensor}: a device adds to a sum at steps that follow one another"
        yield Claim(NAME, sentence, returns_to_a_sum(blocks, phase))
        self.sets.append((1 if self.homes else 2, left))
        if self.homes:
            rest = blocks.size(symbolic.home(tensor, symbolic.here))
            self.more.append((tensor, blocks.product(*symbolic.lengths) * rest * 2))


NOT_SHARED = (
    "backward and gradient want dO at other steps, and whether one way serves both is not known "
    "for every side"
)


def is_shared(blocks: Blocks) -> bool:
    """Whether backward and gradient have the same dO at every step, for every side."""
    symbolic = blocks.symbolic
    at_step = terms.inside(symbolic.now, symbolic.steps.term)
    one, other = (
        symbolic.block(phase, "dO", symbolic.here, symbolic.now)
        for phase in ("backward", "gradient")
    )
    same = terms.And(symbolic.contains(one, other), symbolic.contains(other, one))
    return blocks.never(terms.And(symbolic.in_mesh(symbolic.here), at_step, terms.Not(same)))
