"""Proves a primitive for all sides at once, or finds the smallest wrong mesh.

First the claims are decided (`decide`). Then a certificate of each is written and checked by
`primepar.certify`; only what the checker accepts is called certified. For what is not proved, a
counterexample is searched on meshes (`refutation`). Formulas of memory and traffic are compared
last, of a primitive that is proved (`equal_on_meshes`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from time import perf_counter

from primepar.certify.cases import Answer
from primepar.certify.certificate_format import PrimitiveCertificate, map_texts
from primepar.certify.claims import PROPERTIES, Subject
from primepar.certify.primitive import certify_claim, holds
from primepar.errors import CertificateError, ClaimError, SymbolicError
from primepar.schedule.deadline import UnansweredError, deadline, share_of_time
from primepar.schedule.primitive import Primitive
from primepar.schedule.properties import BASES
from primepar.schedule.sequence import Nesting
from primepar.verify.certificate.answers import answers
from primepar.verify.counterexample.primitive import MeshFault, refuted
from primepar.verify.primitive.decide import Decision, decisions, is_idle
from primepar.verify.primitive.equal_on_meshes import formula_results
from primepar.verify.primitive.refutation import faults
from primepar.verify.primitive.slice_counts import slices_of
from primepar.verify.report import PropertyResult, Report


@dataclass(frozen=True)
class Proof:
    """The decided claims of a primitive, with the answers of those that are certified."""

    subject: Subject
    decisions: tuple[Decision, ...]
    answers: dict[str, tuple[Answer, ...]]
    seconds: dict[str, float]
    """Claim -> seconds to decide and to certify it."""

    @property
    def certificate(self) -> PrimitiveCertificate | None:
        """The certificate of the primitive; None unless every claim is certified."""
        if self.answers.keys() != {decision.claim.name for decision in self.decisions}:
            return None
        slices = {dim: tuple(map(str, counts)) for dim, counts in self.subject.slices.items()}
        witnesses = {
            decision.claim.name: {name: str(node) for name, node in decision.witnesses.items()}
            for decision in self.decisions
            if decision.witnesses
        }
        return PrimitiveCertificate(
            "primepar-certificate", 3, map_texts(self.subject.primitive), slices, witnesses,
            self.answers, self.subject.repeats,
        )  # fmt: skip

    @property
    def open_names(self) -> set[str]:
        """The properties that are not proved: all of them, if a precondition is not."""
        unproved = [decision.claim for decision in self.decisions if not decision.is_proved]
        # Without a step, or with a slice out of range, the other claims may hold for no reason.
        if any(claim.is_precondition for claim in unproved):
            return set(PROPERTIES)
        return {name for claim in unproved for name in claim.properties}

    def certifies(self, name: str) -> bool:
        """Whether the checker accepted all claims of a property, and of those it needs.

        Completion may have no claim of its own.
        """
        # Completion follows from where products are computed and where sums go: it is certified if
        # these are.
        support = {name, *BASES.get(name, ())}
        return all(decision.claim.name in self.answers for decision in self.decisions
                   if decision.claim.is_precondition
                   or support & {*decision.claim.properties})  # fmt: skip


def verify_primitive(
    primitive: Primitive, target: str | None = None, timeout: float = inf
) -> Report:
    """Prove a primitive for all sides of 1 or more.

    The work is bounded by counts; what is not decided after `timeout` seconds is unknown.

    A property that is not proved is refuted if some mesh breaks it, with the smallest as the
    counterexample, and unknown otherwise. Memory and traffic are asked where the primitive has a
    formula `held` or `sent` and all else is proved. Raises `PrimitiveError` if the maps do not give
    slices.
    """
    target, proof, reason = target or type(primitive).__name__, None, ""
    wrong: dict[str, MeshFault] = {}
    formulas: list[PropertyResult] = []
    with deadline(timeout):
        try:
            # The last quarter is left for meshes: what Z3 does not decide may be wrong on one.
            with share_of_time(3 / 4):
                proof = prove(primitive)
        except (SymbolicError, UnansweredError) as error:
            # No claims without numbers of slices. A small mesh may still be wrong, and then this is
            # the answer.
            reason, wrong = str(error), faults(Subject(primitive, {}), (), PROPERTIES)
        else:
            if proof.open_names:
                wrong = faults(proof.subject, proof.decisions, proof.open_names)
            else:
                formulas = list(formula_results(primitive))
    scope = Nesting((primitive,), (target,)).scope
    if proof is None:
        return Report.of(target, list(_without_claims(reason, wrong)), scope)
    # Races are of the lowering, which is defined for maps that are right.
    results = [_result(proof, name, wrong.get(name)) for name in PROPERTIES
               if name != "races" or not proof.open_names]  # fmt: skip
    return Report.of(target, [*results, *formulas], scope, proof.certificate)


def prove(primitive: Primitive, repeats: bool = False) -> Proof:
    """Decide and certify every claim, until the deadline.

    Raises `SymbolicError` if no rule gives the number of slices, `UnansweredError` without time for
    that.
    """
    subject = Subject(primitive, slices_of(primitive), repeats)
    decided = tuple(decisions(subject))
    answered, seconds = {}, {}
    for decision in decided:
        start = perf_counter()
        given = _certified(decision) if decision.is_proved else None
        if given is not None:
            answered[decision.claim.name] = given
        seconds[decision.claim.name] = decision.seconds + perf_counter() - start
    return Proof(subject, decided, answered, seconds)


def _certified(decision: Decision) -> tuple[Answer, ...] | None:
    """Answers that the checker accepts; None if there are none."""
    claim, witnesses = decision.claim, decision.witnesses
    try:
        # The checker is stricter than Z3, which knows more arithmetic. What only Z3 proves stays
        # so.
        given = answers(lambda case: holds(claim, witnesses, case))
        texts = {name: str(node) for name, node in witnesses.items()}
        certify_claim(claim, texts, given)
    except (CertificateError, ClaimError, UnansweredError):
        return None
    return given


def _result(proof: Proof, name: str, fault: MeshFault | None) -> PropertyResult:
    decided = [decision for decision in proof.decisions if name in decision.claim.properties]
    decided += [decision for decision in proof.decisions
                if decision.claim.is_precondition and not decision.is_proved]  # fmt: skip
    seconds = sum(proof.seconds[decision.claim.name] for decision in decided)
    failed = next((decision for decision in decided if not decision.is_proved), None)
    if failed is None:
        return PropertyResult(name, "proved", seconds, certified=proof.certifies(name))
    if fault is not None:
        return refuted(name, fault, seconds)
    is_steps = failed.claim.name == "steps" and failed.point is not None
    # `where(s == 7, 0, s)` steps: no device does anything at side 7, so no block is misplaced.
    if is_steps and is_idle(proof.subject, failed.point or {}):
        reason = f"a phase has no step at {failed.place}, so that nothing is done there"
        return PropertyResult(name, "not asked", seconds, reason=reason)
    reason = failed.reason or f"fails at {failed.place}, though no mesh that was searched is wrong"
    return PropertyResult(name, "unknown", seconds, reason=f"{failed.claim.name}: {reason}")


def _without_claims(reason: str, wrong: dict[str, MeshFault]) -> Iterator[PropertyResult]:
    """Yield the results if there are no claims: refuted on a small mesh, or unknown."""
    for name in PROPERTIES[:-1]:
        fault = wrong.get(name)
        if fault is not None:
            yield refuted(name, fault)
        else:
            yield PropertyResult(name, "unknown", 0.0, reason=reason)
