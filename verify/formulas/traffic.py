"""Traffic of a primitive for every side: blocks that leave any device, counted and compared.

Who sends is of no matter. A block that a device needs and has not costs its size once, be it by a
message, a broadcast or an all-gather; so does a partial sum that is passed on. A finished sum of
which devices H have parts, at homes D, costs |H minus D| + 2 (|D| - 1) blocks: the parts that go
home, and a ring all-reduce among these. Where no homes are declared D is H.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator

from primepar.schedule.expression import Number, negated
from primepar.schedule.movement import NEXT_USE
from primepar.schedule.operators import PRODUCTS, Phase
from primepar.verify.formulas.block_sets import Block, BlockSets, Condition, either
from primepar.verify.formulas.cardinality import BlockSet, Ones, Which, subsets
from primepar.verify.formulas.partial_sums import PartialSums, SumFate, kind
from primepar.verify.formulas.polynomial import Polynomial, Range
from primepar.verify.formulas.symbolic_amount import ConditionalRatio, broken, doubtful
from primepar.verify.primitive import z3_terms as terms
from primepar.verify.primitive.z3_symbols import Term


class SentSets:
    """What is sent: of each of `sets` so many times the blocks, and of tensors so many `more`."""

    def __init__(self, blocks: BlockSets) -> None:
        self.blocks, self.here, self.homes = blocks, blocks.here, blocks.homes
        self.devices = blocks.product(*blocks.lengths.values())
        self.sets: list[tuple[int, BlockSet]] = []
        self.more: list[tuple[str, Polynomial]] = []

    def counters(self, sent: list[ConditionalRatio]) -> Iterator[tuple[str, Term]]:
        """Claims, each with what a counterexample satisfies.

        What is counted is what there is; the formula gives what is counted.
        """
        for phase, made in PRODUCTS.items():
            for tensor in made.reads:
                yield from self._operand(phase, tensor)
            yield from self._sum(phase, made.writes)
        if not self.homes:
            self._between()
        short = Ones().union(*(counted.short for _, counted in self.sets))
        names = [f"side {side}" for side in self.blocks.space.names]
        for ones in subsets(short):
            least = {names[at]: 1 if at in ones else 2 for at in short}
            known = Range(least, frozenset(names[at] for at in ones))
            for _, counted in self.sets:
                differs = self.blocks.term(counted.differs(ones))
                yield f"{counted.text}: as many as the rule says", terms.And(known.term(), differs)
            every = [
                ConditionalRatio(facts, top * self.devices, bottom) for facts, top, bottom in sent
            ]
            wrong = doubtful(every, operator.eq, self.total(ones), known)
            text = "the blocks that leave all devices are as many elements as devices times sent"
            yield text, broken(wrong, known)

    def total(self, ones: Ones) -> Polynomial:
        """Elements that leave all devices together where these sides are 1."""
        total = Polynomial.of(0)
        for times, counted in self.sets:
            total += counted.number(ones) * self.blocks.elements(counted.tensor) * times
        for tensor, count in self.more:
            total += count * self.blocks.elements(tensor)
        return total

    def _count(
        self, text: str, times: int, phase: Phase, tensor: str, which: Which,
        step: Number | None = None,
    ) -> None:  # fmt: skip
        self.sets.append((times, BlockSet(text, self.blocks, phase, tensor, which, step)))

    # Operands

    def _operand(self, phase: Phase, tensor: str) -> Iterator[tuple[str, Term]]:
        """Blocks that a device needs and has neither at home nor kept nor from the step before."""
        is_second = self.homes and (phase, tensor) == ("gradient", "dO")
        if is_second and self.blocks.shares_output_gradient:
            return
        blocks, keeps = self.blocks, self.blocks.keeps(phase, tensor)

        def brought(step: Number, block: Block) -> Condition:
            kept = keeps and blocks.works("forward", tensor, self.here, step, block)
            before = blocks.works(phase, tensor, self.here, step - 1, block)
            begins = not self.homes and step == 0
            rests = blocks.rests(tensor, self.here, block)
            return negated(either((kept, before, begins, rests)))

        if keeps:
            yield self._kept(phase, tensor)
        self._count(f"{phase}, {tensor} that is brought", 1, phase, tensor, brought)

    def _kept(self, phase: Phase, tensor: str) -> tuple[str, Term]:
        """What is kept from another step of forward is kept from the same one, or here anyway."""
        blocks, now, block = self.blocks, self.blocks.now, self.blocks.any_block(tensor)
        kept, before, needed, copied = (
            blocks.works(during, tensor, self.here, step, block)
            for during, step in (("forward", now), (phase, now - 1), (phase, now),
                                 ("forward", blocks.step("t'")))
        )  # fmt: skip
        has = either((kept, before, blocks.rests(tensor, self.here, block)))
        counter = blocks.inside(block, self.here) & needed & copied & negated(has)
        text = f"{phase}, {tensor}: what is kept is kept from the same step"
        return text, blocks.term(counter)

    def _between(self) -> None:
        """Blocks that are brought at the last step, for the phase that uses them next."""
        for (phase, tensor), following in NEXT_USE.items():

            def brought(
                _: Number, block: Block, phase: Phase = phase, tensor: str = tensor
            ) -> Condition:
                last = self.blocks.last
                return negated(self.blocks.works(phase, tensor, self.here, last, block))

            text = f"{phase} to {following}, {tensor} that is brought"
            self._count(text, 1, following, tensor, brought, step=0)

    # Sums

    def _sum(self, phase: Phase, tensor: str) -> Iterator[tuple[str, Term]]:
        """Parts of sums that leave a device, and what is reduced over several in the end."""
        blocks = self.blocks
        passes = not self.homes and kind(blocks, phase) is SumFate.MOVES

        def leaves(step: Number, block: Block) -> Condition:
            stays = blocks.adds(phase, self.here, step + 1, block)
            at_end = passes and step == blocks.last
            return negated(either((stays, blocks.rests(tensor, self.here, block), at_end)))

        times = 1 if self.homes or passes else 2
        self._count(f"{phase}, {tensor} that is left", times, phase, tensor, leaves)
        self.more.append((tensor, blocks.number(tensor) * -2))
        if passes:
            text = f"{phase}, {tensor} at the end"
            self._count(text, 2, phase, tensor, lambda *_: True, step=blocks.last)
            return
        text = f"{phase}, {tensor}: a device adds to a sum at steps that follow one another"
        yield text, blocks.term(PartialSums(blocks, phase).returns)
        if self.homes:
            self.more.append((tensor, self.devices * blocks.size(blocks.home(tensor)) * 2))
