"""What is alive on any device at any moment of a training step, for every side.

The rules are those of `primepar.schedule.liveness`, read with digits of any device of any mesh. The
tests compare what is counted with lowered programs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from primepar.schedule import liveness
from primepar.schedule.liveness import AWAITED, Part, Parts, Sweep, When
from primepar.schedule.movement import NEXT_USE
from primepar.schedule.operators import PHASES, PRODUCTS, Phase
from primepar.verify.deadline import UndecidedError
from primepar.verify.formulas.blocks import ONE, Blocks
from primepar.verify.formulas.polynomial import Polynomial, Range
from primepar.verify.formulas.sums import Kind, Sums
from primepar.verify.formulas.traffic import NOT_SHARED, is_shared
from primepar.verify.primitive import terms
from primepar.verify.primitive.symbol import Term
from primepar.verify.primitive.symbolic import Block

NONE = Polynomial.of(0)


@dataclass(frozen=True)
class Alive:
    """Blocks of one tensor: those of any of `boxes`, and `more`.

    Those that `arrive` are there twice: what is in the first of these two boxes and not in the
    second.
    """

    tensor: str
    boxes: tuple[Block, ...]
    more: Polynomial = NONE
    arrive: tuple[Block, ...] = ()


@dataclass(frozen=True)
class Moment:
    """A moment of a sweep: which devices and steps it is about, and what is alive then."""

    text: str
    during: Term
    known: Range
    alive: tuple[Alive, ...]


@dataclass(frozen=True)
class Life:
    """The moments of a training step."""

    blocks: Blocks
    sums: Sums

    def moments(self) -> Iterator[Moment]:
        """All moments at which most can be alive: at every step, and where sums come home.

        What a phase brings before its first step is alive during that step too.
        """
        for sweep in self._sweeps():
            for first in (True, False):
                for last in (True, False):
                    yield self._step(sweep, first, last)
            if self.blocks.symbolic.homes:
                for phase in sweep:
                    for last in (True, False):
                        yield self._homecoming(sweep, phase, last)

    def _sweeps(self) -> list[Sweep]:
        """The sweeps in order. Raises `UndecidedError` if it is not known whether dO is shared."""
        symbolic = self.blocks.symbolic
        if not symbolic.homes:
            return liveness.sweeps(False)
        own = symbolic.block("backward", "dO", symbolic.here, symbolic.now)
        rests = symbolic.contains(symbolic.home("dO", symbolic.here), own)
        at_step = terms.inside(symbolic.now, symbolic.steps.term)
        moves = terms.And(symbolic.in_mesh(symbolic.here), at_step, terms.Not(rests))
        if self.blocks.never(moves):
            return liveness.sweeps(False)
        if is_shared(self.blocks):
            return liveness.sweeps(True)
        raise UndecidedError(NOT_SHARED)

    # Moments

    def _step(self, sweep: Sweep, first: bool, last: bool) -> Moment:
        symbolic, now = self.blocks.symbolic, self.blocks.symbolic.now
        end = symbolic.steps.term - 1
        during = [now == 0 if first else now >= 1, now == end if last else now < end]
        times = {(False, False): "a step between", (True, False): "the first step",
                 (False, True): "the last step", (True, True): "the only step"}  # fmt: skip
        text = f"{' and '.join(sweep)}, {times[first, last]}"
        alive = self._alive(sweep, last, [self._sum(phase, first) for phase in sweep])
        inside = terms.And(symbolic.in_mesh(symbolic.here), *during)
        return Moment(text, inside, self._range(1 + (not first) + (not last)), alive)

    def _range(self, least: int) -> Range:
        """What so many steps or more say of the side, where a side is the number of steps."""
        form, space = self.blocks.symbolic.steps.form, self.blocks.symbolic.space
        for name in space.names:
            if form == space.side(name):
                side = f"side {name}"
                return Range({side: least}, frozenset([side] if least == 1 else ()))
        return Range()

    def _homecoming(self, sweep: Sweep, phase: Phase, last: bool) -> Moment:
        """A part of a sum arrives in a scratch, behind a step, where its home holds another."""
        symbolic, now, tensor = (
            self.blocks.symbolic,
            self.blocks.symbolic.now,
            PRODUCTS[phase].writes,
        )
        end = symbolic.steps.term - 1
        at_step = terms.And(now >= 0, now == end if last else now < end)
        sums = [self._sum(each, True) for each in sweep]
        sums = [
            replace(each, more=each.more + ONE) if each.tensor == tensor else each for each in sums
        ]
        text = f"{phase}, {tensor} comes home {'in the end' if last else 'between steps'}"
        during = terms.And(symbolic.in_mesh(symbolic.here), at_step, self._is_message(phase))
        alive = self._alive(sweep, last, sums, used=True)
        return Moment(text, during, Range() if last else self._range(2), alive)

    def _is_message(self, phase: Phase) -> Term:
        """A sum that this step finishes rests here, where one part of it is, and another is not.

        Other parts come in a scratch, but for those of a reduce-scatter: there the members of the
        group are each home to sums of just that group.
        """
        symbolic, now, here = (
            self.blocks.symbolic,
            self.blocks.symbolic.now,
            self.blocks.symbolic.here,
        )
        tensor, block = PRODUCTS[phase].writes, symbolic.any_block(PRODUCTS[phase].writes)
        sender, last = symbolic.point(" sends"), symbolic.point(" last")
        earlier, before = terms.Int("t sends"), terms.Int("t before")
        comes = terms.And(
            self.blocks.inside(block, sender, last),
            self.blocks.rests(tensor, here, block),
            terms.Not(self.blocks.rests(tensor, sender, block)),
            terms.And(before <= now, self.blocks.works(phase, tensor, here, before, block)),
            terms.And(earlier <= now, self.blocks.works(phase, tensor, sender, earlier, block)),
            self.blocks.works(phase, tensor, last, now, block),
        )
        return terms.And(comes, terms.Or(symbolic.steps.term > 1, self._no_scatter(phase, block)))

    def _no_scatter(self, phase: Phase, block: Block) -> Term:
        """In the only step: the sum has several homes, or not all of its group are alike."""
        symbolic, tensor, only = self.blocks.symbolic, PRODUCTS[phase].writes, terms.IntVal(0)
        other = symbolic.any_block(tensor, "'")
        here, home, member, third = (symbolic.point(tag) for tag in ("", " home", "'", "''"))
        several = terms.And(
            terms.differ(here, home), symbolic.in_mesh(home), self.blocks.rests(tensor, home, block)
        )
        unlike = terms.And(
            self.blocks.inside(other, member, third),
            self.blocks.works(phase, tensor, member, only, block),
            self.blocks.rests(tensor, member, other),
            self.blocks.works(phase, tensor, third, only, block)
            != self.blocks.works(phase, tensor, third, only, other),
        )
        return terms.Or(several, unlike)

    # Tensors

    def _alive(
        self, sweep: Sweep, last: bool, sums: Iterable[Alive], used: bool = False
    ) -> tuple[Alive, ...]:
        """All that is alive; `used`: the step is over, and what it used last is freed."""
        read = liveness.readers(sweep)
        found = [self._operand(phase, tensor, last, used) for tensor, phase in read.items()]
        for tensor, reader in AWAITED[sweep[0]].items():
            if tensor not in read:
                due = Part(When.REST if self._homes else When.FIRST, reader, tensor)
                found.append(self._united(tensor, (due, *self._leftover(reader, tensor))))
        if "dO" not in read:
            found.append(self._united("dO", self._left("forward")))
        earlier = PHASES[: PHASES.index(sweep[0])]
        left = (self._united(PRODUCTS[phase].writes, self._left(phase)) for phase in earlier)
        return (*found, *left, *sums)

    @property
    def _homes(self) -> bool:
        return bool(self.blocks.symbolic.homes)

    def _operand(self, phase: Phase, tensor: str, last: bool, used: bool) -> Alive:
        """What is left of an earlier phase, what this step reads, and what is kept after it."""
        keeps = tensor in self.blocks.symbolic.primitive.keeps
        if keeps and phase == "forward":
            every = Part(When.REST, phase, tensor), Part(When.EVERY, phase, tensor)
            return self._united(tensor, every)
        now = () if used else (Part(When.NOW, phase, tensor),)
        kept = liveness.kept(
            phase, tensor, last=last, keeps=keeps, homes=self._homes, realigns=True
        )
        return self._united(tensor, (*self._leftover(phase, tensor), *now, *kept))

    def _leftover(self, reader: Phase, tensor: str) -> Parts:
        """Of what an earlier phase left, where it is more than `reader` begins with.

        It is all that `reader` begins with, or this was brought in its place: the same blocks where
        both leave the same digits open.
        """
        if self._homes:
            return ()
        left = [Part(When.LAST, phase, moved) for (phase, moved), following in NEXT_USE.items()
                if (moved, following) == (tensor, reader)]  # fmt: skip
        if (reader, tensor) == ("backward", "dO"):
            left = list(self._left("forward"))
        opened = self.blocks.symbolic.opened
        first = opened(self._box(Part(When.FIRST, reader, tensor)))
        return tuple(
            part for part in left
            if part.when is When.EVERY or opened(self._box(part)) != first
        )  # fmt: skip

    def _left(self, phase: Phase) -> Parts:
        """The sums of a phase behind it."""
        waits = not self._homes and self.sums.kinds[phase] is Kind.WAITS
        when = When.REST if self._homes else When.EVERY if waits else When.LAST
        return (Part(when, phase, PRODUCTS[phase].writes),)

    def _sum(self, phase: Phase, first: bool) -> Alive:
        """What a phase adds to, and, behind its `first` step, sums that arrive and that leave."""
        tensor, kind = PRODUCTS[phase].writes, self.sums.kinds[phase]
        rest, now = Part(When.REST, phase, tensor), Part(When.NOW, phase, tensor)
        if kind is Kind.WAITS:
            return self._united(tensor, (rest, Part(When.EVERY, phase, tensor)))
        if kind is Kind.DONE or first:
            return self._united(tensor, (rest, now))
        before = Part(When.BEFORE, phase, tensor)
        arrive = self._box(now), self._box(before)
        return replace(self._united(tensor, (rest, now, before)), arrive=arrive)

    def _united(self, tensor: str, parts: Parts) -> Alive:
        """The blocks of any of these parts; those of every step are counted one by one."""
        symbolic, boxes, more = self.blocks.symbolic, list[Block](), NONE
        for part in dict.fromkeys(parts):
            if part.when is When.REST and not self._homes:
                continue
            boxes.append(self._box(part))
            if part.when is When.REST and self.blocks.keeps(part.phase, part.tensor):
                part = Part(When.EVERY, "forward", part.tensor)
                boxes.append(self._box(part))
            if part.when is When.EVERY and not self._is_single:
                more += self.blocks.product(self.blocks.steps) * self.blocks.size(boxes.pop())
        return Alive(tensor, tuple(boxes), more)

    @property
    def _is_single(self) -> bool:
        form = self.blocks.symbolic.steps.form
        return form is not None and form.is_number and form.constant == 1

    def _box(self, part: Part) -> Block:
        """The blocks of a part; of every step those of the first."""
        symbolic, now = self.blocks.symbolic, self.blocks.symbolic.now
        if part.when is When.REST:
            return symbolic.home(part.tensor, symbolic.here)
        at = {
            When.BEFORE: now - 1, When.NOW: now, When.NEXT: now + 1,
            When.LAST: symbolic.steps.term - 1,
        }.get(part.when, terms.IntVal(0))  # fmt: skip
        return symbolic.block(part.phase, part.tensor, symbolic.here, at)
