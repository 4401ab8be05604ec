"""Sequences for every length: the theorem, its conditions, and that programs of meshes agree."""

from __future__ import annotations

from collections.abc import Sequence as Terms
from itertools import product
from math import prod
from pathlib import Path
from random import Random

import pytest
import z3
from command import run
from msgspec.structs import replace
from nesting_lemmas import lemmas
from one_mesh import verify_side
from primitive_cases import Layers, TravellingSums
from profiles import few
from test_verify_primitive import RowThenColumn

from primepar import Primitive
from primepar.api.target import without_lengths
from primepar.certify.certificate_format import PrimitiveCertificate, SequenceCertificate
from primepar.certify.claims import Claim, Subject, claims
from primepar.certify.primitive import certify_sequence
from primepar.errors import CertificateError, ClaimError
from primepar.partition import PRIMITIVES, PrimePar
from primepar.reference.check import check
from primepar.schedule import Movement, Sequence, lower
from primepar.schedule.operators import PRODUCTS
from primepar.schedule.primitive import Slices, Value
from primepar.schedule.sequence import Nesting, Sides
from primepar.verify.every_size.lemmas import Lemma
from primepar.verify.nesting.proof import verify_nesting
from primepar.verify.primitive.claims_on_mesh import failing
from primepar.verify.primitive.proof import verify_primitive
from primepar.verify.primitive.slice_counts import slices_of
from primepar.verify.program import verify_program

WRONG = "tests/wrong"
NAMES = ("by-sequence", "by-input", "primepar", "sequence-column", "summa")


class Panels(Primitive):
    """SUMMA that declares no homes: the first panel is nowhere at the last step."""

    axes = ("r", "c")

    def forward(self, r: Value, c: Value, t: Value, s: Value) -> Slices:
        return dict(M=r, N=t, K=c)


def named(text: str) -> Nesting:
    nesting = without_lengths(text)
    assert nesting is not None
    return nesting


def of(*members: Primitive) -> Nesting:
    return Nesting(members, tuple(type(member).__name__ for member in members))


# The theorem


def answer(lemma: Lemma, given: Terms[z3.BoolRef], *more: z3.BoolRef) -> z3.CheckSatResult:
    solver = z3.Solver()
    solver.set("timeout", 20_000)
    solver.add(*given, *more, z3.Not(lemma.claim))
    return solver.check()


@pytest.mark.parametrize("lemma", [*lemmas()], ids=lambda lemma: lemma.name)
def test_a_lemma_holds_and_needs_all_that_it_is_given(lemma: Lemma) -> None:
    solver = z3.Solver()
    solver.add(*lemma.given)
    assert solver.check() == z3.sat
    assert answer(lemma, lemma.given) == z3.unsat
    for premise in lemma.given:
        left = tuple(given for given in lemma.given if given is not premise)
        assert answer(lemma, left) == z3.sat


# Verdicts on sequences


@few
@pytest.mark.parametrize(("outer", "inner"), [*product(NAMES, NAMES)])
def test_programs_of_meshes_agree_with_the_proof(outer: str, inner: str) -> None:
    nesting = of(PRIMITIVES[outer](), PRIMITIVES[inner]())
    assert verify_nesting(nesting).verdict == "proved"
    for sides in small_meshes(nesting, Random(f"{outer} {inner}"), 1):
        assert verify_side(nesting.of(sides)).verdict == "proved"


def test_members_in_which_sums_travel_and_layers_share() -> None:
    nesting = of(TravellingSums(), Layers())
    assert verify_nesting(nesting).verdict == "proved"
    assert verify_side(nesting.of((2, 2, 1))).verdict == "proved"


def small_meshes(nesting: Nesting, random: Random, count: int) -> list[Sides]:
    every = product((1, 2, 3), repeat=len(nesting.side_names))
    meshes = [sides for sides in every if 1 < prod(nesting.of(sides).axis_lengths) <= 12]
    return random.sample(meshes, count)


@few
@pytest.mark.parametrize("text", ["P,P,K", "K,P,P", "M,Ks,P", "S,M,P"])
def test_three_members(text: str) -> None:
    nesting = named(text)
    assert verify_nesting(nesting).verdict == "proved"
    assert verify_side(nesting.of((2,) * 3 if text != "P,P,K" else (2, 2, 1))).verdict == "proved"


WRONG_MEMBERS = {
    f"{WRONG}/one_step.py:OneStep,N": ((2, 1), "coverage"),
    f"{WRONG}/no_last_step.py:NoLastStep,P": ((2, 1), "alignment"),
    f"S,{WRONG}/twins.py:Twins": ((1, 2), "alignment"),
    f"{WRONG}/input_on_the_diagonal.py:InputOnTheDiagonal,K": ((2, 1), "alignment"),
}


@pytest.mark.parametrize("text", WRONG_MEMBERS)
def test_a_wrong_member_makes_the_sequence_wrong(text: str) -> None:
    sides, name = WRONG_MEMBERS[text]
    report = verify_nesting(named(text))
    assert report.verdict == "refuted"
    details = report[name].details
    assert details is not None
    assert tuple((details.sides or {}).values()) == sides
    assert verify_program(lower(named(text).of(sides))).verdict == "refuted"


def test_the_sentence_of_a_refutation_names_the_sides_of_all_members() -> None:
    nesting = named(f"M,{WRONG}/late.py:Late")
    assert verify_program(lower(nesting.of((1, 4)))).verdict == "refuted"
    report = verify_nesting(nesting)
    assert report["coverage"].counterexample == (
        "s1=1, s2=4 (1x4x4 devices): forward sub-operator (M=0, N=0, K=0): expected one device to "
        "compute it once, got device 0 (d=0, r=0, c=0) at t=0 and device 0 (d=0, r=0, c=0) at t=2: "
        "give one of them another"
    )
    assert (report["completion"].verdict, report["completion"].reason) == (
        "not asked", "coverage is refuted, so that a sum has no meaning"
    )  # fmt: skip


def test_a_sequence_has_the_sides_of_its_members() -> None:
    nesting = named("P,summa-rectangular")
    assert nesting.scope == "every s, q, u, v >= 1 (axes r1, c1: s; r2, c2: q; a: u; b: v)"
    assert str(nesting.of((2, 1, 1, 2))) == "P2x2,S1x2"
    assert named("K").scope == "every s >= 1 (axis d)"


@pytest.mark.parametrize("text", ["S,P", "P,Ks", "M,S"])
def test_a_member_without_homes_is_read_as_its_sequence_reads_it(text: str) -> None:
    nesting = named(text)
    sequence = nesting.of((2, 2))
    for read, element in zip(nesting.read, sequence.elements, strict=True):
        (element_,) = Sequence.of(read, *element.sides).elements
        for tensor, device in product(("I", "W", "O"), element.devices):
            for dim in ("M", "N", "K"):
                assert element_.home(tensor, device, dim) == element.home(tensor, device, dim)


# What members ask of one another


def test_a_member_inside_of_several_steps_begins_its_phase_again() -> None:
    assert named("P,P,K").turns == (False, True, True)
    assert named("K,P").turns == (False, False)
    assert named("P,S").turns == (False, False)


def test_a_member_that_cannot_begin_its_phase_again_is_refuted() -> None:
    report = verify_nesting(of(PrimePar(), Panels()))
    assert report.verdict == "refuted"
    assert report.certificate is None
    failed = next(result for result in report.properties if result.verdict == "refuted")
    assert failed.name == "placement"


def again(primitive: Primitive) -> dict[str, Claim]:
    """What is claimed of a member inside of several steps only."""
    slices = slices_of(primitive)
    stated = {claim.name for claim in claims(Subject(primitive, slices))}
    repeated = claims(Subject(primitive, slices, repeats=True))
    return {claim.name: claim for claim in repeated if claim.name not in stated}


def test_what_the_first_step_needs_is_claimed_of_the_last() -> None:
    assert again(PrimePar()).keys() == {
        f"{phase} {tensor} again" for phase, made in PRODUCTS.items() for tensor in made.reads
    }
    assert {failing(claim, {"s": 3}) for claim in again(PrimePar()).values()} == {None}
    assert failing(again(Panels())["forward I again"], {"s": 2}) == {"s": 2, "r": 0, "c": 0}


def test_members_that_both_move_from_devices_that_stay_are_right() -> None:
    """Each device receives blocks of several others: once this was no realignment."""
    both = of(RowThenColumn(), RowThenColumn())
    hops = Movement(both.of((2, 2))).moved("forward").operands[-1]
    assert any(hop.tensor == "W" for hop in hops)
    assert verify_nesting(both).verdict == "proved"
    for sides in ((2, 2), (3, 2)):
        assert verify_side(both.of(sides)).verdict == "proved"
        assert check(both.of(sides)).equal


# Certificates


def test_the_certificate_of_a_sequence_is_that_of_its_members() -> None:
    nesting = named("P,K")
    report = verify_nesting(nesting)
    given = report.certificate
    assert isinstance(given, SequenceCertificate)
    assert {result.certified for result in report.properties} == {True}
    assert [member.repeats for member in given.members] == [False, True]
    assert certify_sequence(given, nesting) > 0

    def refused(*members: PrimitiveCertificate) -> str:
        with pytest.raises((CertificateError, ClaimError)) as error:
            certify_sequence(replace(given, members=members), nesting)
        return str(error.value)

    first, second = given.members
    for members in ((), (first,), (first, second, first)):
        expected = f"expected a certificate of 2 members, got {len(members)}"
        assert refused(*members) == expected
    assert refused(second, first) == (
        "expected a certificate of PrimePar, got one of another primitive: its maps are not the "
        "same"
    )
    alone = verify_primitive(nesting.members[1]).certificate
    assert isinstance(alone, PrimitiveCertificate)
    assert refused(first, alone) == (
        "expected claims about repeated steps of every member inside of several steps"
    )
    repeated = replace(alone, repeats=True)
    assert refused(first, repeated).startswith("answers: expected those of every claim")


def test_without_time_all_is_unknown() -> None:
    report = verify_nesting(named("M,P"), timeout=1e-9)
    assert report.verdict == "unknown"
    assert "proved" not in {result.verdict for result in report.properties}
    assert report["placement"].reason == "no answer within 1e-09 s: give it a longer --timeout"


# The command


def test_the_command_proves_every_length() -> None:
    done = run("verify", "M,K")
    assert done.code == 0
    assert done.out.splitlines()[0] == ("M,K: proved for every s1, s2 >= 1 (axes d1: s1; d2: s2)")
    assert (
        '"scope": "every s1, s2 >= 1 (axes d1: s1; d2: s2)"' in run("verify", "M,K", "--json").out
    )
    assert "as given" in run("verify", "M2,K2").out


def test_a_refuted_sequence_reports_how_to_replay_it(tmp_path: Path) -> None:
    target = f"M,{WRONG}/late.py:Late"
    smallest = tmp_path / "wrong.json"
    done = run("verify", target, "--minimal", str(smallest), "-o", str(tmp_path / "wrong.svg"))
    assert done.code == 1
    assert done.out.splitlines()[-1] == (
        f"  replay: primepar verify {target} --minimal wrong.json && primepar check wrong.json"
    )
    assert run("check", str(smallest)).code == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("M,P", "--side", "2"), "M,P: expected no --side, as a sequence has a length for each "
         "member, like M2,P2x2, got --side 2: leave it out"),
        (("M,P", "--buffered"), "M,P: expected no --buffered, as what a map moves is posted at "
         "once and needs no buffer, got --buffered: leave it out"),
        (("M,nobody.py:Nobody",), "nobody.py: expected a Python file, found none: check the path"),
    ],
)  # fmt: skip
def test_what_is_not_asked_of_a_sequence(arguments: tuple[str, ...], message: str) -> None:
    assert run("verify", *arguments) == (2, "", f"primepar: error: {message}\n")


@pytest.mark.parametrize(
    "text", ["M2,P2x2", "K,P2x2", "primepar", "M,Q", "R,K", "M,summa", "", ","]
)
def test_what_is_no_sequence_without_lengths(text: str) -> None:
    assert without_lengths(text) is None
