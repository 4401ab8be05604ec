"""Proof of a sequence for every length of every member.

What is right of all members is right of their nesting: a nested device is a tuple of devices, a
nested step a tuple of steps of which the innermost is fast, and a nested block a tuple of blocks,
so what is found for each member is found for all at once (docs/proofs.md). Beyond the members' own
proofs, one inside of several steps must find what its first step needs at its last. What is not
proved is looked for on small meshes of the whole sequence.
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
"""Of the meshes of a sequence on which a counterexample is looked for."""


def verify_nesting(nesting: Nesting, target: str | None = None, timeout: float = 60.0) -> Report:
    """Prove a sequence for every length of every side, within `timeout` seconds.

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
    """The proof of every member as the sequence reads it; alike members are proved once."""
    known: dict[tuple[object, bool], Proof] = {}
    for member, read, turns in zip(nesting.members, nesting.read, nesting.turns, strict=True):
        key = type(member), turns
        if key not in known:
            known[key] = prove(read, end, turns)
        yield known[key]


def _certificate(proofs: list[Proof]) -> SequenceCertificate | None:
    members = tuple(proof.certificate for proof in proofs)
    certified = tuple(member for member in members if member is not None)
    if not members or len(certified) < len(members):
        return None
    return SequenceCertificate("primepar-certificate", 2, certified)


def _failing(nesting: Nesting, proofs: list[Proof]) -> dict[str, str]:
    """Property -> why it is not proved."""
    failing: dict[str, str] = {}
    for name, proof in zip(nesting.names, proofs, strict=True):
        for each in proof.decisions:
            if not each.is_proved:
                reason = each.reason or f"not so at {each.place}"
                properties = PROPERTIES if each.claim.is_ground else each.claim.properties
                for own in properties:
                    failing.setdefault(own, f"{name}: {each.claim.name}: {reason}")
    return failing


def _result(
    nesting: Nesting,
    proofs: list[Proof],
    name: str,
    failing: dict[str, str],
    wrong: dict[str, tuple[Sides, MeshFault]],
) -> PropertyResult:
    own = [(proof, each.claim.name) for proof in proofs for each in proof.decisions
           if name in each.claim.properties]  # fmt: skip
    seconds = sum(proof.seconds[claim] for proof, claim in own)
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
    """Property -> its fault on the smallest mesh that has one, as far as the time goes."""
    found: dict[str, tuple[Sides, MeshFault]] = {}
    for sides in _choices(nesting):
        movement = Movement(nesting.of(sides))
        if found and movement.sequence.ranks > MOST_DEVICES_AFTER:
            break
        for name in sorted(open_names & FAULTS.keys() - found.keys()):
            start = perf_counter()
            fault = next(FAULTS[name](movement), None) if start < end else None
            if fault is not None:
                sentence = f"{_mesh(nesting, movement.sequence, sides)}: {fault}"
                found[name] = sides, MeshFault(sides, sentence, perf_counter() - start)
    return found


def _choices(nesting: Nesting) -> list[Sides]:
    """Sides worth a look, fewest devices first."""
    short = product(range(1, LONGEST_SIDE + 1), repeat=len(nesting.side_names))
    devices = {sides: prod(nesting.of(sides).axis_lengths) for sides in short}
    few = [sides for sides, count in devices.items() if count <= MOST_DEVICES]
    return sorted(few, key=lambda sides: (devices[sides], sides))


def _mesh(nesting: Nesting, sequence: Sequence, sides: Sides) -> str:
    """How sentences name a mesh, `s1=1, s2=2 (1x2x2 devices)`."""
    named = zip(nesting.side_names, sides, strict=True)
    mesh = "x".join(map(str, sequence.axis_lengths)) or "1"
    lengths = ", ".join(f"{name}={side}" for name, side in named) or "any side"
    return f"{lengths} ({mesh} device{'s' * (sequence.ranks > 1)})"
