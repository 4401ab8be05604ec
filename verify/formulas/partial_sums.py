"""What becomes of partial sums that a device adds to no more, for every side.

A device leaves a sum at a step if it adds to it then, does not at the next, and is no home of it.
The lowering passes a sum that is left on to a device that is new to it, as long as there are both.
Z3 is asked which of three kinds a phase has; no kind is taken that is not proved.
"""

from __future__ import annotations

from enum import Enum, auto
from functools import lru_cache
from itertools import product

from primepar.schedule.expression import Number, negated
from primepar.schedule.operators import PHASES, PRODUCTS, Phase
from primepar.verify.deadline import UnansweredError
from primepar.verify.formulas.block_sets import BlockSets, Condition, Point


class SumFate(Enum):
    """What becomes of the sums of a phase that are left."""

    DONE = auto()
    """They are finished: they go home, or where no homes are declared no sum is left before."""
    MOVES = auto()
    """Every sum that is not finished is passed on, from each device to one that is new to it."""
    WAITS = auto()
    """None is passed on: those that are left wait until they are finished."""


class PartialSums:
    """The sums of one phase."""

    def __init__(self, blocks: BlockSets, phase: Phase) -> None:
        self.blocks, self.phase, self.tensor = blocks, phase, PRODUCTS[phase].writes
        self.block = blocks.any_block(self.tensor)
        self.here, self.other = blocks.here, blocks.point("'")
        self.now, self.then, self.first = blocks.now, blocks.step("t'"), blocks.step("t''")
        self.inside = blocks.inside(self.block, self.here, self.other)

    def kind(self) -> SumFate:
        """What becomes of them. Raises `UnansweredError` if no kind is proved."""
        never = self.blocks.never
        if never(self._left()):
            return SumFate.DONE
        if never(self.returns) and any(never(self._not_passed(each)) for each in self._offsets()):
            return SumFate.MOVES
        if never(self._could_pass()):
            return SumFate.WAITS
        text = f"{self.phase}, {self.tensor}"
        raise UnansweredError(f"{text}: no one rule says which partial sums are passed on")

    @property
    def returns(self) -> Condition:
        """A device adds to a sum at two steps and not at one between them."""
        order = (self.first < self.now) & (self.now < self.then) & self.inside
        stops = negated(self._adds(self.here, self.now))
        return order & self._adds(self.here, self.first) & stops & self._adds(self.here, self.then)

    def _adds(self, device: Point, step: Number) -> Condition:
        return self.blocks.adds(self.phase, device, step, self.block)

    def _begins(self, device: Point, step: Number) -> Condition:
        """The device adds to the sum at a step, and did not at the step before."""
        return self._adds(device, step) & negated(self._adds(device, step - 1))

    def _left(self) -> Condition:
        """This device leaves a sum that is not finished.

        It is not the last step, or with homes, somebody adds to the sum later.
        """
        rests = self.blocks.rests(self.tensor, self.here, self.block)
        stays = rests | self._adds(self.here, self.now + 1)
        goes_on = self.now < self.blocks.last
        if self.blocks.homes:
            goes_on = (self.then > self.now) & self._adds(self.other, self.then)
        return self.inside & self._adds(self.here, self.now) & negated(stays) & goes_on

    def _offsets(self) -> list[tuple[int, ...]]:
        """Where the device may be that goes on with the sum, neighbours first."""
        reach = (0, -1, 1, -2, 2) if len(self.here) < 3 else (0, -1, 1)
        every = product(reach, repeat=len(self.here))
        return sorted((each for each in every if any(each)), key=lambda each: sum(map(abs, each)))

    def _not_passed(self, offset: tuple[int, ...]) -> Condition:
        """A sum is left, and the device that far away does not begin with it.

        Where that never is, as many devices begin with a sum as leave it: different devices are not
        equally far from one.
        """
        target = {
            axis: (at + step) % self.blocks.lengths[axis] if step else at
            for (axis, at), step in zip(self.here.items(), offset, strict=True)
        }
        return self._left() & negated(self._begins(target, self.now + 1))

    def _could_pass(self) -> Condition:
        """At one step a device begins with a sum that another one has left before."""
        rests = self.blocks.rests(self.tensor, self.here, self.block)
        stays = rests | self._adds(self.here, self.now)
        has_left = (self.then < self.now) & self._adds(self.here, self.then) & negated(stays)
        return self.inside & has_left & self._begins(self.other, self.now)


@lru_cache(maxsize=len(PHASES))
def kind(blocks: BlockSets, phase: Phase) -> SumFate:
    """What becomes of the sums of a phase. Raises `UnansweredError` if no kind is proved."""
    return PartialSums(blocks, phase).kind()
