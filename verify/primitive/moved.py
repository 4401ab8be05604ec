"""One tensor in one phase of a primitive with homes: what holds of any block, as Z3 terms."""

from __future__ import annotations

from dataclasses import dataclass

from primepar.schedule.operators import PRODUCTS, Phase
from primepar.verify.primitive import terms
from primepar.verify.primitive.fit import Sample
from primepar.verify.primitive.fit_sender import FitError
from primepar.verify.primitive.locate import HomeSample, Locator, RuleSpan, fit_locators
from primepar.verify.primitive.symbol import Term
from primepar.verify.primitive.symbolic import Point, SymbolicMap, overlaps


@dataclass(frozen=True)
class Moved:
    """One tensor in one phase, with where its blocks rest."""

    symbolic: SymbolicMap
    phase: Phase
    tensor: str
    locator: Locator | FitError

    @property
    def name(self) -> str:
        """How sentences name it, `forward, I`."""
        return f"{self.phase}, {self.tensor}"

    @property
    def is_sum(self) -> bool:
        """Whether the blocks are sums that are not finished."""
        return PRODUCTS[self.phase].writes == self.tensor

    @property
    def proves(self) -> str:
        """The property that holds if every move can be made."""
        return "completion" if self.is_sum else "placement"

    @property
    def any_one(self) -> Term:
        """This device is in the mesh, and the block in the grid."""
        symbolic = self.symbolic
        block = symbolic.any_block(self.tensor)
        return terms.And(symbolic.in_mesh(symbolic.here), symbolic.in_grid(block))

    def works(self, device: Point, step: Term) -> Term:
        """The device has the block in its product at that step."""
        block = self.symbolic.any_block(self.tensor)
        return overlaps(self.symbolic.block(self.phase, self.tensor, device, step), block)

    def at_home(self, device: Point) -> Term:
        """The block rests on the device."""
        symbolic = self.symbolic
        return overlaps(symbolic.home(self.tensor, device), symbolic.any_block(self.tensor))

    def kept(self, device: Point, step: Term) -> Term:
        """The device keeps the block since that step of forward."""
        symbolic = self.symbolic
        if self.phase == "forward" or self.tensor not in symbolic.primitive.keeps:
            return terms.FALSE
        have = symbolic.block("forward", self.tensor, device, step)
        return overlaps(have, symbolic.any_block(self.tensor))

    def missing(self, device: Point, now: Term | None) -> Term:
        """The device needs the block at the next step, and has it neither at home nor still here.

        Of what it keeps since forward, only what it had there at the same step is counted.
        """
        then = terms.IntVal(0) if now is None else now + 1
        has = [self.at_home(device), self.kept(device, then)]
        if now is not None:
            has.append(self.works(device, now))
        return terms.And(self.works(device, then), terms.Not(terms.Or(*has)))

    def offers(self, device: Point, now: Term | None) -> Term:
        """The device has the block away from home; what it keeps may be of any step."""
        symbolic, before = self.symbolic, terms.Int("t kept")
        past = terms.And(before >= 0, before < symbolic.steps.term, self.kept(device, before))
        has = [past] if now is None else [past, self.works(device, now)]
        return terms.And(terms.Or(*has), terms.Not(self.at_home(device)))

    def leaves(self, device: Point, now: Term) -> Term:
        """The device has added to the sum, goes on without it, and is no home of it."""
        goes_on = terms.And(self.works(device, now), terms.Not(self.works(device, now + 1)))
        return terms.And(goes_on, terms.Not(self.at_home(device)))

    def arrives(self, device: Point, now: Term) -> Term:
        """The device adds to the sum at the next step, and not at this one."""
        return terms.And(terms.Not(self.works(device, now)), self.works(device, now + 1))

    def during(self, spans: tuple[RuleSpan, ...], place: int) -> Term:
        """Any device and block, and now in that span."""
        symbolic, term = self.symbolic, self.symbolic.space.term
        now, last = symbolic.now, symbolic.steps.term - 1
        later = [now < term(span.first) for span in spans[place + 1 :]]
        first = term(spans[place].first)
        return terms.And(self.any_one, now >= 0, now < last, now >= first, *later)

    def span_text(self, spans: tuple[RuleSpan, ...], place: int) -> str:
        """How sentences name the tensor in that span."""
        names = self.symbolic.space.names
        first = spans[place].first.text(names)
        if place + 1 == len(spans):
            return f"{self.name}, from t = {first} on" if place else self.name
        return f"{self.name}, {first} <= t < {spans[place + 1].first.text(names)}"


def located(symbolic: SymbolicMap, seen: list[Sample]) -> dict[str, Locator | FitError]:
    """Where each tensor rests, fitted once."""
    return symbolic.once("located", lambda: fit_locators(seen, symbolic.radices))


def home_samples(symbolic: SymbolicMap, seen: list[Sample]) -> list[HomeSample]:
    """The samples of a primitive with homes, with where each tensor rests; made once."""
    known = {name: each for name, each in located(symbolic, seen).items()
             if isinstance(each, Locator)}  # fmt: skip
    return symbolic.once("at home", lambda: [HomeSample(sample, known) for sample in seen])
