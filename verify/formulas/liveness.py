"""Live blocks of a device at every moment of a training step, for every side.

The rules are those of `primepar.schedule.liveness`, evaluated with symbolic digits instead of the
blocks of one mesh. A moment is a kind of step: the first, one between, the last, or one in which a
part of a sum arrives at its home. For example, at a step between, PrimePar's forward has I of this
step and of the next, since the next block arrives while this one is in use. The tests compare the
counts with lowered programs.
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
    """Live blocks of one tensor: those of any of `boxes`, and a number of `more`.

    If `arrive`, some are live twice: those of the last box but one that are not in the last.
    """

    tensor: str
    boxes: tuple[Block, ...]
    more: Polynomial
    arrive: bool = False


@dataclass(frozen=True)
class Moment:
    """A moment of a sweep: its condition on devices and steps, and the live blocks."""

    text: str
    during: Condition
    known: Range
    live: tuple[LiveSets, ...]


class Life:
    """The moments of a training step."""

    def __init__(self, blocks: BlockSets) -> None:
        self.blocks, self.homes = blocks, blocks.homes
        self.here, self.now, self.last = blocks.here, blocks.now, blocks.last
        self.is_single = str(blocks.steps) == "1"
        self.kinds = {phase: kind(blocks, phase) for phase in PHASES}

    def moments(self) -> Iterator[Moment]:
        """Yield all moments of possible peaks: every step, and the arrival of sums at their homes.

        What a phase receives before its first step is live during that step too.
        """
        for sweep in liveness.sweeps(self.homes and self.blocks.shares_output_gradient):
            yield self._step(sweep, "the only step", True, True)
            yield self._step(sweep, "the first step", True, False)
            yield self._step(sweep, "a step between", False, False)
            yield self._step(sweep, "the last step", False, True)
            for phase in sweep if self.homes else ():
                yield self._arrival_at_home(sweep, phase, last=False)
                yield self._arrival_at_home(sweep, phase, last=True)

    # Moments

    def _step(self, sweep: Sweep, text: str, first: bool, last: bool) -> Moment:
        during = self._during(last, self.now == 0 if first else self.now >= 1)
        live = self._live(sweep, last, [self._sum(phase, first) for phase in sweep])
        known = self._steps(3 - first - last, only=first and last)
        return Moment(f"{' and '.join(sweep)}, {text}", during, known, live)

    def _arrival_at_home(self, sweep: Sweep, phase: Phase, last: bool) -> Moment:
        """A part of a sum arrives in a scratch block, where its home holds another part."""
        tensor = PRODUCTS[phase].writes
        sums = (self._sum(member, True) for member in sweep)
        scratch = [replace(sets, more=sets.more + ONE) if sets.tensor == tensor else sets
                   for sets in sums]  # fmt: skip
        text = f"{phase}, {tensor} is sent home {'in the end' if last else 'between steps'}"
        during = self._during(last, self._is_message(phase))
        live = self._live(sweep, last, scratch, used=True)
        return Moment(text, during, self._steps(1 if last else 2), live)

    def _steps(self, least: int, only: bool = False) -> Range:
        """The range with at least (or `only`) this many steps, if a side is the number of steps."""
        steps = str(self.blocks.steps)
        side = {f"side {steps}"} if steps in self.blocks.space.names else set[str]()
        return Range(dict.fromkeys(side, least), frozenset(side if only else ()))

    def _during(self, last: bool, *conditions: Condition) -> Condition:
        at_step = self.now == self.last if last else self.now < self.last
        return every((self.blocks.in_mesh(self.here), self.now >= 0, at_step, *conditions))

    def _is_message(self, phase: Phase) -> Condition:
        """A sum that this step finishes is resident here, with one part here and one elsewhere.

        The other part arrives in a scratch block, except in a reduce-scatter. There each member of
        the group is the home of sums of exactly that group.
        """
        blocks, tensor = self.blocks, PRODUCTS[phase].writes
        block, sender, last = blocks.any_block(tensor), blocks.point("'"), blocks.point("''")
        earlier, before = blocks.step("t'"), blocks.step("t''")
        return every((
            blocks.inside(block, sender, last),
            blocks.is_resident(tensor, self.here, block),
            negated(blocks.is_resident(tensor, sender, block)),
            (before <= self.now) & blocks.adds(phase, self.here, before, block),
            (earlier <= self.now) & blocks.adds(phase, sender, earlier, block),
            blocks.adds(phase, last, self.now, block),
            (blocks.steps - 1 > 0) | self._no_scatter(phase, block),
        ))  # fmt: skip

    def _no_scatter(self, phase: Phase, block: Block) -> Condition:
        """In the only step: the sum has several homes, or its members have different sums."""
        blocks, tensor = self.blocks, PRODUCTS[phase].writes
        other, home = blocks.any_block(tensor, "'"), blocks.point(" home")
        member, third = blocks.point(" member"), blocks.point(" third")
        is_here = every(home[axis] == coordinate for axis, coordinate in self.here.items())
        several = (
            negated(is_here) & blocks.inside(block, home) & blocks.is_resident(tensor, home, block)
        )
        first, second = (blocks.adds(phase, third, 0, summed) for summed in (block, other))
        unlike = (first & negated(second)) | (negated(first) & second)
        group = blocks.adds(phase, member, 0, block) & blocks.is_resident(tensor, member, other)
        return several | (blocks.inside(other, member, third) & group & unlike)

    # Tensors

    def _live(
        self, sweep: Sweep, last: bool, sums: Iterable[LiveSets], used: bool = False
    ) -> tuple[LiveSets, ...]:
        """All live blocks; if `used`, the step is over and what it used last is freed."""
        read = liveness.readers(sweep)
        live = [self._operand(phase, tensor, last, used) for tensor, phase in read.items()]
        for tensor, reader in AWAITED[sweep[0]].items():
            if tensor not in read:
                awaited = LivePart(When.REST if self.homes else When.FIRST, reader, tensor)
                live.append(self._united(tensor, (awaited, *self._leftover(reader, tensor))))
        if "dO" not in read:
            live.append(self._united("dO", self._left("forward")))
        earlier = PHASES[: PHASES.index(sweep[0])]
        left = (self._united(PRODUCTS[phase].writes, self._left(phase)) for phase in earlier)
        return (*live, *left, *sums)

    def _operand(self, phase: Phase, tensor: str, last: bool, used: bool) -> LiveSets:
        """What an earlier phase left, what this step reads, and what is kept after it."""
        keeps = tensor in self.blocks.primitive.keeps
        if keeps and phase == "forward":
            copies = LivePart(When.REST, phase, tensor), LivePart(When.EVERY, phase, tensor)
            return self._united(tensor, copies)
        now = () if used else (LivePart(When.NOW, phase, tensor),)
        kept = liveness.kept(
            phase,
            tensor,
            NEXT_USE.get((phase, tensor)),
            last=last,
            keeps=keeps,
            homes=self.homes,
            realigns=True,
        )
        return self._united(tensor, (*self._leftover(phase, tensor), *now, *kept))

    def _leftover(self, reader: Phase, tensor: str) -> Parts:
        """What an earlier phase left, if it is more than the blocks that `reader` begins with.

        Otherwise it is what `reader` begins with, or was replaced by it: the same number of blocks
        if both leave the same digits open.
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
        """The sums of a phase after its end."""
        waits = self.kinds[phase] is SumFate.WAITS
        when = When.REST if self.homes else When.EVERY if waits else When.LAST
        return (LivePart(when, phase, PRODUCTS[phase].writes),)

    def _sum(self, phase: Phase, first: bool) -> LiveSets:
        """What a phase adds to, and, after its `first` step, sums that arrive and that leave."""
        tensor, kind = PRODUCTS[phase].writes, self.kinds[phase]
        moves = kind is SumFate.MOVES and not first
        times = {SumFate.WAITS: [When.EVERY]}.get(kind, [When.NOW, *[When.BEFORE] * moves])
        parts = (LivePart(when, phase, tensor) for when in (When.REST, *times))
        return replace(self._united(tensor, tuple(parts)), arrive=moves)

    def _united(self, tensor: str, parts: Parts) -> LiveSets:
        """The blocks of any of these parts; parts of every step are only counted."""
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
        """The blocks of a part; for parts of every step those of the first."""
        if part.when is When.REST:
            return self.blocks.home(part.tensor)
        step = {When.BEFORE: self.now - 1, When.NOW: self.now, When.NEXT: self.now + 1,
              When.LAST: self.last}.get(part.when, 0)  # fmt: skip
        return self.blocks.block(part.phase, part.tensor, self.here, step)
