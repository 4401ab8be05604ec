"""Traffic of a primitive for every side: blocks that leave any device, counted and compared.

Who sends is of no matter. A block that a device needs and has not costs its size once, be it by a
message, a broadcast or an all-gather; so does a partial sum that is passed on. A finished sum of
which devices H have parts, at homes D, costs |H minus D| + 2 (|D| - 1) blocks: the parts that go
home, and a ring all-reduce among these. Where no homes are declared D is H.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator

from primepar.errors import SymbolicError
from primepar.schedule.movement import NEXT_USE
from primepar.schedule.operators import PRODUCTS, Phase
from primepar.verify.deadline import UndecidedError
from primepar.verify.formulas.amount import Amount, broken, doubtful
from primepar.verify.formulas.blocks import Blocks
from primepar.verify.formulas.polynomial import Polynomial, Range
from primepar.verify.formulas.sets import BlockSet, Ones, Which, subsets
from primepar.verify.formulas.sums import Kind, PartialSums, kind
from primepar.verify.primitive import terms
from primepar.verify.primitive.order import Claim
from primepar.verify.primitive.symbol import Term
from primepar.verify.primitive.symbolic import Block

NAME = "traffic"


def traffic(blocks: Blocks) -> Iterator[Claim]:
    """All claims about what a primitive sends; none if it has no formula."""
    try:
        sent = blocks.formula("sent")
        if sent is not None:
            yield from _Traffic(blocks).claims(sent)
    except (SymbolicError, UndecidedError) as error:
        yield Claim(NAME, "what is sent is as much as the formula says", None, str(error))


class _Traffic:
    """What is sent: of each of `sets` so many times the blocks, and of tensors so many `more`."""

    def __init__(self, blocks: Blocks) -> None:
        self.blocks, self.symbolic = blocks, blocks.symbolic
        self.here, self.last = blocks.symbolic.here, blocks.symbolic.steps.term - 1
        self.homes = bool(blocks.symbolic.homes)
        self.devices = blocks.product(*blocks.symbolic.lengths)
        self.sets: list[tuple[int, BlockSet]] = []
        self.more: list[tuple[str, Polynomial]] = []

    def claims(self, sent: Amount) -> Iterator[Claim]:
        """What is counted is what there is; the formula gives what is counted."""
        for phase, made in PRODUCTS.items():
            for tensor in made.reads:
                yield from self._operand(phase, tensor)
            yield from self._sum(phase, made.writes)
        if not self.homes:
            self._between()
        short = Ones().union(*(counted.short for _, counted in self.sets))
        names = [f"side {name}" for name in self.symbolic.space.names]
        for ones in subsets(short):
            least = {names[at]: 1 if at in ones else 2 for at in short}
            known = Range(least, frozenset(names[at] for at in ones))
            for _, counted in self.sets:
                sentence = f"{counted.name}: as many as the rule says"
                yield Claim(NAME, sentence, terms.And(known.term(), counted.differs(ones)))
            total = Polynomial.of(0)
            for times, counted in self.sets:
                total += counted.number(ones) * self.blocks.elements(counted.tensor) * times
            for tensor, count in self.more:
                total += count * self.blocks.elements(tensor)
            sentence = (
                "the blocks that leave all devices are as many elements as devices times sent"
            )
            every = sent * Amount.of(self.devices)
            wrong = doubtful(every, operator.eq, total, known)
            yield Claim(NAME, sentence, broken(wrong, known))

    # Operands

    def _operand(self, phase: Phase, tensor: str) -> Iterator[Claim]:
        """Blocks that a device needs and has neither at home nor kept nor from the step before."""
        is_second = self.homes and (phase, tensor) == ("gradient", "dO")
        if is_second and self.blocks.shares_output_gradient:
            return
        blocks, keeps = self.blocks, self.blocks.keeps(phase, tensor)

        def brought(step: Term, block: Block) -> Term:
            has = [
                blocks.works(phase, tensor, self.here, step - 1, block),
                blocks.rests(tensor, self.here, block),
                *([blocks.works("forward", tensor, self.here, step, block)] if keeps else []),
            ]
            begins = terms.FALSE if self.homes else step == 0
            return terms.Not(terms.Or(begins, *has))

        if keeps:
            yield self._kept(phase, tensor)
        self._count(f"{phase}, {tensor} that is brought", phase, tensor, brought)

    def _count(
        self,
        name: str,
        phase: Phase,
        tensor: str,
        which: Which,
        times: int = 1,
        step: Term | None = None,
    ) -> None:
        self.sets.append((times, BlockSet(name, self.blocks, phase, tensor, which, step)))

    def _kept(self, phase: Phase, tensor: str) -> Claim:
        """What is kept from another step of forward is kept from the same one, or here anyway."""
        blocks, now, block = self.blocks, self.symbolic.now, self.symbolic.any_block(tensor)
        kept, before, needed, copied = (
            blocks.works(during, tensor, self.here, step, block)
            for during, step in (
                ("forward", now), (phase, now - 1), (phase, now), ("forward", terms.Int("t kept"))
            )
        )  # fmt: skip
        has = terms.Or(kept, before, blocks.rests(tensor, self.here, block))
        counter = terms.And(blocks.inside(block, self.here), needed, copied, terms.Not(has))
        return Claim(NAME, f"{phase}, {tensor}: what is kept is kept from the same step", counter)

    def _between(self) -> None:
        """Blocks that are brought at the last step, for the phase that uses them next."""
        for (phase, tensor), following in NEXT_USE.items():

            def brought(_: Term, block: Block, phase: Phase = phase, tensor: str = tensor) -> Term:
                return terms.Not(self.blocks.works(phase, tensor, self.here, self.last, block))

            name = f"{phase} to {following}, {tensor} that is brought"
            self._count(name, following, tensor, brought, step=terms.IntVal(0))

    # Sums

    def _sum(self, phase: Phase, tensor: str) -> Iterator[Claim]:
        """Parts of sums that leave a device, and what is reduced over several in the end."""
        blocks, sums = self.blocks, PartialSums(self.blocks, phase)
        passes = not self.homes and kind(blocks, phase) is Kind.MOVES

        def leaves(step: Term, block: Block) -> Term:
            stays = blocks.adds(phase, self.here, step + 1, block)
            at_end = step == self.last if passes else terms.FALSE
            return terms.Not(terms.Or(stays, blocks.rests(tensor, self.here, block), at_end))

        times = 1 if self.homes or passes else 2
        self._count(f"{phase}, {tensor} that is left", phase, tensor, leaves, times)
        self.more.append((tensor, blocks.number(tensor) * -2))
        if passes:
            name = f"{phase}, {tensor} at the end"
            self._count(name, phase, tensor, lambda *_: terms.TRUE, 2, self.last)
            return
        sentence = f"{phase}, {tensor}: a device adds to a sum at steps that follow one another"
        yield Claim(NAME, sentence, sums.returns)
        if self.homes:
            rest = blocks.size(self.symbolic.home(tensor, self.here))
            self.more.append((tensor, self.devices * rest * 2))
