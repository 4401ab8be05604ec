"""Proves a sequence for every length of every member.

What holds for all members holds for their nesting. A nested device is a tuple of devices, a nested
block a tuple of blocks, and a nested step a tuple of steps of which the innermost is fast. So the
witnesses of the members are a witness of the nesting (docs/proofs.md). There is one additional
claim: a member inside of one with several steps must have, at its last step, what its first step
needs. For what is not proved, a counterexample is searched on small meshes of the whole sequence.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from itertools import product
from math import inf, prod

from primepar.certify.certificate_format import SequenceCertificate
from primepar.certify.claims import PROPERTIES
from primepar.errors import SymbolicError
from primepar.schedule.deadline import UnansweredError, deadline, share_of_time
from primepar.schedule.sequence import Nesting, Sequence
from primepar.verify.counterexample.primitive import MeshFault, refuted
from primepar.verify.primitive.proof import Proof, prove
from primepar.verify.primitive.smallest_mesh import smallest_faults
from primepar.verify.report import PropertyResult, Report

LONGEST_SIDE, MOST_DEVICES = 4, 36
"""Limits of the meshes of a sequence that are searched for a counterexample."""


def verify_nesting(nesting: Nesting, target: str | None = None, timeout: float = inf) -> Report:
    """Prove a sequence for every length of every side.

    The work is bounded by counts; what is not decided after `timeout` seconds is unknown.

    A property that is not proved is refuted if some small mesh of the sequence breaks it, with the
    smallest as the counterexample, and unknown otherwise. Traffic and memory are never asked, as a
    sequence has no formulas. Raises `PrimitiveError` if the maps of a member do not give slices.
    """
    target, wrong = target or ",".join(nesting.names), dict[str, MeshFault]()
    with deadline(timeout):
        try:
            # What the proofs leave open may be wrong on a small mesh: the last quarter is for
            # these.
            with share_of_time(3 / 4):
                proofs = list(_members(nesting))
        except (SymbolicError, UnansweredError) as error:
            failing, proofs = dict.fromkeys(PROPERTIES, str(error)), []
        else:
            failing = _failing(nesting, proofs)
        with suppress(UnansweredError):  # those that are found by the deadline count
            wrong |= smallest_faults(_meshes(nesting) if failing else (), failing)
    results = [_result(proofs, name, failing, wrong) for name in PROPERTIES]
    if failing:
        results = [result for result in results if result.name != "races"]
    return Report.of(target, results, nesting.scope, _certificate(proofs))


def _members(nesting: Nesting) -> Iterator[Proof]:
    """Yield the proof of every member as the sequence reads it; equal members are proved once."""
    known: dict[tuple[object, bool], Proof] = {}
    for member, read, repeats in zip(nesting.members, nesting.read, nesting.turns, strict=True):
        # P,P is proved once: members of one kind have the same maps, whatever their length.
        key = type(member), repeats
        if key not in known:
            known[key] = prove(read, repeats)
        yield known[key]


def _certificate(proofs: list[Proof]) -> SequenceCertificate | None:
    members = tuple(proof.certificate for proof in proofs)
    certified = tuple(member for member in members if member is not None)
    # Each member relies on all others: one that Z3 alone has proved leaves the sequence so.
    if not members or len(certified) < len(members):
        return None
    return SequenceCertificate("primepar-certificate", 3, certified)


def _failing(nesting: Nesting, proofs: list[Proof]) -> dict[str, str]:
    """Property -> why it is not proved."""
    failing: dict[str, str] = {}
    for name, proof in zip(nesting.names, proofs, strict=True):
        for decision in proof.decisions:
            if not decision.is_proved:
                claim, reason = decision.claim, decision.reason or f"fails at {decision.place}"
                # A member without a step leaves the whole nesting without one.
                for property_ in PROPERTIES if claim.is_precondition else claim.properties:
                    failing.setdefault(property_, f"{name}: {claim.name}: {reason}")
    return failing


def _result(
    proofs: list[Proof],
    name: str,
    failing: dict[str, str],
    wrong: dict[str, MeshFault],
) -> PropertyResult:
    decided = [(proof, decision.claim.name) for proof in proofs for decision in proof.decisions
               if name in decision.claim.properties]  # fmt: skip
    seconds = sum(proof.seconds[claim] for proof, claim in decided)
    if name in wrong:
        return refuted(name, wrong[name], seconds)
    if name in failing:
        return PropertyResult(name, "unknown", seconds, reason=failing[name])
    certified = all(proof.certifies(name) for proof in proofs)
    return PropertyResult(name, "proved", seconds, certified=certified)


def _meshes(nesting: Nesting) -> Iterator[Sequence]:
    """Yield the meshes to search, fewest devices first."""
    short = product(range(1, LONGEST_SIDE + 1), repeat=len(nesting.side_names))
    devices = {sides: prod(nesting.of(sides).axis_lengths) for sides in short}
    # P,P with sides up to 4 would have 256 devices, and most mistakes are on 2 x 2.
    few = [sides for sides, count in devices.items() if count <= MOST_DEVICES]
    yield from map(nesting.of, sorted(few, key=lambda sides: (devices[sides], sides)))
