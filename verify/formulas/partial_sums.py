"""How the partial sums that a device no longer adds to are reduced, for every side.

A device leaves a sum at a step if it adds to it then, does not at the next, and is no home of it.
The lowering passes such a sum on to a device that begins to add to it, while there are both. Z3
decides which of three kinds a phase has; only a proved kind is used. For example, at the last step
of PrimePar's gradient each device passes its dW on to the device that adds to it then.
"""

from __future__ import annotations

from enum import Enum, auto
from functools import lru_cache
from itertools import product

from primepar.schedule.deadline import UnansweredError
from primepar.schedule.expression import Number, negated
from primepar.schedule.operators import PHASES, PRODUCTS, Phase
from primepar.verify.formulas.block_sets import BlockSets, Condition, Point


class SumFate(Enum):
    """How the sums of a phase that devices leave are reduced."""

    DONE = auto()
    """They are finished: they are sent home, or without declared homes none is left earlier."""
    MOVES = auto()
    """Every sum that is not finished is passed on, from each device to one that is new to it."""
    WAITS = auto()
    """None is passed on: they wait until they are finished."""


class PartialSums:
    """The sums of one phase."""

    def __init__(self, blocks: BlockSets, phase: Phase) -> None:
        self.blocks, self.phase, self.tensor = blocks, phase, PRODUCTS[phase].writes
        self.block = blocks.any_block(self.tensor)
        self.here, self.other = blocks.here, blocks.point("'")
        self.now, self.then, self.first = blocks.now, blocks.step("t'"), blocks.step("t''")
        self.inside = blocks.inside(self.block, self.here, self.other)

    def kind(self) -> SumFate:
        """How they are reduced. Raises `UnansweredError` if no kind is proved."""
        never = self.blocks.never
        if never(self._left()):
            return SumFate.DONE
        if never(self.returns) and any(
            never(self._not_passed(offset)) for offset in self._offsets()
        ):
            return SumFate.MOVES
        if never(self._could_pass()):
            return SumFate.WAITS
        text = f"{self.phase}, {self.tensor}"
        raise UnansweredError(f"{text}: no single rule defines which partial sums are passed on")

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

        It is not the last step; or, with homes, a device adds to the sum later.
        """
        resident = self.blocks.is_resident(self.tensor, self.here, self.block)
        stays = resident | self._adds(self.here, self.now + 1)
        goes_on = self.now < self.blocks.last
        if self.blocks.homes:
            goes_on = (self.then > self.now) & self._adds(self.other, self.then)
        return self.inside & self._adds(self.here, self.now) & negated(stays) & goes_on

    def _offsets(self) -> list[tuple[int, ...]]:
        """Offsets of the device that may continue the sum, neighbours first."""
        reach = (0, -1, 1, -2, 2) if len(self.here) < 3 else (0, -1, 1)
        every = product(reach, repeat=len(self.here))
        return sorted(filter(any, every), key=lambda offset: sum(map(abs, offset)))

    def _not_passed(self, offset: tuple[int, ...]) -> Condition:
        """A sum is left, and the device at this offset does not begin with it.

        If that never happens, each sum that is left is passed on: an offset maps different devices
        to different ones.
        """
        target = {
            axis: (coordinate + step) % self.blocks.lengths[axis] if step else coordinate
            for (axis, coordinate), step in zip(self.here.items(), offset, strict=True)
        }
        return self._left() & negated(self._begins(target, self.now + 1))

    def _could_pass(self) -> Condition:
        """A device begins with a sum that another one has left before."""
        resident = self.blocks.is_resident(self.tensor, self.here, self.block)
        stays = resident | self._adds(self.here, self.now)
        has_left = (self.then < self.now) & self._adds(self.here, self.then) & negated(stays)
        return self.inside & has_left & self._begins(self.other, self.now)


@lru_cache(maxsize=len(PHASES))
def kind(blocks: BlockSets, phase: Phase) -> SumFate:
    """How the sums of a phase are reduced. Raises `UnansweredError` if no kind is proved."""
    return PartialSums(blocks, phase).kind()
