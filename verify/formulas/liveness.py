"""What is alive on any device at any moment of a training step, for every side.

The rules are those of `primepar.schedule.liveness`, read with digits of any device of any mesh. The
tests compare what is counted with lowered programs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from primepar.schedule import liveness
from primepar.schedule.expression import every, negated
from primepar.schedule.liveness import AWAITED, LivePart, Parts, Sweep, When
from primepar.schedule.movement import NEXT_USE
from primepar.schedule.operators import PHASES, PRODUCTS, Phase
from primepar.verify.formulas.block_sets import ONE, Block, BlockSets, Condition, opened
from primepar.verify.formulas.partial_sums import SumFate, kind
from primepar.verify.formulas.polynomial import Polynomial, Range


@dataclass(frozen=True)
class LiveSets:
    """Blocks of one tensor: those of any of `boxes`, and `more`.

    Where some `arrive`, these are there twice: what is in the last box but one, not in the last.
    """

    tensor: str
    boxes: tuple[Block, ...]
    more: Polynomial
    arrive: bool = False


@dataclass(frozen=True)
class Moment:
    """A moment of a sweep: which devices and steps it is about, and what is alive then."""

    text: str
    during: Condition
    known: Range
    alive: tuple[LiveSets, ...]


class Life:
    """The moments of a training step."""

    def __init__(self, blocks: BlockSets) -> None:
        self.blocks, self.homes = blocks, blocks.homes
        self.here, self.now, self.last = blocks.here, blocks.now, blocks.last
        self.is_single = str(blocks.steps) == "1"
        self.kinds = {phase: kind(blocks, phase) for phase in PHASES}

    def moments(self) -> Iterator[Moment]:
        """All moments at which most can be alive: at every step, and where sums come home.

        What a phase brings before its first step is alive during that step too.
        """
        for sweep in liveness.sweeps(self.homes and self.blocks.shares_output_gradient):
            yield self._step(sweep, "the only step", True, True)
            yield self._step(sweep, "the first step", True, False)
            yield self._step(sweep, "a step between", False, False)
            yield self._step(sweep, "the last step", False, True)
            for phase in sweep if self.homes else ():
                yield self._homecoming(sweep, phase, last=False)
                yield self._homecoming(sweep, phase, last=True)

    # Moments

    def _step(self, sweep: Sweep, text: str, first: bool, last: bool) -> Moment:
        during = self._during(last, self.now == 0 if first else self.now >= 1)
        alive = self._alive(sweep, last, [self._sum(phase, first) for phase in sweep])
        known = self._steps(3 - first - last, only=first and last)
        return Moment(f"{' and '.join(sweep)}, {text}", during, known, alive)

    def _homecoming(self, sweep: Sweep, phase: Phase, last: bool) -> Moment:
        """A part of a sum arrives in a scratch, behind a step, where its home holds another."""
        tensor = PRODUCTS[phase].writes
        sums = (self._sum(each, True) for each in sweep)
        scratch = [replace(each, more=each.more + ONE) if each.tensor == tensor else each
                   for each in sums]  # fmt: skip
        text = f"{phase}, {tensor} comes home {'in the end' if last else 'between steps'}"
        during = self._during(last, self._is_message(phase))
        alive = self._alive(sweep, last, scratch, used=True)
        return Moment(text, during, self._steps(1 if last else 2), alive)

    def _steps(self, least: int, only: bool = False) -> Range:
        """That there are so many steps or more, where a side is the number of steps."""
        steps = str(self.blocks.steps)
        side = {f"side {steps}"} if steps in self.blocks.space.names else set[str]()
        return Range(dict.fromkeys(side, least), frozenset(side if only else ()))

    def _during(self, last: bool, *conditions: Condition) -> Condition:
        at_step = self.now == self.last if last else self.now < self.last
        return every((self.blocks.in_mesh(self.here), self.now >= 0, at_step, *conditions))

    def _is_message(self, phase: Phase) -> Condition:
        """A sum that this step finishes rests here, where one part of it is, and another is not.

        Other parts come in a scratch, but for those of a reduce-scatter: there the members of the
        group are each home to sums of just that group.
        """
        blocks, tensor = self.blocks, PRODUCTS[phase].writes
        block, sender, last = blocks.any_block(tensor), blocks.point("'"), blocks.point("''")
        earlier, before = blocks.step("t'"), blocks.step("t''")
        return every((
            blocks.inside(block, sender, last),
            blocks.rests(tensor, self.here, block),
            negated(blocks.rests(tensor, sender, block)),
            (before <= self.now) & blocks.adds(phase, self.here, before, block),
            (earlier <= self.now) & blocks.adds(phase, sender, earlier, block),
            blocks.adds(phase, last, self.now, block),
            (blocks.steps - 1 > 0) | self._no_scatter(phase, block),
        ))  # fmt: skip

    def _no_scatter(self, phase: Phase, block: Block) -> Condition:
        """In the only step: the sum has several homes, or not all of its group are alike."""
        blocks, tensor = self.blocks, PRODUCTS[phase].writes
        other, home = blocks.any_block(tensor, "'"), blocks.point(" home")
        member, third = blocks.point(" member"), blocks.point(" third")
        is_here = every(home[axis] == at for axis, at in self.here.items())
        several = negated(is_here) & blocks.inside(block, home) & blocks.rests(tensor, home, block)
        one, two = (blocks.adds(phase, third, 0, each) for each in (block, other))
        unlike = (one & negated(two)) | (negated(one) & two)
        group = blocks.adds(phase, member, 0, block) & blocks.rests(tensor, member, other)
        return several | (blocks.inside(other, member, third) & group & unlike)

    # Tensors

    def _alive(
        self, sweep: Sweep, last: bool, sums: Iterable[LiveSets], used: bool = False
    ) -> tuple[LiveSets, ...]:
        """All that is alive; `used`: the step is over, and what it used last is freed."""
        read = liveness.readers(sweep)
        found = [self._operand(phase, tensor, last, used) for tensor, phase in read.items()]
        for tensor, reader in AWAITED[sweep[0]].items():
            if tensor not in read:
                due = LivePart(When.REST if self.homes else When.FIRST, reader, tensor)
                found.append(self._united(tensor, (due, *self._leftover(reader, tensor))))
        if "dO" not in read:
            found.append(self._united("dO", self._left("forward")))
        earlier = PHASES[: PHASES.index(sweep[0])]
        left = (self._united(PRODUCTS[phase].writes, self._left(phase)) for phase in earlier)
        return (*found, *left, *sums)

    def _operand(self, phase: Phase, tensor: str, last: bool, used: bool) -> LiveSets:
        """What is left of an earlier phase, what this step reads, and what is kept after it."""
        keeps = tensor in self.blocks.primitive.keeps
        if keeps and phase == "forward":
            copies = LivePart(When.REST, phase, tensor), LivePart(When.EVERY, phase, tensor)
            return self._united(tensor, copies)
        now = () if used else (LivePart(When.NOW, phase, tensor),)
        kept = liveness.kept(phase, tensor, last=last, keeps=keeps, homes=self.homes, realigns=True)
        return self._united(tensor, (*self._leftover(phase, tensor), *now, *kept))

    def _leftover(self, reader: Phase, tensor: str) -> Parts:
        """Of what an earlier phase left, where it is more than `reader` begins with.

        It is all that `reader` begins with, or this was brought in its place: the same blocks where
        both leave the same digits open.
        """
        if self.homes:
            return ()
        left = [LivePart(When.LAST, phase, moved) for (phase, moved), following in NEXT_USE.items()
                if (moved, following) == (tensor, reader)]  # fmt: skip
        if (reader, tensor) == ("backward", "dO"):
            left = list(self._left("forward"))
        first = opened(self._box(LivePart(When.FIRST, reader, tensor)))
        return tuple(part for part in left
                     if part.when is When.EVERY or opened(self._box(part)) != first)  # fmt: skip

    def _left(self, phase: Phase) -> Parts:
        """The sums of a phase behind it."""
        waits = self.kinds[phase] is SumFate.WAITS
        when = When.REST if self.homes else When.EVERY if waits else When.LAST
        return (LivePart(when, phase, PRODUCTS[phase].writes),)

    def _sum(self, phase: Phase, first: bool) -> LiveSets:
        """What a phase adds to, and, behind its `first` step, sums that arrive and that leave."""
        tensor, kind = PRODUCTS[phase].writes, self.kinds[phase]
        moves = kind is SumFate.MOVES and not first
        times = {SumFate.WAITS: [When.EVERY]}.get(kind, [When.NOW, *[When.BEFORE] * moves])
        parts = (LivePart(when, phase, tensor) for when in (When.REST, *times))
        return replace(self._united(tensor, tuple(parts)), arrive=moves)

    def _united(self, tensor: str, parts: Parts) -> LiveSets:
        """The blocks of any of these parts; those of every step are counted one by one."""
        keeps = self.blocks.keeps
        kept = [LivePart(When.EVERY, "forward", part.tensor) for part in parts
                if part.when is When.REST and keeps(part.phase, part.tensor)]  # fmt: skip
        boxes, more = list[Block](), Polynomial.of(0)
        for part in dict.fromkeys((*kept, *parts)):
            if part.when is When.EVERY and not self.is_single:
                size = self.blocks.size(self._box(part))
                more += self.blocks.product(self.blocks.steps) * size
            elif part.when is not When.REST or self.homes:
                boxes.append(self._box(part))
        return LiveSets(tensor, tuple(boxes), more)

    def _box(self, part: LivePart) -> Block:
        """The blocks of a part; of every step those of the first."""
        if part.when is When.REST:
            return self.blocks.home(part.tensor)
        at = {When.BEFORE: self.now - 1, When.NOW: self.now, When.NEXT: self.now + 1,
              When.LAST: self.last}.get(part.when, 0)  # fmt: skip
        return self.blocks.block(part.phase, part.tensor, self.here, at)
