"""What is alive on any device at any moment of a training step, for every side.

It follows the buffers of the lowering. A block that arrives for step t + 1 has a buffer of its own
during step t, beside those that step t reads. A sum that arrives during a step waits for the
product of that step in a scratch, and one that left stays until it is sent. Blocks at home stay.
The tests compare this, device by device and step by step, with lowered programs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

from primepar.schedule.movement import NEXT_USE
from primepar.schedule.operators import PHASES, PRODUCTS, Phase
from primepar.verify.primitive import terms
from primepar.verify.primitive.claims import Movement
from primepar.verify.primitive.fit import Sample, Transition
from primepar.verify.primitive.fit_sender import FitError
from primepar.verify.primitive.locate import fit_rules
from primepar.verify.primitive.moved import home_samples
from primepar.verify.primitive.polynomial import Polynomial, Range
from primepar.verify.primitive.symbol import Term
from primepar.verify.primitive.symbolic import Block, Point, SymbolicMap, overlaps

Sweep = tuple[Phase, ...]
"""Phases that run together: backward and gradient do where they share dO on its way."""
NONE = Polynomial.of(0)


@dataclass(frozen=True)
class Alive:
    """Blocks of one tensor: those of any of `boxes`, some of them twice, and `more`.

    Twice are those that are in the first of `arriving` and not in the second, if there is one.
    """

    tensor: str
    boxes: tuple[Block, ...]
    arriving: tuple[Block, ...] = ()
    more: Polynomial = NONE


@dataclass(frozen=True)
class Moment:
    """A moment of a sweep: which devices and steps it is about, and what is alive then."""

    text: str
    during: Term
    known: Range
    alive: tuple[Alive, ...]


@dataclass
class Life:
    """The moments of a training step."""

    symbolic: SymbolicMap
    seen: list[Sample]
    _kinds: dict[Phase, str] = field(default_factory=dict)

    def moments(self) -> Iterator[Moment]:
        """All moments at which most can be alive: at every step, and where sums come home.

        What a phase brings before its first step is alive during that step too.
        """
        for sweep in self.sweeps:
            for before in (False, True):
                for after in (False, True):
                    yield self._moment(sweep, before, after)
            if self.symbolic.homes:
                for phase in sweep:
                    for after in (False, True):
                        yield self._homecoming(sweep, phase, after)

    @cached_property
    def sweeps(self) -> list[Sweep]:
        """The sweeps in order. Raises `FitError` if it is not known whether dO is shared."""
        apart: list[Sweep] = [(phase,) for phase in PHASES]
        if not self.symbolic.homes:
            return apart
        samples = home_samples(self.symbolic, self.seen)
        if all(sample.rests_at_home("backward", "dO") for sample in samples):
            return apart
        if all(sample.alike("dO") for sample in samples):
            return [apart[0], (*apart[1], *apart[2])]
        raise FitError(
            "backward and gradient want dO at other steps, and whether one way serves both "
            "is not known for every side"
        )

    def kind(self, phase: Phase) -> str:
        """What becomes of a sum that a device adds to no more.

        It `moves` on to another device; it is `done`, or there is none; or it `waits`.
        """
        if phase not in self._kinds:
            self._kinds[phase] = self._kind(phase)
        return self._kinds[phase]

    def _kind(self, phase: Phase) -> str:
        tensor = PRODUCTS[phase].writes
        try:
            if not self.symbolic.homes:
                transition = Transition("completion", phase, tensor, None, tensor, may_hop=True)
                movement = Movement.fitted(self.seen, transition)
                if movement.rests or movement.reason:
                    return "waits"
                moves = any(span.sender is not None for span in movement.spans)
                return "moves" if moves else "done"
            samples = home_samples(self.symbolic, self.seen)
            if any(span.rule is not None for span in fit_rules(samples, phase, tensor)):
                return "moves"
            return "done" if all(each.finishes(phase, tensor) for each in samples) else "waits"
        except FitError:
            return "waits"

    # Moments

    def _moment(self, sweep: Sweep, before: bool, after: bool) -> Moment:
        """A step that has one `before` and one `after` it in the phase, or not."""
        symbolic, now = self.symbolic, self.symbolic.now
        last = symbolic.steps.term - 1
        during = [
            symbolic.in_mesh(symbolic.here),
            now >= 1 if before else now == 0,
            now < last if after else now == last,
        ]
        times = {(True, True): "a step between", (False, True): "the first step",
                 (True, False): "the last step", (False, False): "the only step"}  # fmt: skip
        text = f"{' and '.join(sweep)}, {times[before, after]}"
        alive = self._alive(sweep, before, after)
        return Moment(text, terms.And(*during), self._range(before, after), alive)

    def _range(self, before: bool, after: bool) -> Range:
        """What a moment says of the side, where there are as many steps as a side is long."""
        form = self.symbolic.steps.form
        sides = self.symbolic.space.names
        named = [name for name in sides if form == self.symbolic.space.side(name)]
        least = 1 + before + after
        if not named:
            return Range()
        side = f"side {named[0]}"
        return Range({side: least}) if least > 1 else Range(only={side: 1})

    def _homecoming(self, sweep: Sweep, phase: Phase, after: bool) -> Moment:
        """A part of a sum arrives in a scratch, behind a step, where its home holds another."""
        symbolic, now = self.symbolic, self.symbolic.now
        last = symbolic.steps.term - 1
        at_step = terms.And(now >= 0, now < last) if after else terms.And(now >= 0, now == last)
        during = terms.And(symbolic.in_mesh(symbolic.here), at_step, self._is_message(phase))
        alive = self._alive(sweep, False, after, used=True)
        scratch = Polynomial.of(1)
        written = PRODUCTS[phase].writes
        alive = tuple(
            replace(each, more=each.more + scratch) if each.tensor == written else each
            for each in alive
        )
        text = f"{phase}, {written} comes home {'between steps' if after else 'in the end'}"
        return Moment(text, during, self._range(False, after) if after else Range(), alive)

    def _is_message(self, phase: Phase) -> Term:
        """A sum that this step finishes rests here, where one part of it is, and another is not.

        Other parts come in a scratch, but for those of a reduce-scatter: there the members of the
        group are each home to sums of just that group.
        """
        symbolic, tensor = self.symbolic, PRODUCTS[phase].writes
        steps, now, block = symbolic.steps.term, symbolic.now, symbolic.any_block(tensor)
        here, sender, last = symbolic.here, symbolic.point(" sends"), symbolic.point(" last")
        earlier, before = terms.Int("t sends"), terms.Int("t before")
        adds, rests = partial(self._adds, phase), partial(self._rests_on, tensor)
        comes = terms.And(
            symbolic.in_grid(block), rests(here, block), terms.Not(rests(sender, block)),
            symbolic.in_mesh(sender), before >= 0, before <= now, adds(here, before, block),
            earlier >= 0, earlier <= now, adds(sender, earlier, block),
            symbolic.in_mesh(last), adds(last, now, block),
        )  # fmt: skip
        return terms.And(comes, terms.Or(steps > 1, self._is_no_scatter(phase, block)))

    def _is_no_scatter(self, phase: Phase, block: Block) -> Term:
        """In the only step: the sum has several homes, or not all of its group are alike."""
        symbolic, tensor = self.symbolic, PRODUCTS[phase].writes
        other = symbolic.any_block(tensor, "'")
        here, home, member, third = (symbolic.point(tag) for tag in ("", " home", "'", "''"))
        adds, rests, only = (
            partial(self._adds, phase),
            partial(self._rests_on, tensor),
            terms.IntVal(0),
        )
        another = terms.Or(*(a != b for a, b in zip(here, home, strict=True)))
        several = terms.And(another, symbolic.in_mesh(home), rests(home, block))
        inside = terms.And(
            symbolic.in_mesh(member), symbolic.in_mesh(third), symbolic.in_grid(other)
        )
        apart = adds(third, only, block) != adds(third, only, other)
        unlike = terms.And(inside, adds(member, only, block), rests(member, other), apart)
        return terms.Or(several, unlike)

    def _adds(self, phase: Phase, device: Point, step: Term, block: Block) -> Term:
        own = self.symbolic.block(phase, PRODUCTS[phase].writes, device, step)
        return overlaps(own, block)

    def _rests_on(self, tensor: str, device: Point, block: Block) -> Term:
        return overlaps(self.symbolic.home(tensor, device), block)

    # Tensors

    def _alive(
        self, sweep: Sweep, before: bool, after: bool, used: bool = False
    ) -> tuple[Alive, ...]:
        """All that is alive; `used`: the step is over, and what it used last is freed."""
        read = {
            tensor: phase for phase in reversed(sweep) for tensor in PRODUCTS[phase].reads
        }  # fmt: skip
        found = [self._operand(phase, tensor, after, used) for tensor, phase in read.items()]
        found += [self._sum(phase, before, used) for phase in sweep]
        found += [self._left(phase) for phase in PHASES[: PHASES.index(sweep[0])]]
        for tensor in {"I", "W", "dO"} - set(read):
            found.append(self._unread(tensor, sweep[0]))
        return tuple(found)

    def _operand(self, phase: Phase, tensor: str, after: bool, used: bool) -> Alive:
        symbolic, now = self.symbolic, self.symbolic.now
        resting = self._resting(phase, tensor)
        boxes = [*resting.boxes, *([] if used else [self._at(phase, tensor, now)])]
        following = NEXT_USE.get((phase, tensor))
        if after:
            boxes.append(self._at(phase, tensor, now + 1))
        elif following is not None and not symbolic.homes and self._hops(phase, tensor):
            boxes.append(self._at(following, tensor, terms.IntVal(0)))
        return replace(resting, boxes=tuple(boxes))

    def _resting(self, phase: Phase, tensor: str) -> Alive:
        """What lies there all through a phase: at home, kept, or left of an earlier phase."""
        symbolic = self.symbolic
        if not symbolic.homes:
            return self._leftover(phase, tensor)
        home = Alive(tensor, (symbolic.home(tensor, symbolic.here),))
        if tensor not in symbolic.primitive.keeps:
            return home
        return self._copies(home, "forward")

    def _copies(self, alive: Alive, phase: Phase) -> Alive:
        """With the blocks of all steps of a phase."""
        block = self._at(phase, alive.tensor, terms.IntVal(0))
        form = self.symbolic.steps.form
        if form is None:
            raise FitError("the number of steps is no sum of sides")
        if form.is_number and form.constant == 1:
            return replace(alive, boxes=(*alive.boxes, block))
        every = self.symbolic.space.polynomial(form) * self.symbolic.size(block)
        return replace(alive, more=alive.more + every)

    def _leftover(self, phase: Phase, tensor: str) -> Alive:
        """Of what an earlier phase left, where it is more than this one begins with."""
        nothing = Alive(tensor, ())
        if (phase, tensor) == ("backward", "dO"):
            if self.kind("forward") == "waits":
                return replace(self._copies(Alive("O", ()), "forward"), tensor="dO")
            return self._unlike(nothing, "forward", "O", phase)
        for (earlier, moved), following in NEXT_USE.items():
            if (moved, following) == (tensor, phase) and not self._hops(earlier, tensor):
                return self._unlike(nothing, earlier, tensor, phase)
        return nothing

    def _unlike(self, alive: Alive, earlier: Phase, tensor: str, phase: Phase) -> Alive:
        have = self._at(earlier, tensor, self.symbolic.steps.term - 1)
        need = self._at(phase, alive.tensor, terms.IntVal(0))
        if self.symbolic.opened(have) == self.symbolic.opened(need):
            return alive
        return replace(alive, boxes=(*alive.boxes, have))

    def _sum(self, phase: Phase, before: bool, used: bool) -> Alive:
        """What a phase adds to: a block that has arrived is there twice, and the one that left."""
        symbolic, now, tensor = self.symbolic, self.symbolic.now, PRODUCTS[phase].writes
        own = self._at(phase, tensor, now)
        home = (symbolic.home(tensor, symbolic.here),) if symbolic.homes else ()
        kind = self.kind(phase)
        if kind == "waits":
            return self._copies(Alive(tensor, home), phase)
        if kind == "done" or not before or used:
            return Alive(tensor, (*home, own))
        left = self._at(phase, tensor, now - 1)
        return Alive(tensor, (*home, own, left), arriving=(own, left))

    def _left(self, phase: Phase) -> Alive:
        """The sums of an earlier phase."""
        symbolic, tensor = self.symbolic, PRODUCTS[phase].writes
        if symbolic.homes:
            return Alive(tensor, (symbolic.home(tensor, symbolic.here),))
        if self.kind(phase) == "waits":
            return self._copies(Alive(tensor, ()), phase)
        return Alive(tensor, (self._at(phase, tensor, symbolic.steps.term - 1),))

    def _unread(self, tensor: str, phase: Phase) -> Alive:
        """An operand where it is not read: dO in forward, I in backward, W in gradient."""
        symbolic = self.symbolic
        if symbolic.homes:
            home = Alive(tensor, (symbolic.home(tensor, symbolic.here),))
            kept = tensor == "I" and tensor in symbolic.primitive.keeps
            return self._copies(home, "forward") if kept else home
        if tensor == "dO":
            return replace(self._left("forward"), tensor="dO")
        reader: Phase = {"I": "gradient", "W": "forward"}[tensor]
        left = self._leftover(reader, tensor)
        return replace(left, boxes=(*left.boxes, self._at(reader, tensor, terms.IntVal(0))))

    def _hops(self, phase: Phase, tensor: str) -> bool:
        """Whether an operand makes a hop to where its next phase begins."""
        following = NEXT_USE[phase, tensor]
        transition = Transition("alignment", phase, tensor, following, tensor, may_hop=True)
        spans = Movement.fitted(self.seen, transition).spans
        return any(span.sender is not None for span in spans)

    def _at(self, phase: Phase, tensor: str, step: Term) -> Block:
        return self.symbolic.block(phase, tensor, self.symbolic.here, step)


def finished(life: Life, phase: Phase) -> tuple[str, Term]:
    """That nobody adds to a sum that a device has left: the claim of a kind that is `done`."""
    symbolic, now, tensor = life.symbolic, life.symbolic.now, PRODUCTS[phase].writes
    block, then, other = symbolic.any_block(tensor), terms.Int("t then"), symbolic.point("'")

    def works(device: tuple[Term, ...], step: Term) -> Term:
        return overlaps(symbolic.block(phase, tensor, device, step), block)

    at_home = overlaps(symbolic.home(tensor, symbolic.here), block)
    goes = terms.And(
        works(symbolic.here, now), terms.Not(terms.Or(works(symbolic.here, now + 1), at_home))
    )
    times = terms.And(now >= 0, now < then, then < symbolic.steps.term)
    inside = terms.And(symbolic.in_mesh(symbolic.here), symbolic.in_mesh(other))
    sentence = f"{phase}, {tensor}: what a device leaves away from home is finished"
    return sentence, terms.And(inside, symbolic.in_grid(block), times, goes, works(other, then))
