"""What becomes of partial sums that a device adds to no more, for every side.

A device leaves a sum at a step if it adds to it then, does not at the next, and is no home of it.
The lowering passes a sum that is left on to a device that is new to it, as long as there are both.
Z3 is asked which of three kinds a phase has; no kind is taken that is not proved.
"""

from __future__ import annotations

from enum import Enum, auto
from functools import lru_cache
from itertools import product

from primepar.schedule.operators import PHASES, PRODUCTS, Phase
from primepar.verify.deadline import UndecidedError
from primepar.verify.formulas.blocks import Blocks
from primepar.verify.primitive import terms
from primepar.verify.primitive.symbol import Term
from primepar.verify.primitive.symbolic import Point


class Kind(Enum):
    """What becomes of the sums of a phase that are left."""

    DONE = auto()
    """They are finished: they go home, or where no homes are declared no sum is left before."""
    MOVES = auto()
    """Every sum that is not finished is passed on, from each device to one that is new to it."""
    WAITS = auto()
    """None is passed on: those that are left wait until they are finished."""


class PartialSums:
    """The sums of one phase."""

    def __init__(self, blocks: Blocks, phase: Phase) -> None:
        symbolic, self.tensor = blocks.symbolic, PRODUCTS[phase].writes
        self.blocks, self.phase, self.block = blocks, phase, symbolic.any_block(self.tensor)
        self.here, self.other = symbolic.here, symbolic.point("'")
        self.now, self.then = symbolic.now, terms.Int("t'")
        self.inside = blocks.inside(self.block, self.here, self.other)

    def kind(self) -> Kind:
        """What becomes of them. Raises `UndecidedError` if no kind is proved."""
        never = self.blocks.never
        if never(self._left()):
            return Kind.DONE
        if never(self.returns) and any(never(self._not_passed(each)) for each in self._offsets()):
            return Kind.MOVES
        if never(self._could_pass()):
            return Kind.WAITS
        name = f"{self.phase}, {self.tensor}"
        raise UndecidedError(f"{name}: no one rule says which partial sums are passed on")

    @property
    def returns(self) -> Term:
        """A device adds to a sum at two steps and not at one between them."""
        first = terms.Int("t before")
        order = terms.And(self.inside, first < self.now, self.now < self.then)
        adds = [self._adds(self.here, step) for step in (first, self.now, self.then)]
        return terms.And(order, adds[0], terms.Not(adds[1]), adds[2])

    def _adds(self, device: Point, step: Term) -> Term:
        return self.blocks.adds(self.phase, device, step, self.block)

    def _begins(self, device: Point, step: Term) -> Term:
        """The device adds to the sum at a step, and did not at the step before."""
        return terms.And(self._adds(device, step), terms.Not(self._adds(device, step - 1)))

    def _left(self) -> Term:
        """This device leaves a sum that is not finished.

        It is not the last step, or with homes, somebody adds to the sum later.
        """
        symbolic = self.blocks.symbolic
        rests = self.blocks.rests(self.tensor, self.here, self.block)
        stays = terms.Or(rests, self._adds(self.here, self.now + 1))
        goes_on = self.now < symbolic.steps.term - 1
        if symbolic.homes:
            goes_on = terms.And(self.then > self.now, self._adds(self.other, self.then))
        return terms.And(self.inside, self._adds(self.here, self.now), terms.Not(stays), goes_on)

    def _offsets(self) -> list[tuple[int, ...]]:
        """Where the device may be that goes on with the sum, neighbours first."""
        every = product((0, -1, 1), repeat=len(self.here))
        return sorted((each for each in every if any(each)), key=lambda each: sum(map(abs, each)))

    def _not_passed(self, offset: tuple[int, ...]) -> Term:
        """A sum is left, and the device that far away does not begin with it.

        Where that never is, as many devices begin with a sum as leave it: different devices are not
        equally far from one.
        """
        space, lengths = self.blocks.symbolic.space, self.blocks.symbolic.lengths
        target = tuple(
            ((space.below(at, length) + step) % space.exactly(length)).term if step else at
            for at, step, length in zip(self.here, offset, lengths, strict=True)
        )
        return terms.And(self._left(), terms.Not(self._begins(target, self.now + 1)))

    def _could_pass(self) -> Term:
        """At one step a device begins with a sum that another one has left before."""
        rests = self.blocks.rests(self.tensor, self.here, self.block)
        has_left = terms.And(
            self.then < self.now,
            self._adds(self.here, self.then),
            terms.Not(terms.Or(rests, self._adds(self.here, self.now))),
        )
        return terms.And(self.inside, has_left, self._begins(self.other, self.now))


@lru_cache(maxsize=len(PHASES))
def kind(blocks: Blocks, phase: Phase) -> Kind:
    """What becomes of the sums of a phase. Raises `UndecidedError` if no kind is proved."""
    return PartialSums(blocks, phase).kind()
