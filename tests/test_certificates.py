"""Certificates of programs: those of all verdicts hold, and no altered one is taken for one."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random

import pytest
from certificate_attack import KINDS, attack, is_order, places_of
from certificate_cases import FILES, NO_WITNESS, altered, program, proved
from msgspec.structs import replace
from mutants import mutant
from oracle.explore import explore

from primepar.certify.program import Evidence, ProgramCertificate, certify_program, digest
from primepar.errors import CertificateError, ClaimError
from primepar.partition import PRIMITIVES
from primepar.schedule import Program
from primepar.schedule.program import Compute, Recv, Send
from primepar.schedule.signature import Signature, Tensor
from primepar.verify.certificate.program import certificate
from primepar.verify.program import verify_program

NAMES = [*PRIMITIVES, *(str(path) for path in FILES if path not in NO_WITNESS)]


@pytest.mark.parametrize(
    ("name", "buffered"),
    [*((name, False) for name in NAMES), *((name, True) for name in NAMES if "/" in name)],
    ids=lambda value: value.rpartition("/")[2] if isinstance(value, str) else value,
)
def test_the_certificate_of_every_verdict_holds(name: str, buffered: bool) -> None:
    report, given = proved(name, buffered)
    certify_program(given, program(name))
    names = [result.name for result in report.properties if result.verdict == "refuted"]
    about = {KINDS.get(name, name) for name in names} - {"memory", "traffic"}
    assert {evidence.property for evidence in given.refuted} == about


@pytest.mark.parametrize("path", NO_WITNESS, ids=lambda p: p.name)
def test_memory_and_traffic_have_no_certificate(path: Path) -> None:
    with pytest.raises(CertificateError) as raised:
        proved(str(path))
    assert str(raised.value) == ("no certificate, as memory and traffic are sums without a witness")


def test_an_altered_number_is_refused_unless_the_claim_is_still_true() -> None:
    """Of all numbers only a level may change a little, and the prover has the same result."""
    random, ends = Random(0), Counter[str]()
    for name in NAMES:
        report, given = proved(name)
        refuted = {KINDS.get(result.name, result.name) for result in report.properties
                   if result.verdict == "refuted"}  # fmt: skip
        for _ in range(5):
            way, changed = altered(given, random)
            assert isinstance(changed, ProgramCertificate)
            try:
                certify_program(changed, program(name))
            except ClaimError:
                ends["refused"] += 1
                continue
            ends[f"still true, {way[0]}"] += 1
            assert is_order(changed, program(name))
            assert {result.property for result in changed.refuted} <= refuted
    assert "still true, coverage" not in ends
    assert ends["refused"] > sum(ends.values()) / 2, ends


def test_levels_that_are_not_in_order_are_refused() -> None:
    """Every swap of two neighbouring levels of one rank."""
    _, given = proved("primepar")
    for rank, levels in enumerate(given.levels):
        for place in range(len(levels) - 1):
            swapped = [*levels]
            swapped[place : place + 2] = levels[place + 1], levels[place]
            changed = list(given.levels)
            changed[rank] = tuple(swapped)
            with pytest.raises(ClaimError):
                certify_program(replace(given, levels=tuple(changed)), program("primepar"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"levels": ()}, "levels: expected one list for each of 4 ranks, got 0"),
        ({"coverage": {}}, "coverage: expected the phases of the grid, got others"),
        (
            {"refuted": (Evidence("data", ((0, 0),)),)},
            "refuted: expected data to be wrong at rank 0, instruction 0, got nothing wrong there",
        ),
        (
            {"refuted": (Evidence("deadlock-freedom", ()),)},
            "refuted: expected deadlock-freedom to be wrong at no place, got nothing wrong there",
        ),
        (
            {"refuted": (Evidence("races", ((0, 1),), "I[0,0]"),)},
            "refuted: expected races to be wrong at rank 0, instruction 1, got nothing wrong there",
        ),
    ],
)
def test_what_is_left_out_or_made_up_is_refused(change: dict[str, object], message: str) -> None:
    _, given = proved("primepar")
    with pytest.raises(ClaimError) as raised:
        certify_program(replace(given, **change), program("primepar"))
    assert str(raised.value) == message


def test_levels_that_stop_early_prove_nothing() -> None:
    _, given = proved("primepar")
    short = (given.levels[0][:-1], *given.levels[1:])
    with pytest.raises(ClaimError) as raised:
        certify_program(replace(given, levels=short), program("primepar"))
    assert str(raised.value) == "levels: expected rank 0 to finish, got too few"


def test_the_certificate_of_another_program_is_refused() -> None:
    _, given = proved("summa")
    with pytest.raises(ClaimError) as raised:
        certify_program(given, program("primepar"))
    assert str(raised.value) == (
        f"program: expected the certificate of this program, {digest(program('primepar'))[:12]}, "
        f"got that of another, {digest(program('summa'))[:12]}"
    )


def without(given: Program, rank: int, index: int) -> Program:
    """A program without one instruction."""
    programs = list(given.programs)
    programs[rank] = programs[rank][:index] + programs[rank][index + 1 :]
    return replace(given, programs=tuple(programs))


@pytest.mark.parametrize("name", ["primepar", "summa", "by-input"])
def test_no_order_proves_a_program_that_lacks_an_instruction(name: str) -> None:
    """The digest is corrected, so that only what is claimed can be refused."""
    whole, (_, given) = program(name), proved(name)
    for index in range(len(whole.programs[0])):
        broken = without(whole, 0, index)
        report = verify_program(broken)
        changed = replace(given, program=digest(broken))
        if report.verdict == "proved":
            continue
        with pytest.raises(ClaimError):
            certify_program(changed, broken)
        certify_program(certificate(broken, report), broken)


def test_generated_programs_are_certified_as_they_are_judged() -> None:
    """One whose refutation is left out of the certificate is not taken for proved."""
    ends = Counter[str]()
    for seed in range(90):
        whole = mutant(seed)
        report = verify_program(whole, buffered=bool(seed % 2))
        refuted = {result.name for result in report.properties if result.verdict == "refuted"}
        if report.verdict == "unknown" or (refuted and refuted <= {"memory", "traffic"}):
            with pytest.raises(CertificateError):
                certificate(whole, report, buffered=bool(seed % 2))
            continue
        given = certificate(whole, report, buffered=bool(seed % 2))
        certify_program(given, whole)
        ends[report.verdict] += 1
        if report.verdict == "refuted":
            with pytest.raises(ClaimError):
                certify_program(replace(given, refuted=(), coverage=places_of(whole)), whole)
    assert min(ends["proved"], ends["refuted"]) > 20


def test_altered_certificates_are_refused_or_still_true() -> None:
    """A sample of what `python tests/certificate_attack.py` does many times."""
    ends = attack(400)
    ways = {way for way, _ in ends}
    assert {end for _, end in ends} == {"refused", "still true"}
    assert len(ways) > 12
    assert sum(times for (_, end), times in ends.items() if end == "refused") > 200


def reshaped() -> Program:
    """A block of A is received as a block of B, which begins where it does and is as large."""
    cuts = {"A": ((0, 3, 6), (0, 2, 6)), "B": ((0, 2, 6), (0, 3, 6)), "Y": ((0, 1),)}
    product = Compute(("B[0,0]",), "Y[0]", "f", {"X": 0})
    return Program(
        "primepar-program", 1, 2, ((Send(1, "A[0,0]"),), (Recv(0, "B[0,0]"), product)),
        grid={"f": {"X": 1}}, initial=(("A[0,0]",), ()), final=((), ("Y[0]",)),
        phases={"f": Signature(reads=("B[X,0]",), writes="Y[X]")},
        tensors={name: Tensor(lines, "A" if name == "B" else None) for name, lines in cuts.items()},
    )  # fmt: skip


def test_a_block_of_another_shape_that_begins_at_the_same_element_is_wrong() -> None:
    whole = reshaped()
    report = verify_program(whole)
    assert report["placement"].verdict == "refuted"
    given = certificate(whole, report)
    certify_program(given, whole)
    forged = replace(given, refuted=(), coverage={"f": ((1, 1),)})
    with pytest.raises(ClaimError) as raised:
        certify_program(forged, whole)
    assert str(raised.value) == (
        "data: expected the right data, got B[0,0] at rank 1, instruction 1"
    )


def test_coverage_is_no_claim_about_a_phase_without_a_grid() -> None:
    one = Compute(("I[0,0]", "W[0,0]"), "O[0,0]", "forward", {"M": 0, "N": 0, "K": 0})
    whole = Program("primepar-program", 1, 1, ((one,),))
    report = verify_program(whole)
    assert report.verdict == "proved"
    evidence = Evidence("coverage", ((0, 0),), None, "forward", {"M": 0, "N": 0, "K": 0})
    with pytest.raises(ClaimError) as raised:
        certify_program(replace(certificate(whole, report), refuted=(evidence,)), whole)
    assert str(raised.value) == (
        "refuted: expected coverage to be wrong at rank 0, instruction 0, got nothing wrong there"
    )


def test_a_block_without_meaning_is_no_block_of_a_tensor_of_its_name() -> None:
    """Rank 0 has `W`, and rank 1 receives it as `W[]`, a tensor without dims."""
    whole = Program(
        "primepar-program", 1, 2, ((Send(1, "W"),), (Recv(0, "W[]"),)),
        initial=(("W",), ()), final=((), ("W[]",)), tensors={"W": Tensor(())},
    )  # fmt: skip
    report = verify_program(whole)
    assert report["alignment"].verdict == "refuted"
    assert "alignment" in explore(whole).failed
    with pytest.raises(ClaimError) as raised:
        certify_program(replace(certificate(whole, report), refuted=()), whole)
    assert str(raised.value) == "data: expected the right data, got W[] at rank 1, instruction 1"
