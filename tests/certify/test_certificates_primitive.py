"""Certificates of primitives for every side: they hold of what is right, and of nothing else."""

from __future__ import annotations

import re
from collections import Counter
from functools import cache, partial
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
from attack_alterations import altered
from msgspec.structs import replace
from profiles import few

from primepar import Primitive, where
from primepar.certify.cases import MAX_QUOTIENTS, Answer, Case, cases
from primepar.certify.certificate_file import load_certificate, save_certificate
from primepar.certify.certificate_format import PrimitiveCertificate, map_texts
from primepar.certify.claims import Subject, claims
from primepar.certify.primitive import certify_primitive, holds
from primepar.errors import CertificateError, ClaimError
from primepar.partition import PRIMITIVES, PrimePar
from primepar.partition.summa import Summa
from primepar.schedule.deadline import UnansweredError, deadline
from primepar.schedule.expression import parse
from primepar.schedule.polynomial_form import Form
from primepar.verify.certificate.answers import answers as answers_of
from primepar.verify.primitive.proof import prove, verify_primitive
from primepar.verify.primitive.witness import Points


@cache
def made(method: str) -> PrimitiveCertificate:
    certificate = prove(PRIMITIVES[method]()).certificate
    assert certificate is not None
    return certificate


# Wrong primitives


class Slow(PrimePar):
    """Two steps of one device do the same product where s is even."""

    def forward(self, r: Any, c: Any, t: Any, s: Any) -> dict[str, Any]:
        return dict(M=r, N=(r + c + 2 * t) % s, K=c)


class Unaligned(PrimePar):
    """W does not end where it starts."""

    def gradient(self, r: Any, c: Any, t: Any, s: Any) -> dict[str, Any]:
        return dict(M=(r + t) % s, N=(r + c - 1) % s, K=(c - 1) % s)


class LateBreak(PrimePar):
    """As PrimePar on all sides but 9: no small mesh is wrong."""

    def forward(self, r: Any, c: Any, t: Any, s: Any) -> dict[str, Any]:
        return dict(M=r, N=(r + c + where(s == 9, 0, t)) % s, K=c)


class Homeless(Summa):
    """Column 0 of I is resident nowhere where s is 2 or more."""

    def home(self, tensor: str, r: Any, c: Any, s: Any) -> dict[str, Any]:
        if tensor == "I":
            return dict(M=r, N=where(c == 0, s - 1, c))
        return super().home(tensor, r, c, s)


class Outside(Summa):
    """W is resident outside of the grid on one device."""

    def home(self, tensor: str, r: Any, c: Any, s: Any) -> dict[str, Any]:
        if tensor == "W":
            return dict(N=r, K=where(r == 8, c + s, c))
        return super().home(tensor, r, c, s)


@few
@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        (Slow, "primepar"),
        (Unaligned, "primepar"),
        (LateBreak, "primepar"),
        (Homeless, "summa"),
        (Outside, "summa"),
    ],
)
def test_a_wrong_primitive_has_no_certificate_and_no_other_holds_of_it(
    wrong: type[Primitive], right: str
) -> None:
    with pytest.raises(CertificateError) as refused:
        certify_primitive(made(right), wrong())
    assert str(refused.value) == (
        f"expected a certificate of {wrong.__name__}, got one of another primitive: its maps are "
        "not the same"
    )
    with pytest.raises(ClaimError):
        certify_primitive(replace(made(right), maps=map_texts(wrong())), wrong())
    report = verify_primitive(wrong())
    assert (report.certificate, report.verdict) == (None, "refuted")


class OneStep(Primitive):
    """M over the devices, and its second digit over the steps, of which there is one."""

    axes = ("r",)

    def steps(self, s: Any) -> Any:
        return 1

    def forward(self, r: Any, t: Any, s: Any) -> dict[str, Any]:
        return dict(M=(r, t))

    def home(self, tensor: str, r: Any, s: Any) -> dict[str, Any]:
        return {"I": dict(M=r), "W": {}, "O": dict(M=r)}[tensor]


class NoSteps(OneStep):
    """From side 7 on it has no step at all, so that it computes nothing."""

    def steps(self, s: Any) -> Any:
        return where(s >= 7, 6 - s, 1)


class NoStepsOfCannon(Summa):
    """From side 100 on it has no step at all."""

    def steps(self, s: Any) -> Any:
        return where(s >= 100, 99 - s, s)


@pytest.mark.parametrize(
    ("kind", "place", "right"),
    [(NoSteps, "s=7 (7 devices)", OneStep), (NoStepsOfCannon, "s=100 (100x100 devices)", Summa)],
)
def test_a_primitive_without_a_step_from_some_side_on_is_refuted(
    kind: type[Primitive], place: str, right: type[Primitive]
) -> None:
    report = verify_primitive(kind())
    assert report["coverage"].counterexample == (
        f"{place}: expected 1 step or more in each phase, got -1: change steps"
    )
    assert {result.verdict for result in report.properties[1:]} == {"not asked"}
    assert report["deadlock-freedom"].reason == (
        f"a phase has no step at {place.split()[0]}, so that nothing is done there"
    )
    assert report.cause is None  # small meshes are right, so no single edit is the likely one
    forged = _forged(kind(), right)
    assert "steps" in _refused_claims(forged, kind())


@pytest.mark.parametrize("count", ["0", "where(s >= 7, 0, 1)", "s - 7", "7 - s"])
def test_a_number_of_slices_that_makes_ranges_empty_is_refused(count: str) -> None:
    """Nothing is claimed of the slices below 0, and every one of them is covered."""
    forged = replace(_forged(OneStep(), OneStep), slices={"M": ("s", count)})
    assert "steps" in _refused_claims(forged, OneStep())


def _forged(wrong: Primitive, right: type[Primitive]) -> PrimitiveCertificate:
    """The certificate of a right primitive, made over to a wrong one."""
    certificate = prove(right()).certificate
    assert certificate is not None
    return replace(certificate, maps=map_texts(wrong))


def _refused_claims(given: PrimitiveCertificate, primitive: Primitive) -> set[str]:
    """The claims for which no answers can be made, whoever makes them."""
    slices = {dim: tuple(map(parse, counts)) for dim, counts in given.slices.items()}
    made, refused = {}, set()
    for claim in claims(Subject(primitive, slices, given.repeats)):
        witnesses = {key: parse(text) for key, text in given.witnesses.get(claim.name, {}).items()}
        try:
            made[claim.name] = answers_of(partial(holds, claim, witnesses))
        except CertificateError:
            refused.add(claim.name)
            made[claim.name] = given.answers[claim.name]
    with pytest.raises(ClaimError):
        certify_primitive(replace(given, answers=made), primitive)
    return refused


HUGE = {
    "a large power": "*".join(["(s + in_M0 + in_N0 + in_K0 + 1)"] * 40),
    "a power of one name": "*".join(["s"] * 17),
    "a long number": "9" * 4000,
    "a long text": "+".join(["s"] * 10_001),
    "a deep one": "where(s == 1, " * 90 + "s" + ", 0)" * 90,
    "a power": "10**10**10 % s",
}


@pytest.mark.parametrize("what", HUGE)
def test_a_witness_that_would_take_memory_or_time_is_refused(what: str) -> None:
    """Within 1,000 Forms of 1,000 terms: the first was once 831 MB, and had no end."""
    given, text = made("primepar"), HUGE[what]
    witnesses = {**given.witnesses["coverage forward"], "at_r": text}
    forged = replace(given, witnesses={**given.witnesses, "coverage forward": witnesses})
    with pytest.raises(ClaimError) as raised:
        certify_primitive(forged, PrimePar())
    expected = {
        "a large power": "expected polynomials of at most 1000 terms and degree 16, got 1001 terms "
        "of degree 10",
        "a power of one name": "expected polynomials of at most 1000 terms and degree 16, got 1 "
        "terms of degree 17",
        "a deep one": "expected it to hold in every case, got one where it does not",
    }.get(what, f"expected an expression like (r + t) % s, got {text[:60]!r}")
    assert str(raised.value) == f"coverage forward: {expected}"


def test_without_time_there_is_no_certificate() -> None:
    with deadline(0.0), pytest.raises(UnansweredError):
        prove(PrimePar())


# Altered certificates


def is_true_of(given: PrimitiveCertificate, primitive: Primitive, length: int) -> bool:
    """Whether the expressions of a certificate are right on one mesh, at every point of it."""
    slices = {dim: tuple(map(parse, counts)) for dim, counts in given.slices.items()}
    along = dict.fromkeys(primitive.side_names, length)
    for claim in claims(Subject(primitive, slices, given.repeats)):
        expressions = {
            name: parse(text) for name, text in given.witnesses.get(claim.name, {}).items()
        }
        if not Points.of(claim, [along], 1000).right(expressions).all():
            return False
    return True


SEVERAL = ["by-input", "primepar", "output-stays", "three-d"]


@pytest.mark.parametrize("method", SEVERAL)
def test_an_altered_number_is_refused_unless_what_is_stated_is_still_true(method: str) -> None:
    given, refused = made(method), 0
    text = msgspec.json.encode(given)
    for seed in range(15):
        other = altered(text, "number", Random(f"{method} {seed}"), text)
        try:
            changed = msgspec.json.decode(other or text, type=PrimitiveCertificate)
            certify_primitive(changed, PRIMITIVES[method]())
        except (ClaimError, msgspec.ValidationError):
            refused += 1
            continue
        assert replace(changed, answers=given.answers) == given
    assert refused > 3


@few
@pytest.mark.parametrize("method", SEVERAL)
def test_an_altered_expression_is_refused_unless_it_is_still_right(method: str) -> None:
    primitive, given, ends = PRIMITIVES[method](), made(method), Counter[str]()
    for claim, expressions in given.witnesses.items():
        for name, text in expressions.items():
            for other in (f"{text} + 1", f"0 * ({text})", re.sub(r"\bs\b", "s + 1", text)):
                changed = {**given.witnesses, claim: {**expressions, name: other}}
                altered_one = replace(given, witnesses=changed)
                try:
                    certify_primitive(altered_one, primitive)
                except ClaimError as error:
                    ends["refused" if str(error).startswith(f"{claim}: ") else "elsewhere"] += 1
                    continue
                ends["accepted"] += 1
                assert all(is_true_of(altered_one, primitive, length) for length in (1, 2, 3))
    assert (ends["refused"] >= 10, ends["elsewhere"]) == (True, 0)


@few
@pytest.mark.parametrize("method", SEVERAL)
@pytest.mark.parametrize("change", ["left out", "added", "exchanged", "of one outcome"])
def test_an_answer_more_or_less_is_refused(method: str, change: str) -> None:
    given, refused = made(method), 0
    for claim, answers in given.answers.items():
        changed = {
            "left out": answers[:-1],
            "added": (*answers, Answer("both")),
            "exchanged": (*answers[1:], *answers[:1]),
            "of one outcome": tuple(Answer("yes") for _ in answers),
        }[change]
        if changed == answers:
            continue
        with pytest.raises(ClaimError) as raised:
            certify_primitive(
                replace(given, answers={**given.answers, claim: changed}), PRIMITIVES[method]()
            )
        assert str(raised.value).startswith(f"{claim}: ")
        refused += 1
    assert refused > 3


OTHERS = "answers: expected those of every claim about this primitive, got others"
SLICES = "slices: expected a number for every digit of this primitive, got others"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"answers": {}}, OTHERS),
        ({"answers": {"coverage forward": ()}}, OTHERS),
        ({"witnesses": {}}, OTHERS),
        ({"slices": {}}, SLICES),
        ({"slices": {"M": ("s",), "N": ("s",), "K": ("2 * s",)}}, ": expected "),
        ({"slices": {"M": ("s",), "N": ("s",), "K": ("1",)}}, ": expected "),
        ({"slices": {"M": ("s",), "N": ("s",), "K": ("r",)}}, SLICES),
        ({"slices": {"M": ("s",), "N": ("s",)}}, SLICES),
        ({"slices": {"M": ("s", "1"), "N": ("s",), "K": ("s",)}}, SLICES),
        ({"slices": {"M": ("s",), "N": ("s",), "K": ("s +",)}},
         "expected an expression like (r + t) % s, got 's +'"),
        ({"slices": {"M": ("s",), "N": ("s",), "K": ("s == 1",)}},
         "expected an expression like (r + t) % s, got 's == 1'"),
    ],
)  # fmt: skip
def test_what_is_left_out_or_made_up_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ClaimError) as raised:
        certify_primitive(replace(made("summa"), **change), Summa())
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_expressions_of_another_claim_are_refused() -> None:
    given = made("primepar")
    witnesses = {**given.witnesses, "coverage forward": given.witnesses["forward I"]}
    with pytest.raises(ClaimError) as raised:
        certify_primitive(replace(given, witnesses=witnesses), PrimePar())
    assert str(raised.value) == (
        "coverage forward: expected an expression for each witness, got others"
    )
    witnesses = {
        **given.witnesses,
        "coverage forward": {**given.witnesses["coverage forward"], "at_t": "t"},
    }
    with pytest.raises(ClaimError) as raised:
        certify_primitive(replace(given, witnesses=witnesses), PrimePar())
    assert str(raised.value) == "coverage forward: expected names of this primitive, got 't'"


def test_the_certificate_of_another_primitive_is_refused() -> None:
    with pytest.raises(CertificateError) as raised:
        certify_primitive(made("output-stays"), Summa())
    assert str(raised.value) == (
        "expected a certificate of Summa, got one of another primitive: its maps are not the same"
    )
    moved = replace(made("output-stays"), maps=map_texts(Summa()))
    with pytest.raises(ClaimError):
        certify_primitive(moved, Summa())


def test_a_certificate_of_another_version_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "proof.json"
    save_certificate(made("summa"), file)
    assert load_certificate(file) == made("summa")
    for version in (2, 4):
        tree = {**msgspec.json.decode(file.read_bytes()), "version": version}
        other = tmp_path / f"{version}.json"
        other.write_bytes(msgspec.json.encode(tree))
        with pytest.raises(CertificateError) as raised:
            load_certificate(other)
        assert "`$.version`" in str(raised.value)
        assert "\n" not in str(raised.value)


# Cases and factors


def follow(*given: Answer) -> list[bool]:
    """Whether x >= 3, in each case, of an x from 1 to 4."""
    results = []
    for case in cases(given):
        x = case.variable("x", 1, Form.of(5))
        results.append(case.decide(x.plus(Form.of(-3))))
    return results


BOTH = Answer("both")


def test_both_outcomes_of_a_comparison_are_followed() -> None:
    assert follow(BOTH) == [True, False]


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ((), "expected an answer for every comparison, got too few"),
        ((BOTH, BOTH), "expected no more answers than comparisons"),
        ((Answer("yes", ((0, 1), (-1, 1))),), None),
        ((Answer("yes", ((0, 1),)),), None),
        ((Answer("no", ((0, -1), (-1, -1))),), None),
        ((Answer("no", ((9, 1), (-1, 1))),), None),
        ((Answer("no", ((-2, 1), (-1, 1))),), None),
        ((Answer("no"),), None),
    ],
)
def test_answers_that_do_not_follow_are_refused(
    answers: tuple[Answer, ...], message: str | None
) -> None:
    with pytest.raises(ClaimError) as raised:
        follow(*answers)
    assert str(raised.value) == (
        message or "expected factors that contradict the facts, got others"
    )


def test_more_cases_than_the_checker_follows_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("primepar.certify.cases.MAX_CASES", 100)
    with pytest.raises(ClaimError) as raised:
        for case in cases([BOTH] * 200):
            for index in range(7):  # of which there are 128 cases
                case.decide(Form.named(f"x{index}"))
    assert str(raised.value) == "expected at most 100 cases"


def both(_: Case, __: Form) -> tuple[bool, bool]:
    return True, True


@pytest.mark.parametrize(("x", "n"), list(product((-7, -3, 0, 2, 9), (1, 3, 4))))
def test_division_of_forms_is_that_of_numbers(x: int, n: int) -> None:
    quotient, rest = Case((), both).divided(Form.of(x), Form.of(n))
    assert (quotient.constant, rest.constant) == divmod(x, n)


@pytest.mark.parametrize(("x", "s"), list(product((-9, -4, -1, 0, 3, 8), (1, 2, 4))))
def test_division_by_a_side_is_that_of_numbers(x: int, s: int) -> None:
    """Each comparison is answered as it is for one side."""

    def as_for_s(case: Case, form: Form) -> tuple[bool, bool]:
        value = sum(factor * s ** len(term) for term, factor in form.terms.items())
        return value >= 0, True

    quotient, rest = Case((), as_for_s).divided(Form.of(x), Form.named("s"))
    value = sum(factor * s ** len(term) for term, factor in rest.terms.items())
    assert (quotient.constant, value) == divmod(x, s)


@pytest.mark.parametrize("divisor", [0, -2])
def test_division_by_less_than_1_is_refused(divisor: int) -> None:
    with pytest.raises(ClaimError) as raised:
        Case((), both).divided(Form.named("x"), Form.of(divisor))
    assert str(raised.value) == "expected % and // by 1 or more in a map"


def test_an_index_far_outside_of_its_side_is_refused() -> None:
    def never_below(_: Case, __: Form) -> tuple[bool, bool]:
        return True, True

    with pytest.raises(ClaimError) as raised:
        Case((), never_below).divided(Form.named("x"), Form.named("s"))
    assert str(raised.value) == f"expected an index below {MAX_QUOTIENTS} sides left of % or //"
