"""Traffic of a primitive for every side: what is brought and what leaves, counted and compared.

The movement is that of `claims` and `homes`, whose claims say that all of it
can be made; here it is counted. Every block that a device is brought leaves one other device. A
part of a sum leaves a device that goes on without it and is no home of it; where a sum ends on
several devices, the ring all-reduce sends 2 (h - 1) blocks for each.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product
from math import prod

from primepar.errors import SymbolicError
from primepar.schedule.movement import NEXT_USE
from primepar.schedule.operators import PRODUCTS, Phase, tensor_dims
from primepar.verify.primitive import terms
from primepar.verify.primitive.amount import Amount, broken
from primepar.verify.primitive.claims import Movement
from primepar.verify.primitive.count import Counted, Counter, Facts, Truth, meshes
from primepar.verify.primitive.fit import Sample, Transition
from primepar.verify.primitive.fit_count import NONE
from primepar.verify.primitive.fit_sender import FitError
from primepar.verify.primitive.order import Claim
from primepar.verify.primitive.polynomial import Polynomial, Range
from primepar.verify.primitive.symbol import Term
from primepar.verify.primitive.symbolic import SymbolicMap, overlaps

NAME = "traffic"
ONE = Polynomial.of(1)


@dataclass(frozen=True)
class Part:
    """A share of the traffic: `times` the blocks of a set, or all of these at `rest`."""

    tensor: str
    times: int
    counted: Counted | None = None
    """None: twice how much more than once each block of the tensor rests at home."""
    less: int = 0
    """How many times every block of the tensor once is taken off."""


def traffic(symbolic: SymbolicMap, seen: list[Sample]) -> Iterator[Claim]:
    """All claims about what a primitive sends; none if it has no formula."""
    try:
        told = formula(symbolic, "sent")
        if told is not None:
            yield from _Traffic(symbolic, seen, told).claims()
    except (FitError, SymbolicError) as error:
        yield Claim(NAME, "what is sent is as much as the formula says", None, str(error))


SIZES = ("M", "N", "K")
"""Dims whose sizes a formula is given; M counts the rows of all batches."""


def formula(symbolic: SymbolicMap, name: str) -> Amount | None:
    """A primitive's own formula `sent` or `held`; None if it has none.

    Raises `SymbolicError` if amounts cannot follow it.
    """
    variables = [
        *(f"size {dim}" for dim in SIZES),
        *(f"side {own}" for own in symbolic.space.names),
    ]
    given = [Amount.whole(Polynomial.variable(variable)) for variable in variables]
    amount = getattr(symbolic.primitive, name)(*given)
    return None if amount is None else Amount.of(amount)


def block_size(symbolic: SymbolicMap, tensor: str) -> Amount:
    """Elements of one block of a tensor."""
    sizes = [Polynomial.variable(f"size {dim}") for dim in tensor_dims(tensor) if dim in SIZES]
    return Amount.whole(prod(sizes, start=ONE)) / Amount.whole(blocks(symbolic, tensor))


def blocks(symbolic: SymbolicMap, tensor: str) -> Polynomial:
    """How many blocks a tensor is cut in."""
    radices = [each for dim in tensor_dims(tensor) for each in symbolic.radices.get(dim, ())]
    return prod(map(symbolic.space.polynomial, radices), start=ONE)


def before(facts: Facts, phase: Phase, tensor: str) -> Truth:
    """The device had the block one step earlier."""
    return facts.works(phase, tensor, facts.t - 1)


@dataclass
class _Traffic:
    symbolic: SymbolicMap
    seen: list[Sample]
    told: Amount
    parts: list[Part] = field(default_factory=list)
    counter: Counter = field(init=False)

    def __post_init__(self) -> None:
        every = meshes(self.seen)
        self.counter = Counter(self.symbolic, every, NAME)

    def claims(self) -> Iterator[Claim]:
        """What is counted is what there is; what is told is what is counted."""
        for phase, made in PRODUCTS.items():
            for tensor in made.reads:
                yield from self._operand(phase, tensor)
            yield from self._sum(phase, made.writes)
        if not self.symbolic.primitive.home:
            self._between()
        sets = [part.counted for part in self.parts if part.counted is not None]
        short = frozenset[int]().union(*map(self.counter.short, sets))
        cases = [
            frozenset(at for at, one in zip(sorted(short), choice, strict=True) if one)
            for choice in product((False, True), repeat=len(short))
        ]
        for counted in sets:
            yield from self.counter.claims(counted, cases)
        for ones in cases:
            yield self._equal(short, ones)

    def _equal(self, short: frozenset[int], ones: frozenset[int]) -> Claim:
        total = Amount.of(0)
        for part in self.parts:
            total = total + self._amount(part, ones)
        space = self.symbolic.space
        devices = prod(map(space.polynomial, self.symbolic.lengths), start=ONE)
        gap = self.told * Amount.whole(devices) - total
        names = [f"side {name}" for name in space.names]
        known = Range(
            dict.fromkeys((names[at] for at in short - ones), 2),
            dict.fromkeys((names[at] for at in ones), 1),
        )
        sentence = "the blocks that leave all devices are as many elements as devices times sent"
        return Claim(NAME, sentence, broken(gap, operator.eq, known))

    def _amount(self, part: Part, ones: frozenset[int]) -> Amount:
        size = block_size(self.symbolic, part.tensor)
        if part.counted is not None:
            count = self.counter.number(part.counted, ones)
        else:
            count = self._resting(part.tensor)
        whole = Amount.whole(blocks(self.symbolic, part.tensor)) * part.less
        return (Amount.whole(count) * part.times - whole) * size

    def _resting(self, tensor: str) -> Polynomial:
        """Blocks of a tensor that rest at home, on all devices together."""
        symbolic = self.symbolic
        named = symbolic.home(tensor, symbolic.here)
        every = map(symbolic.space.polynomial, symbolic.lengths)
        return prod((*every, symbolic.size(named)), start=ONE)

    # Operands

    def _operand(self, phase: Phase, tensor: str) -> Iterator[Claim]:
        """Blocks that a device needs and has neither at home nor kept nor still from before."""
        keeps = phase != "forward" and tensor in self.symbolic.primitive.keeps

        def brought(facts: Facts) -> Truth:
            has = [before(facts, phase, tensor)]
            if not self.symbolic.primitive.home:
                return facts.all(facts.t > 0, facts.none(*has))
            if keeps:
                has.append(facts.works("forward", tensor, facts.t))
            return facts.none(facts.at_home(), *has)

        counted = Counted(f"{phase}, {tensor} that is brought", phase, tensor, brought)
        if (phase, tensor) == ("gradient", "dO") and self.symbolic.primitive.home:
            yield from self._shared(counted)
            return
        if keeps:
            yield self._kept(phase, tensor)
        self.parts.append(Part(tensor, 1, counted))

    def _kept(self, phase: Phase, tensor: str) -> Claim:
        """What is kept from another step of forward is kept from the same one, or here anyway."""
        symbolic, now, other = self.symbolic, self.symbolic.now, terms.Int("t kept")
        block = symbolic.any_block(tensor)

        def works(during: Phase, step: Term) -> Term:
            inside = terms.And(step >= 0, step < symbolic.steps.term)
            held = symbolic.block(during, tensor, symbolic.here, step)
            return terms.And(inside, overlaps(held, block))

        home = overlaps(symbolic.home(tensor, symbolic.here), block)
        here = terms.Or(works("forward", now), works(phase, now - 1), home)
        inside = terms.And(symbolic.in_mesh(symbolic.here), symbolic.in_grid(block))
        counter = terms.And(inside, works(phase, now), works("forward", other), terms.Not(here))
        return Claim(NAME, f"{phase}, {tensor}: what is kept is kept from the same step", counter)

    def _shared(self, counted: Counted) -> Iterator[Claim]:
        """The dO of gradient is that of backward, brought once for both, or nothing is brought."""
        symbolic = self.symbolic
        alike = all(
            mesh.is_alike("dO", "backward", "gradient") for mesh in self.counter.meshes[frozenset()]
        )
        if alike:
            pair = [
                symbolic.block(phase, "dO", symbolic.here, symbolic.now)
                for phase in ("backward", "gradient")
            ]
            inside = terms.And(
                symbolic.in_mesh(symbolic.here),
                symbolic.now >= 0,
                symbolic.now < symbolic.steps.term,
            )
            same = terms.And(symbolic.contains(*pair), symbolic.contains(*reversed(pair)))
            sentence = "backward and gradient want the same dO at every step, which is brought once"
            yield Claim(NAME, sentence, terms.And(inside, terms.Not(same)))
            return
        if self.counter.rule(counted, frozenset()) != NONE:
            raise FitError(
                "backward and gradient want dO at other steps, and whether one way serves both "
                "is not known for every side"
            )
        self.parts.append(Part("dO", 1, counted))

    def _between(self) -> None:
        """Blocks that make one hop from where a phase leaves them to where the next one begins."""
        for (phase, tensor), following in NEXT_USE.items():

            def brought(facts: Facts, phase: Phase = phase, tensor: str = tensor) -> Truth:
                return facts.none(facts.works(phase, tensor, facts.steps - 1))

            name = f"{phase} to {following}, {tensor} that is brought"
            self.parts.append(Part(tensor, 1, Counted(name, following, tensor, brought, "first")))

    # Sums

    def _sum(self, phase: Phase, tensor: str) -> Iterator[Claim]:
        """Parts of sums that leave a device, and what is reduced over several in the end."""
        homes = self.symbolic.primitive.home is not None
        transition = Transition("completion", phase, tensor, None, tensor, may_hop=True)
        moved = Movement(transition) if homes else Movement.fitted(self.seen, transition)
        moves = any(span.sender is not None for span in moved.spans)

        def leaves(facts: Facts) -> Truth:
            goes_on = facts.works(phase, tensor, facts.t + 1)
            if homes:
                return facts.none(facts.at_home(), goes_on)
            return facts.all(facts.none(goes_on), facts.t < facts.steps - 1) if moves else (
                facts.none(goes_on)
            )  # fmt: skip

        counted = Counted(f"{phase}, {tensor} that is left", phase, tensor, leaves)
        if homes or not moves:
            yield self._never_again(phase, tensor)
        if homes:
            self.parts.append(Part(tensor, 1, counted))
            self.parts.append(Part(tensor, 2, None, less=2))
        elif moves:
            yield self._passed_on(phase, tensor, moved)
            self.parts.append(Part(tensor, 1, counted))
            last = Counted(f"{phase}, {tensor} at the end", phase, tensor, _every, "last")
            self.parts.append(Part(tensor, 2, last, less=2))
        else:
            self.parts.append(Part(tensor, 2, counted, less=2))

    def _never_again(self, phase: Phase, tensor: str) -> Claim:
        symbolic, now = self.symbolic, self.symbolic.now
        first, then, block = terms.Int("t before"), terms.Int("t then"), symbolic.any_block(tensor)
        works = [
            overlaps(symbolic.block(phase, tensor, symbolic.here, step), block)
            for step in (first, now, then)
        ]
        order = terms.And(first >= 0, first < now, now < then, then < symbolic.steps.term)
        inside = terms.And(symbolic.in_mesh(symbolic.here), symbolic.in_grid(block))
        again = terms.And(inside, order, works[0], terms.Not(works[1]), works[2])
        sentence = f"{phase}, {tensor}: a device adds to a sum at steps that follow one another"
        return Claim(NAME, sentence, again)

    def _passed_on(self, phase: Phase, tensor: str, moved: Movement) -> Claim:
        """Where sums are passed on, none stays behind."""
        symbolic, now, block = self.symbolic, self.symbolic.now, self.symbolic.any_block(tensor)
        lost = []
        firsts = [symbolic.space.term(span.first) for span in moved.spans]
        for place, span in enumerate(moved.spans):
            during = terms.And(
                now >= firsts[place], *(now < later for later in firsts[place + 1 :])
            )
            here = symbolic.here
            source = here if span.sender is None else symbolic.sender(here, span.sender)
            has = overlaps(symbolic.block(phase, tensor, source, now), block)
            keeps = overlaps(symbolic.block(phase, tensor, source, now + 1), block)
            gets = overlaps(symbolic.block(phase, tensor, here, now + 1), block)
            arrives = terms.FALSE if span.sender is None else gets
            lost.append(terms.And(during, has, terms.Not(keeps), terms.Not(arrives)))
        at_step = terms.And(now >= 0, now < symbolic.steps.term - 1)
        inside = terms.And(symbolic.in_mesh(symbolic.here), symbolic.in_grid(block), at_step)
        sentence = f"{phase}, {tensor}: every sum that a device leaves is passed on"
        return Claim(NAME, sentence, terms.And(inside, terms.Or(*lost)))


def _every(_: Facts) -> Truth:
    return True
