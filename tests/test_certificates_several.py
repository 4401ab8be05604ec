"""Certificates of calls that reduce several blocks: what is wrong in one has no proof."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from certificate_attack import WAYS, Case, is_true, places_of
from msgspec.structs import replace
from mutation_several import SEVERAL_WAYS
from phase_programs import built, sums

from primepar.certify.program import certify_program, digest
from primepar.errors import ClaimError
from primepar.schedule import Program
from primepar.verify.certificate.program import certificate
from primepar.verify.program import verify_program

SUMS = built(sums())
PROOF = certificate(SUMS, verify_program(SUMS))
MUTANTS = {
    f"{way}, {where}": built({**sums(), "programs": nodes})
    for way, make in SEVERAL_WAYS.items()
    for where, nodes in make(sums())
}


@pytest.mark.parametrize("name", MUTANTS)
def test_the_proof_of_the_right_calls_proves_no_wrong_ones(name: str) -> None:
    """The digest is corrected, so that only what is claimed can be refused."""
    mutant = MUTANTS[name]
    report, forged = verify_program(mutant), replace(PROOF, program=digest(mutant))
    honest = certificate(mutant, report)
    certify_program(honest, mutant)
    if report.verdict == "proved":
        assert name in HARMLESS
        certify_program(forged, mutant)
        return
    assert name not in HARMLESS
    assert honest.refuted
    for claim in (forged, replace(honest, refuted=(), coverage=places_of(mutant))):
        with pytest.raises(ClaimError):
            certify_program(claim, mutant)


HARMLESS = {
    "turned blocks, rank 0, instruction 2 for all",
    "moved block, rank 0, instruction 2 to 4 on all",
}


def refusal(mutant: Program) -> str:
    with pytest.raises(ClaimError) as caught:
        certify_program(replace(PROOF, program=digest(mutant)), mutant)
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("turned blocks, rank 0, instruction 2",
         "data: expected the right data, got u[0] at rank 0, instruction 5"),
        ("missing block, rank 1, instruction 2: block 1",
         "levels: expected rank 0, instruction 2 to return never, as nothing matches it, got 2"),
        ("missing block, rank 0, instruction 2: block 1 for all",
         "data: expected the right data, got v[0] at rank 0, instruction 5"),
    ],
)  # fmt: skip
def test_a_refusal_names_the_block_or_the_call(name: str, message: str) -> None:
    assert refusal(MUTANTS[name]) == message


def test_altered_certificates_are_refused_or_still_true() -> None:
    random, ends = Random(0), Counter[str]()
    wrong = [mutant for name, mutant in MUTANTS.items() if name not in HARMLESS]
    for whole in (SUMS, *wrong):
        report = verify_program(whole)
        case = Case(whole, report, certificate(whole, report))
        for way in WAYS.values():
            changed = way(case, random)
            if changed is None or changed == case.given:
                continue
            try:
                certify_program(changed, whole)
            except ClaimError:
                ends["refused"] += 1
            else:
                ends["still true" if is_true(case, changed) else "WRONG"] += 1
    assert ends.keys() == {"refused", "still true"}
    assert ends["refused"] > 100
