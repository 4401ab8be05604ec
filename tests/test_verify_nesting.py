"""Sequences for every length: the theorem, its conditions, and that programs of meshes agree."""

from __future__ import annotations

from itertools import product
from math import prod
from pathlib import Path
from random import Random

import pytest
import z3
from command import run
from test_verify_primitive import Layers, TravellingSums

from primepar import Primitive, where
from primepar.partition import PRIMITIVES, ByOutput, PrimePar
from primepar.schedule import Movement, Sequence, lower
from primepar.schedule.nesting import Nesting, Sides
from primepar.schedule.primitive import Slices, Value
from primepar.targets import without_lengths
from primepar.verify.nesting import proof as verified
from primepar.verify.nesting.conditions import conditions
from primepar.verify.nesting.language import MEMBERS, Lemma
from primepar.verify.nesting.proof import verify_nesting
from primepar.verify.nesting.theorem import lemmas
from primepar.verify.primitive.proof import PROVED, verify_primitive
from primepar.verify.primitive.side import verify_side
from primepar.verify.program.proof import verify_program
from primepar.verify.report import PropertyResult, Report

WRONG = "tests/wrong"
NAMES = ("by-sequence", "by-input", "primepar", "sequence-column", "summa")


class Panels(Primitive):
    """SUMMA that declares no homes: the first panel is nowhere at the last step."""

    axes = ("r", "c")

    def forward(self, r: Value, c: Value, t: Value, s: Value) -> Slices:
        return dict(M=r, N=t, K=c)


class Diagonal(Primitive):
    """Tiles whose diagonal walks on by one in backward, so that its devices alone need other W."""

    axes = ("r", "c")

    def steps(self, s: Value) -> Value:
        return 1

    def forward(self, r: Value, c: Value, t: Value, s: Value) -> Slices:
        return dict(M=r, K=c)

    def backward(self, r: Value, c: Value, t: Value, s: Value) -> Slices:
        on = where(r == c, 1, 0)
        return dict(M=(r + on) % s, K=(c + on) % s)


def named(text: str) -> Nesting:
    found = without_lengths(text)
    assert found is not None
    return found


def of(*members: Primitive) -> Nesting:
    return Nesting(members, tuple(type(member).__name__ for member in members))


@pytest.fixture
def proved_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every member is proved once for all sequences that read it alike."""
    known = _PROVED

    def once(primitive: Primitive, name: str, timeout: float) -> Report:
        key = type(primitive).__name__, primitive.home is not None
        if key not in known:
            known[key] = verify_primitive(primitive, name, timeout)
        return known[key]

    monkeypatch.setattr(verified, "verify_primitive", once)


_PROVED: dict[tuple[str, bool], Report] = {}


# The theorem


def answer(lemma: Lemma, given: tuple[z3.BoolRef, ...], *more: z3.BoolRef) -> z3.CheckSatResult:
    solver = z3.Solver()
    solver.set("timeout", 20_000)
    solver.add(*given, *more, z3.Not(lemma.then))
    return solver.check()


@pytest.mark.parametrize("lemma", [*lemmas()], ids=lambda lemma: lemma.sentence)
def test_a_lemma_holds_and_needs_all_that_it_is_given(lemma: Lemma) -> None:
    solver = z3.Solver()
    solver.add(*lemma.given)
    assert solver.check() == z3.sat
    assert answer(lemma, lemma.given) == z3.unsat
    for each in lemma.given:
        left = tuple(given for given in lemma.given if given is not each)
        assert answer(lemma, left, *few_devices(lemma)) == z3.sat


def few_devices(lemma: Lemma) -> tuple[z3.BoolRef, ...]:
    """At most two in each member: Z3 finds a model of that, and of any number not by itself."""
    if lemma.sentence != "no two devices have one source":
        return ()
    devices = [(each.device(), each.device("'"), each.device("?")) for each in MEMBERS]
    return tuple(z3.ForAll([d], z3.Or(d == one, d == other)) for one, other, d in devices)


def test_a_lemma_that_does_not_hold_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = Lemma("completion", "all is well", (), z3.Int("x") == 0)
    monkeypatch.setattr(verified, "lemmas", lambda: iter((*lemmas(), wrong)))
    monkeypatch.setattr(verified, "FAULTS", {})
    verified.known_lemmas.cache_clear()
    report = verify_nesting(named("M,K"))
    verified.known_lemmas.cache_clear()
    assert report["completion"].reason == "of any nesting: all is well: Z3 has a counterexample"
    assert report.verdict == "unknown"


# What it says of sequences


@pytest.mark.parametrize(("outer", "inner"), [*product(NAMES, NAMES)])
def test_programs_of_meshes_agree_with_the_proof(proved_once: None, outer: str, inner: str) -> None:
    nesting = of(PRIMITIVES[outer](), PRIMITIVES[inner]())
    assert verify_nesting(nesting).verdict == "proved"
    for sides in small_meshes(nesting, Random(f"{outer} {inner}"), 1):
        assert verify_side(nesting.of(sides)).verdict == "proved"


@pytest.mark.parametrize("members", [(PrimePar, Layers), (TravellingSums, Layers)])
def test_members_in_which_sums_travel_or_layers_share(
    proved_once: None, members: tuple[type[Primitive], ...]
) -> None:
    nesting = of(*(kind() for kind in members))
    assert verify_nesting(nesting).verdict == "proved"
    assert verify_side(nesting.of((2, 2, 1))).verdict == "proved"


def small_meshes(nesting: Nesting, random: Random, count: int) -> list[Sides]:
    every = product((1, 2, 3), repeat=len(nesting.side_names))
    meshes = [sides for sides in every if 1 < prod(nesting.of(sides).axis_lengths) <= 12]
    return random.sample(meshes, count)


@pytest.mark.parametrize("text", ["P,P,K", "K,P,P", "M,Ks,P", "S,M,P"])
def test_three_members(proved_once: None, text: str) -> None:
    nesting = named(text)
    assert verify_nesting(nesting).verdict == "proved"
    assert verify_side(nesting.of((2,) * 3 if text != "P,P,K" else (2, 2, 1))).verdict == "proved"


def test_two_p_with_one_time_index_are_refuted_and_nested_ones_proved(proved_once: None) -> None:
    report = verify_nesting(named("P,P"))
    assert (report.verdict, report.scope) == (
        "proved", "every s1, s2 >= 1 (axes r1, c1: s1; r2, c2: s2)"
    )  # fmt: skip
    one = verify_primitive(named(f"M,{WRONG}/one_time_index.py:OneTimeIndex").members[1])
    assert one["coverage"].counterexample == (
        "s=2 (2x2x2x2 devices): forward sub-operator (M=0, N=0, K=1): expected one device to "
        "compute it, got none: only 32 of 64 are computed"
    )


WRONG_MEMBERS = {
    f"M,{WRONG}/late.py:Late": ((1, 4), "coverage"),
    f"{WRONG}/one_step.py:OneStep,N": ((2, 1), "coverage"),
    f"{WRONG}/no_last_step.py:NoLastStep,P": ((2, 1), "alignment"),
    f"S,{WRONG}/twins.py:Twins": ((1, 2), "alignment"),
    f"{WRONG}/input_on_the_diagonal.py:InputOnTheDiagonal,K": ((2, 1), "alignment"),
}


@pytest.mark.parametrize("text", WRONG_MEMBERS)
def test_a_wrong_member_makes_the_sequence_wrong(proved_once: None, text: str) -> None:
    sides, name = WRONG_MEMBERS[text]
    report = verify_nesting(named(text))
    assert report.verdict == "refuted"
    details = report[name].details
    assert details is not None
    assert tuple((details.sides or {}).values()) == sides
    assert verify_program(lower(named(text).of(sides))).verdict == "refuted"


def test_the_sentence_of_a_refutation_names_the_sides_of_all_members(proved_once: None) -> None:
    report = verify_nesting(named(f"M,{WRONG}/late.py:Late"))
    assert report["coverage"].counterexample == (
        "s1=1, s2=4 (1x4x4 devices): forward sub-operator (M=0, N=0, K=0): expected one device to "
        "compute it once, got device 0 (d=0, r=0, c=0) at t=0 and device 0 (d=0, r=0, c=0) at t=2: "
        "give one of them another"
    )
    assert report["completion"].reason == f"{WRONG}/late.py:Late: coverage is not proved"


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
        (own,) = Sequence.of(read, *element.sides).elements
        for tensor, device in product(("I", "W", "O"), element.devices):
            for dim in ("M", "N", "K"):
                assert own.home(tensor, device, dim) == element.home(tensor, device, dim)


# Its conditions


def test_conditions_are_asked_where_members_meet() -> None:
    deadline = 1e12
    assert list(conditions(named("K,P"), deadline)) == []
    assert list(conditions(named("P,K"), deadline)) == []
    assert list(conditions(named("P,S"), deadline)) == []
    asked = list(conditions(named("K,P,P"), deadline))
    assert [each.reason for each in asked] == [None] * len(asked)
    assert {each.sentence for each in asked} >= {
        "P inside of several steps: gradient, I: what the first step needs, some device has at the "
        "last",
        "P, which moves W where others do, after backward: no two devices have their blocks from "
        "one",
    }


def test_a_member_that_cannot_begin_its_phase_again() -> None:
    failed = [each for each in conditions(of(PrimePar(), Panels()), 1e12) if each.reason]
    assert failed[0].sentence == (
        "Panels inside of several steps: forward, I: what the first step needs, some device has "
        "at the last"
    )
    inside_of_one = conditions(of(ByOutput(), Panels()), 1e12)
    assert "placement" not in {each.property for each in inside_of_one}


def test_members_that_both_move_from_devices_that_stay() -> None:
    both = of(Diagonal(), Diagonal())
    failed = [each for each in conditions(both, 1e12) if each.reason]
    assert {each.sentence for each in failed} == {
        f"Diagonal, which moves W where others do, after {phase}: no two devices have their "
        "blocks from one"
        for phase in ("forward", "backward")
    }
    for nesting, moves in ((both, False), (of(Diagonal(), ByOutput()), True)):
        hops = Movement(nesting.of((2, 2))).moved("forward").operands[-1]
        assert any(hop.tensor == "W" for hop in hops) == moves


@pytest.mark.parametrize("members", [(PrimePar(), Panels()), (Diagonal(), Diagonal())])
def test_a_sequence_that_breaks_a_condition_is_not_proved(
    monkeypatch: pytest.MonkeyPatch, members: tuple[Primitive, ...]
) -> None:
    def proved(primitive: Primitive, name: str, timeout: float) -> Report:
        return Report.of(name, [PropertyResult(each, "proved", 0.0) for each in PROVED])

    monkeypatch.setattr(verified, "verify_primitive", proved)
    report = verify_nesting(of(*members))
    assert report.verdict == "refuted"
    monkeypatch.setattr(verified, "FAULTS", {})
    report = verify_nesting(of(*members))
    assert report.verdict == "unknown"
    reasons = [each.reason or "" for each in report.properties if each.verdict == "unknown"]
    assert reasons[0].startswith((type(members[1]).__name__, "what members ask of one another"))


def test_without_time_all_is_unknown() -> None:
    verified.known_lemmas.cache_clear()
    report = verify_nesting(named("M,P"), timeout=1e-9)
    assert {each.name: each.verdict for each in report.properties} == dict.fromkeys(
        PROVED, "unknown"
    )
    assert report["placement"].reason == (
        "of any nesting: what a step needs, some device had at the step before: Z3 did not decide "
        "it in the time that it was given"
    )


# The command


def test_the_command_proves_every_length() -> None:
    done = run("verify", "M,K")
    assert done.code == 0
    assert done.out.splitlines()[0] == ("M,K: proved for every s1, s2 >= 1 (axes d1: s1; d2: s2)")
    assert run("verify", "M,K", "--all-sides").code == 0
    assert (
        '"scope": "every s1, s2 >= 1 (axes d1: s1; d2: s2)"' in run("verify", "M,K", "--json").out
    )
    assert "as it stands" in run("verify", "M2,K2").out


def test_a_refuted_sequence_says_how_to_meet_it(tmp_path: Path) -> None:
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
         "member, got --side 2: leave it out to prove every length, or write lengths like M2,P2x2"),
        (("M,P", "--buffered"), "--buffered: expected a program, a sequence with its lengths or "
         "one --side, got M,P for every side: what a map moves is posted at once and needs no "
         "buffer"),
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
