"""Certificates of programs: those of all verdicts hold, and no altered one is taken for one."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from attack_alterations import KINDS
from msgspec.structs import replace
from mutants import mutant
from mutation import SEVERAL_WAYS
from oracle.explore import explore
from phase_programs import built, sums
from profiles import draws, few
from program_certificates import FILES, WAYS, decide, program, proved

from primepar.certify.program import certify_program, digest
from primepar.errors import CertificateError, ClaimError
from primepar.partition import PRIMITIVES
from primepar.schedule import Program
from primepar.schedule.program import Compute, Recv, Send
from primepar.schedule.signature import Signature, Tensor
from primepar.schedule.transport import Transport
from primepar.verify.certificate.program import certificate
from primepar.verify.program import verify_program

NAMES = [*PRIMITIVES, *map(str, FILES)]


@few
@pytest.mark.parametrize(
    ("name", "buffered"),
    [*((name, False) for name in NAMES), *((name, True) for name in NAMES if "/" in name)],
    ids=lambda value: value.rpartition("/")[2] if isinstance(value, str) else value,
)
def test_the_certificate_of_every_verdict_holds(name: str, buffered: bool) -> None:
    report, given = proved(name, buffered)
    certify_program(given, program(name))
    refuted = [result.name for result in report.properties if result.verdict == "refuted"]
    assert list(given.refuted) == refuted
    assert list(given.proved) == ([] if refuted else [p.name for p in report.properties])


@pytest.mark.parametrize("order", ["communicator", "peer"])
def test_a_certificate_is_of_one_transport(order: Any) -> None:
    whole, transport = program("primepar"), Transport(0, order)
    given = certificate(whole, verify_program(whole, transport=transport), transport)
    certify_program(given, whole)
    with pytest.raises(ClaimError):  # without streams the graph has fewer nodes
        certify_program(replace(given, transport=Transport()), whole)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"levels": ()}, "levels: expected {nodes}, got 0"),
        ({"proved": ()}, "properties: expected proved or refuted ones, got none"),
        ({"refuted": ("races",)}, "properties: expected proved or refuted ones, got both"),
        (
            {"proved": (), "refuted": ("races",)},
            "refuted: expected races to be wrong, got nothing wrong there",
        ),
        (
            {"proved": ("coverage", "races")},
            "proved: expected coverage, placement, completion, alignment, deadlock-freedom, races, "
            "got coverage, races",
        ),
    ],
)
def test_what_is_left_out_or_made_up_is_refused(change: dict[str, Any], message: str) -> None:
    _, given = proved("primepar")
    with pytest.raises(ClaimError) as raised:
        certify_program(replace(given, **change), program("primepar"))
    assert str(raised.value) == message.format(nodes=len(given.levels))


def test_a_level_that_is_not_above_what_it_follows_is_refused() -> None:
    _, given = proved("primepar")
    assert given.levels[:2] == (0, 1)
    with pytest.raises(ClaimError) as raised:
        certify_program(replace(given, levels=(0, 0, *given.levels[2:])), program("primepar"))
    assert str(raised.value).startswith("levels: expected rank 0, instruction ")
    assert str(raised.value).endswith(", got 0 and 0")


def test_what_hangs_by_its_levels_must_wait_for_something_that_hangs() -> None:
    _, given = proved("primepar")
    with pytest.raises(ClaimError) as raised:
        certify_program(replace(given, levels=(-1, *given.levels[1:])), program("primepar"))
    assert str(raised.value).startswith("levels: expected a level of rank 0, instruction ")


def test_the_certificate_of_another_program_is_refused() -> None:
    _, given = proved("summa")
    with pytest.raises(ClaimError) as raised:
        certify_program(given, program("primepar"))
    assert str(raised.value) == (
        f"program: expected the certificate of this program, {digest(program('primepar'))[:12]}, "
        f"got that of another, {digest(program('summa'))[:12]}"
    )


@pytest.mark.parametrize("name", ["primepar", "summa", "by-input"])
def test_no_order_proves_a_program_that_lacks_an_instruction(name: str) -> None:
    """The digest is corrected, so that only what is claimed can be refused."""
    whole, (_, given) = program(name), proved(name)
    for index in range(len(whole.programs[0])):
        lists = list(whole.programs)
        lists[0] = lists[0][:index] + lists[0][index + 1 :]
        broken = replace(whole, programs=tuple(lists))
        report = verify_program(broken)
        if report.verdict == "proved":
            continue
        with pytest.raises(ClaimError):
            certify_program(replace(given, program=digest(broken)), broken)
        certify_program(certificate(broken, report), broken)


def test_generated_programs_are_certified_as_they_are_judged() -> None:
    """One whose refutation is left out of the certificate is not taken for proved."""
    ends = Counter[str]()
    for seed in range(draws(90)):
        whole, transport = mutant(seed), Transport(None if seed % 2 else 0)
        report = verify_program(whole, transport=transport)
        if report.verdict == "unknown":
            with pytest.raises(CertificateError):
                certificate(whole, report, transport)
            continue
        given = certificate(whole, report, transport)
        certify_program(given, whole)
        ends[report.verdict] += 1
        if report.verdict == "refuted":
            names = tuple(result.name for result in report.properties)
            with pytest.raises(ClaimError):
                certify_program(replace(given, refuted=(), proved=names), whole)
    assert min(ends["proved"], ends["refuted"]) > draws(90) / 5


SUMS = built(sums())
SEVERAL = {
    f"{way}, {where}": built({**sums(), "programs": nodes})
    for way, make in SEVERAL_WAYS.items()
    for where, nodes in make(sums())
}


@pytest.mark.parametrize("name", SEVERAL)
def test_the_proof_of_calls_that_reduce_several_blocks_proves_no_wrong_ones(name: str) -> None:
    whole = SEVERAL[name]
    forged = replace(certificate(SUMS, verify_program(SUMS)), program=digest(whole))
    if not explore(whole).failed:
        certify_program(forged, whole)
        return
    with pytest.raises(ClaimError):
        certify_program(forged, whole)


def test_altered_certificates_are_refused_or_still_true() -> None:
    """A sample of what `make attack` does many times."""
    results = [one for number in range(draws(300)) if (one := decide(number)) is not None]
    ends = Counter[str](end for one in results for end in one.numbers)
    assert ends.keys() == {"refused", "still true"}
    assert {one.rows["altered"] for one in results} == {*WAYS, *KINDS}
    assert ends["refused"] > len(results) / 2


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


def without_dims() -> Program:
    """Rank 0 has `W`, and rank 1 receives it as `W[]`, a tensor without dims."""
    return Program(
        "primepar-program", 1, 2, ((Send(1, "W"),), (Recv(0, "W[]"),)),
        initial=(("W",), ()), final=((), ("W[]",)), tensors={"W": Tensor(())},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("whole", "wrong"), [(reshaped(), "placement"), (without_dims(), "alignment")]
)
def test_data_of_another_place_is_wrong_though_it_is_as_large(whole: Program, wrong: str) -> None:
    report = verify_program(whole)
    assert report[wrong].verdict == "refuted"
    assert wrong in explore(whole).failed
    given = certificate(whole, report)
    certify_program(given, whole)
    names = tuple(result.name for result in report.properties)
    with pytest.raises(ClaimError) as raised:
        certify_program(replace(given, refuted=(), proved=names), whole)
    assert str(raised.value).startswith("proved: expected nothing wrong, got ")
