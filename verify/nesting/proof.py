"""Proves a sequence for every length of every member.

What holds for all members holds for their nesting. A nested device is a tuple of devices, a nested
block a tuple of blocks, and a nested step a tuple of steps of which the innermost is fast. So the
witnesses of the members are a witness of the nesting (docs/proofs.md). There is one additional
claim: a member inside of one with several steps must have, at its last step, what its first step
needs. For what is not proved, a counterexample is searched on small meshes of the whole sequence.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import prod
from time import perf_counter

from primepar.certify.certificate_format import SequenceCertificate
from primepar.certify.claims import PROPERTIES
from primepar.errors import SymbolicError
from primepar.schedule.movement import Movement
from primepar.schedule.nesting import Nesting, Sides
from primepar.schedule.sequence import Sequence
from primepar.verify.counterexample.primitive import of_mesh
from primepar.verify.primitive.proof import Proof, prove
from primepar.verify.primitive.smallest_mesh import FAULTS, MOST_DEVICES_AFTER, MeshFault
from primepar.verify.report import PropertyResult, Report

LONGEST_SIDE, MOST_DEVICES = 4, 36
"""Limits of the meshes of a sequence that are searched for a counterexample."""


def verify_nesting(nesting: Nesting, target: str | None = None, timeout: float = 600.0) -> Report:
    """Prove a sequence for every length of every side.

    The work is bounded by counts; `timeout`, in seconds, is the last resort.

    A property that is not proved is refuted if some small mesh of the sequence breaks it, with the
    smallest as the counterexample, and unknown otherwise. Traffic and memory are never asked, as a
    sequence has no formulas. Raises `PrimitiveError` if the maps of a member do not give slices.
    """
    end = perf_counter() + timeout
    target = target or ",".join(nesting.names)
    try:
        proofs = list(_members(nesting, end))
    except SymbolicError as error:
        failing, proofs = dict.fromkeys(PROPERTIES, str(error)), []
    else:
        failing = _failing(nesting, proofs)
    wrong = _smallest_faults(nesting, set(failing), end) if failing else {}
    results = [_result(nesting, proofs, name, failing, wrong) for name in PROPERTIES]
    if failing:
        results = [result for result in results if result.name != "races"]
    return Report.of(target, results, nesting.scope, _certificate(proofs))


def _members(nesting: Nesting, end: float) -> Iterator[Proof]:
    """Yield the proof of every member as the sequence reads it; equal members are proved once."""
    known: dict[tuple[object, bool], Proof] = {}
    for member, read, repeats in zip(nesting.members, nesting.read, nesting.turns, strict=True):
        key = type(member), repeats
        if key not in known:
            known[key] = prove(read, end, repeats)
        yield known[key]


def _certificate(proofs: list[Proof]) -> SequenceCertificate | None:
    members = tuple(proof.certificate for proof in proofs)
    certified = tuple(member for member in members if member is not None)
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
                for property_ in PROPERTIES if claim.is_precondition else claim.properties:
                    failing.setdefault(property_, f"{name}: {claim.name}: {reason}")
    return failing


def _result(
    nesting: Nesting,
    proofs: list[Proof],
    name: str,
    failing: dict[str, str],
    wrong: dict[str, tuple[Sides, MeshFault]],
) -> PropertyResult:
    decided = [(proof, decision.claim.name) for proof in proofs for decision in proof.decisions
               if name in decision.claim.properties]  # fmt: skip
    seconds = sum(proof.seconds[claim] for proof, claim in decided)
    if name in wrong:
        sides, fault = wrong[name]
        named = dict(zip(nesting.side_names, sides, strict=True))
        details = of_mesh(nesting.of(sides), named, name, fault.sentence)
        took = seconds + fault.seconds
        return PropertyResult(name, "refuted", took, fault.sentence, details=details)
    if name in failing:
        return PropertyResult(name, "unknown", seconds, reason=failing[name])
    certified = all(proof.certifies(name) for proof in proofs)
    return PropertyResult(name, "proved", seconds, certified=certified)


def _smallest_faults(
    nesting: Nesting, open_names: set[str], end: float
) -> dict[str, tuple[Sides, MeshFault]]:
    """Property -> its fault on the smallest mesh that has one, until `end`."""
    faults: dict[str, tuple[Sides, MeshFault]] = {}
    for sides in _choices(nesting):
        movement = Movement(nesting.of(sides))
        if faults and movement.sequence.ranks > MOST_DEVICES_AFTER:
            break
        for name in sorted(open_names & FAULTS.keys() - faults.keys()):
            start = perf_counter()
            fault = next(FAULTS[name](movement), None) if start < end else None
            if fault is not None:
                sentence = f"{_mesh(nesting, movement.sequence, sides)}: {fault}"
                faults[name] = sides, MeshFault(sides, sentence, perf_counter() - start)
    return faults


def _choices(nesting: Nesting) -> list[Sides]:
    """Sides to search, fewest devices first."""
    short = product(range(1, LONGEST_SIDE + 1), repeat=len(nesting.side_names))
    devices = {sides: prod(nesting.of(sides).axis_lengths) for sides in short}
    few = [sides for sides, count in devices.items() if count <= MOST_DEVICES]
    return sorted(few, key=lambda sides: (devices[sides], sides))


def _mesh(nesting: Nesting, sequence: Sequence, sides: Sides) -> str:
    """The text for a mesh, `s1=1, s2=2 (1x2x2 devices)`."""
    named = zip(nesting.side_names, sides, strict=True)
    mesh = "x".join(map(str, sequence.axis_lengths)) or "1"
    lengths = ", ".join(f"{name}={side}" for name, side in named) or "any side"
    return f"{lengths} ({mesh} device{'s' * (sequence.ranks > 1)})"
