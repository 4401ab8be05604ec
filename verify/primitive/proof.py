"""Proof of a primitive for all sides at once, and the smallest wrong side where there is one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from time import perf_counter

import z3

from primepar.errors import SymbolicError
from primepar.schedule.primitive import Primitive
from primepar.verify.answer import check_by
from primepar.verify.counterexample.primitive import of_primitive
from primepar.verify.deadline import UndecidedError
from primepar.verify.formulas import formula_claims
from primepar.verify.primitive import terms
from primepar.verify.primitive.claims import claims
from primepar.verify.primitive.fit import fit_radices, samples
from primepar.verify.primitive.fit_sender import FitError
from primepar.verify.primitive.homes import home_claims
from primepar.verify.primitive.order import Alternatives, Claim
from primepar.verify.primitive.races import races
from primepar.verify.primitive.search import Fault, smallest_faults
from primepar.verify.primitive.symbol import Term
from primepar.verify.primitive.symbolic import SymbolicMap
from primepar.verify.report import PropertyResult, Report

PROVED = ("coverage", "placement", "completion", "alignment", "deadlock-freedom")
"""The properties of every primitive, in the order of the report."""
FORMULAS = {"memory": "held", "traffic": "sent"}
"""Property -> the method whose formula it is about; asked where the primitive has one."""

Sides = tuple[int, ...]
LARGEST_HINT = 16
"""Sum of the sides up to which the smallest counterexample is looked for."""


@dataclass(frozen=True)
class Obligation:
    """One claim with how it ended; `reason` is None if it is proved.

    `sides` are the smallest at which Z3 found a counterexample to the claim. If it `is_ground` and
    fails, no property is proved.
    """

    property: str
    sentence: str
    seconds: float
    reason: str | None = None
    sides: Sides | None = None
    is_ground: bool = False
    note: str | None = None


def verify_primitive(
    primitive: Primitive, target: str | None = None, timeout: float = 30.0
) -> Report:
    """Prove a primitive for all sides of 1 or more, within `timeout` seconds.

    Memory and traffic are asked where the primitive has a formula `held` or `sent`. They and races
    are about what moves, and are asked where all else is proved: then it can move.

    A property that is not proved is refuted if some small mesh breaks it, with the smallest as the
    counterexample, and unknown otherwise. Raises `PrimitiveError` if the maps do not give slices.
    """
    deadline = perf_counter() + timeout
    names = asked(primitive)
    try:
        proved = list(obligations(primitive, timeout))
    except (SymbolicError, FitError) as error:
        proved = [Obligation(name, "", 0.0, str(error)) for name in names]
    failed = [obligation for obligation in proved if obligation.reason]
    open_names = {obligation.property for obligation in failed}
    if any(obligation.is_ground for obligation in failed):
        open_names = set(PROVED)
    if open_names & set(PROVED):
        open_names, names = open_names & set(PROVED), PROVED
    hints = {obligation.sides for obligation in proved if obligation.sides}
    faults = smallest_faults(primitive, open_names, hints, deadline) if open_names else {}
    told = {*PROVED, *(obligation.property for obligation in proved)}
    results = [_result(primitive, name, proved, faults.get(name)) for name in names if name in told]
    return Report.of(target or type(primitive).__name__, results, scope(primitive))


def scope(primitive: Primitive) -> str:
    """What a proof is about: all sides, of these axes.

    `every s >= 1 (axes r, c)`, or, of two sides, `every q, d >= 1 (axes r, c: q; e: d)`.
    """
    names, axes = primitive.side_names, primitive.axis_sides
    if not names:
        return "one device"
    along = [", ".join(axis for axis, own in axes.items() if own == name) for name in names]
    if len(names) > 1:
        along = [f"{own}: {name}" for own, name in zip(along, names, strict=True)]
    word = "axis" if len(axes) == 1 else "axes"
    return f"every {', '.join(names)} >= 1 ({word} {'; '.join(along)})"


def asked(primitive: Primitive) -> tuple[str, ...]:
    """Names of the properties that are asked of a primitive (see `verify_primitive`)."""
    kind = type(primitive)
    told = (
        name for name, method in FORMULAS.items()
        if getattr(kind, method) is not getattr(Primitive, method)
    )  # fmt: skip
    return (*PROVED, "races", *told)


def _result(
    primitive: Primitive, name: str, proved: list[Obligation], fault: Fault | None
) -> PropertyResult:
    own = [each for each in proved if each.property == name]
    ground = [each for each in proved if each.is_ground and each.property != name]
    seconds = sum(obligation.seconds for obligation in own)
    failed = next((each for each in (*own, *ground) if each.reason), None)
    if failed is None:
        notes = [obligation.note for obligation in own if obligation.note]
        return PropertyResult(name, "proved", seconds, reason="; ".join(notes) or None)
    if fault is not None:
        details = of_primitive(primitive, fault.sides, name, fault.sentence)
        took = seconds + fault.seconds
        return PropertyResult(name, "refuted", took, fault.sentence, details=details)
    about = f"{failed.sentence}: " if failed.sentence else ""
    return PropertyResult(name, "unknown", seconds, reason=f"{about}{failed.reason}")


def obligations(primitive: Primitive, timeout: float = 30.0) -> Iterator[Obligation]:
    """Every claim about a primitive, asked of Z3 for `timeout` seconds in all.

    What is asked of how things move comes last, and only where all else is proved.

    Raises `PrimitiveError` if the maps are no maps of slices, `FitError` if the number of slices
    follows no rule, `SymbolicError` if a map does what symbols cannot follow.
    """
    seen = samples(primitive)
    symbolic = SymbolicMap(primitive, fit_radices(seen))
    prover = Prover(symbolic, perf_counter() + timeout)
    owed = home_claims if primitive.home else claims
    first = [obligation for item in owed(symbolic, seen) for obligation in prover.asked(item)]
    yield from first
    if any(obligation.reason for obligation in first):
        return
    for item in chain(races(symbolic, seen), formula_claims(symbolic, prover.deadline)):
        yield from prover.asked(item)


class Prover:
    """One solver for all claims, each in a scope of its own."""

    def __init__(self, symbolic: SymbolicMap, deadline: float) -> None:
        self.symbolic, self.deadline = symbolic, deadline
        self.solver = z3.Solver()
        self.solver.add(symbolic.all_sides)
        self._told: dict[tuple[int, bool], tuple[Term, tuple[str | None, Sides | None]]] = {}
        """What was asked before, with the term, which must live as long as its number."""

    def asked(self, item: Claim | Alternatives) -> list[Obligation]:
        """Ask one claim; or exact ones and, if not all of them hold, those that are enough."""
        if isinstance(item, Claim):
            return [self.obligation(item)]
        exact = [each for own in item.exact for each in self.asked(own)]
        if all(each.reason is None for each in exact):
            return exact
        enough = [each for own in item.enough() for each in self.asked(own)]
        return exact if any(each.reason for each in enough) else enough

    def obligation(self, claim: Claim) -> Obligation:
        """Ask one claim."""
        start = perf_counter()
        reason, sides = self.ask(claim)
        took = perf_counter() - start
        told = claim.property, claim.sentence, took, reason, sides, claim.is_ground, claim.note
        return Obligation(*told)

    def ask(self, claim: Claim) -> tuple[str | None, Sides | None]:
        """Why the claim is not proved, None if it is; and the smallest sides that break it."""
        if claim.counter is None:
            return claim.reason, None
        if terms.FALSE.eq(claim.counter):
            return ("there is no such case to prove", None) if claim.is_sanity else (None, None)
        key = claim.counter.get_id(), claim.is_sanity
        if key not in self._told:
            self._told[key] = claim.counter, self._ask(claim)
        return self._told[key][1]

    def _ask(self, claim: Claim) -> tuple[str | None, Sides | None]:
        self.solver.push()
        self.solver.add(claim.counter)
        try:
            answer = self._check()
            if answer == z3.unknown:
                return "Z3 did not decide it in the time that it was given", None
            if claim.is_sanity:
                return None if answer == z3.sat else "there is no such case to prove", None
            return (None, None) if answer == z3.unsat else self._broken()
        finally:
            self.solver.pop()

    def cases(self, condition: Term, choices: list[Term]) -> Iterator[tuple[bool, ...]]:
        """Which truths the choices have at once, where the condition holds; each once.

        Raises `UndecidedError` if Z3 does not decide it in time.
        """
        self.solver.push()
        try:
            named = [z3.Bool(f"case {place}") for place in range(len(choices))]
            pairs = zip(named, choices, strict=True)
            self.solver.add(condition, *(name == choice for name, choice in pairs))
            while (answer := self._check()) == z3.sat:
                model = self.solver.model()
                truths = tuple(z3.is_true(model.eval(name)) for name in named)
                differ = (name != one for name, one in zip(named, truths, strict=True))
                self.solver.add(terms.Or(*differ))
                yield truths
            if answer == z3.unknown:
                raise UndecidedError("Z3 did not decide it in the time that it was given")
        finally:
            self.solver.pop()

    def _check(self) -> z3.CheckSatResult:
        return check_by(self.solver, self.deadline)

    def _broken(self) -> tuple[str, Sides | None]:
        """The smallest sides of a counterexample: the first model need not be the smallest."""
        names = self.symbolic.space.names
        sides = [side.term for side in self.symbolic.space.sides]
        for total in range(len(sides), LARGEST_HINT + 1):
            self.solver.push()
            self.solver.add(terms.Sum([*sides, terms.IntVal(0)]) == total)
            if self._check() == z3.sat:
                model = self.solver.model()
                smallest = tuple(model.eval(side).as_long() for side in sides)
                self.solver.pop()
                at = ", ".join(f"{name}={n}" for name, n in zip(names, smallest, strict=True))
                return f"not so at {at}, though no mesh that was looked at is wrong", smallest
            self.solver.pop()
        return f"not so for some sides that sum up to more than {LARGEST_HINT}", None
