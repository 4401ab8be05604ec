"""What becomes of partial sums that a device adds to no more, for every side.

A device leaves a sum at a step if it adds to it then, does not at the next, and is no home of it.
The lowering passes a sum that is left on to a device that is new to it, as long as there are both.
Z3 is asked which of three kinds a phase has; no kind is taken that is not proved.
"""

from __future__ import annotations

from enum import Enum, auto
from functools import cached_property
from itertools import product

from primepar.schedule.operators import PHASES, PRODUCTS, Phase
from primepar.verify.deadline import UndecidedError
from primepar.verify.formulas.blocks import Blocks
from primepar.verify.primitive import terms
from primepar.verify.primitive.symbol import Term
from primepar.verify.primitive.symbolic import Block, Point


class Kind(Enum):
    """What becomes of the sums of a phase that are left."""

    DONE = auto()
    """They are finished: they go home, or where no homes are declared no sum is left before."""
    MOVES = auto()
    """Every sum that is not finished is passed on, from each device to one that is new to it."""
    WAITS = auto()
    """None is passed on: those that are left wait until they are finished."""


class Sums:
    """The kind of every phase."""

    def __init__(self, blocks: Blocks) -> None:
        self.blocks = blocks

    @cached_property
    def kinds(self) -> dict[Phase, Kind]:
        """Phase -> kind. Raises `UndecidedError` if none is proved."""
        return {phase: _Phase(self.blocks, phase).kind() for phase in PHASES}


class _Phase:
    def __init__(self, blocks: Blocks, phase: Phase) -> None:
        self.blocks, self.phase, self.tensor = blocks, phase, PRODUCTS[phase].writes
        self.now, self.here = blocks.symbolic.now, blocks.symbolic.here
        self.other, self.then = blocks.symbolic.point("'"), terms.Int("t'")
        self.block = blocks.symbolic.any_block(self.tensor)
        self.inside = blocks.inside(self.block, self.here, self.other)

    def kind(self) -> Kind:
        never = self.blocks.never
        if never(terms.And(self._leaves(), self._goes_on())):
            return Kind.DONE
        returns = returns_to_a_sum(self.blocks, self.phase)
        if any(never(self._not_passed(offset)) for offset in self._offsets()) and never(returns):
            return Kind.MOVES
        if never(self._could_pass()):
            return Kind.WAITS
        raise UndecidedError(
            f"{self.phase}, {self.tensor}: no one rule says which partial sums are passed on"
        )

    def _adds(self, device: Point, step: Term) -> Term:
        return self.blocks.works(self.phase, self.tensor, device, step, self.block)

    def _leaves(self) -> Term:
        """This device leaves the sum after this step; with homes only those that are not here."""
        stays = terms.Or(
            self._adds(self.here, self.now + 1),
            self.blocks.rests(self.tensor, self.here, self.block),
        )
        return terms.And(self.inside, self._adds(self.here, self.now), terms.Not(stays))

    def _goes_on(self) -> Term:
        """It is not the last step, or with homes, somebody adds to the sum later."""
        symbolic = self.blocks.symbolic
        if not symbolic.homes:
            return self.now < symbolic.steps.term - 1
        return terms.And(self.then > self.now, self._adds(self.other, self.then))

    def _offsets(self) -> list[tuple[int, ...]]:
        """Where the device may be that goes on with the sum, neighbours first."""
        every = product((0, 1, -1), repeat=len(self.here))
        return sorted((each for each in every if any(each)), key=lambda each: sum(map(abs, each)))

    def _not_passed(self, offset: tuple[int, ...]) -> Term:
        """A sum is left, and the device that far away is not new to it.

        Where that never is, as many devices are new to a sum as leave it: different devices are
        not equally far from one.
        """
        space, lengths = self.blocks.symbolic.space, self.blocks.symbolic.lengths
        target = tuple(
            ((space.below(at, length) + step) % space.exactly(length)).term if step else at
            for at, step, length in zip(self.here, offset, lengths, strict=True)
        )
        is_new = terms.And(
            self._adds(target, self.now + 1), terms.Not(self._adds(target, self.now))
        )
        return terms.And(self._leaves(), self._goes_on(), terms.Not(is_new))

    def _could_pass(self) -> Term:
        """At one step a device is new to a sum that another one has left before."""
        left = terms.And(
            self.then < self.now,
            self._adds(self.here, self.then),
            terms.Not(self._adds(self.here, self.now)),
            terms.Not(self.blocks.rests(self.tensor, self.here, self.block)),
        )
        is_new = terms.And(
            self._adds(self.other, self.now), terms.Not(self._adds(self.other, self.now - 1))
        )
        return terms.And(self.inside, left, is_new)


def returns_to_a_sum(blocks: Blocks, phase: Phase) -> Term:
    """A device adds to a sum at two steps and not at one between them."""
    symbolic, tensor = blocks.symbolic, PRODUCTS[phase].writes
    block: Block = symbolic.any_block(tensor)
    first, now, then = terms.Int("t before"), symbolic.now, terms.Int("t'")
    adds = [blocks.works(phase, tensor, symbolic.here, step, block) for step in (first, now, then)]
    order = terms.And(blocks.inside(block, symbolic.here), first < now, now < then)
    return terms.And(order, adds[0], terms.Not(adds[1]), adds[2])
