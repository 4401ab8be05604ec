"""Certificates of primitives for every side: they hold of what is right, and of nothing else."""

from __future__ import annotations

import re
from collections import Counter
from functools import cache
from itertools import product
from pathlib import Path
from random import Random
from time import perf_counter
from typing import Any

import msgspec
import pytest
from certificate_cases import altered
from msgspec.structs import replace

from primepar import Primitive, where
from primepar.certify.cases import MOST_CASES, MOST_QUOTIENTS, Answer, Case, cases
from primepar.certify.certificate_file import load_certificate, save_certificate
from primepar.certify.certificate_format import PrimitiveCertificate, map_texts
from primepar.certify.claims import Subject, claims
from primepar.certify.primitive import certify_primitive
from primepar.errors import CertificateError, ClaimError
from primepar.partition import PRIMITIVES, PrimePar
from primepar.partition.summa import Summa
from primepar.schedule.expression import parse
from primepar.schedule.polynomial_form import Form
from primepar.verify.primitive.proof import prove, verify_primitive
from primepar.verify.primitive.witness import Points


@cache
def made(method: str) -> PrimitiveCertificate:
    found = prove(PRIMITIVES[method](), perf_counter() + 30).certificate
    assert found is not None
    return found


@pytest.mark.parametrize("method", PRIMITIVES)
def test_the_certificate_of_every_primitive_holds_for_every_side(method: str) -> None:
    assert certify_primitive(made(method), PRIMITIVES[method]()) > 0


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
    """Column 0 of I rests nowhere where s is 2 or more."""

    def home(self, tensor: str, r: Any, c: Any, s: Any) -> dict[str, Any]:
        if tensor == "I":
            return dict(M=r, N=where(c == 0, s - 1, c))
        return super().home(tensor, r, c, s)


class Outside(Summa):
    """W rests outside the grid on one device."""

    def home(self, tensor: str, r: Any, c: Any, s: Any) -> dict[str, Any]:
        if tensor == "W":
            return dict(N=r, K=where(r == 8, c + s, c))
        return super().home(tensor, r, c, s)


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
    assert prove(wrong(), perf_counter() + 30).certificate is None
    assert verify_primitive(wrong()).verdict == "refuted"


def test_without_time_there_is_no_certificate() -> None:
    assert prove(PrimePar(), perf_counter()).certificate is None


# Altered certificates


def is_true_of(given: PrimitiveCertificate, primitive: Primitive, length: int) -> bool:
    """Whether the expressions of a certificate are right on one mesh, at every point of it."""
    slices = {dim: tuple(map(parse, own)) for dim, own in given.slices.items()}
    along = dict.fromkeys(primitive.side_names, length)
    for claim in claims(Subject(primitive, slices, given.turns)):
        found = {each: parse(text) for each, text in given.found.get(claim.name, {}).items()}
        if not Points.of(claim, [along], 1000).right(found).all():
            return False
    return True


SEVERAL = ["by-input", "primepar", "output-stays", "three-d"]


@pytest.mark.parametrize("method", SEVERAL)
def test_an_altered_number_is_refused_unless_what_is_stated_is_still_true(method: str) -> None:
    primitive, given = PRIMITIVES[method](), made(method)
    random, ends = Random(method), Counter[str]()
    for _ in range(15):
        way, changed = altered(given, random)
        assert isinstance(changed, PrimitiveCertificate)
        try:
            certify_primitive(changed, primitive)
        except ClaimError:
            ends["refused"] += 1
            continue
        ends[way[0]] += 1
        assert replace(changed, answers=given.answers) == given
    assert ends["refused"] > 3


@pytest.mark.parametrize("method", SEVERAL)
def test_an_altered_expression_is_refused_unless_it_is_still_right(method: str) -> None:
    primitive, given, ends = PRIMITIVES[method](), made(method), Counter[str]()
    for claim, found in given.found.items():
        for each, text in found.items():
            for other in (f"{text} + 1", f"0 * ({text})", re.sub(r"\bs\b", "s + 1", text)):
                changed = {**given.found, claim: {**found, each: other}}
                altered_one = replace(given, found=changed)
                try:
                    certify_primitive(altered_one, primitive)
                except ClaimError as error:
                    ends["refused" if str(error).startswith(f"{claim}: ") else "elsewhere"] += 1
                    continue
                ends["accepted"] += 1
                assert all(is_true_of(altered_one, primitive, length) for length in (1, 2, 3))
    assert (ends["refused"] >= 10, ends["elsewhere"]) == (True, 0)


@pytest.mark.parametrize("method", SEVERAL)
@pytest.mark.parametrize("change", ["left out", "added", "exchanged", "of one outcome"])
def test_an_answer_more_or_less_is_refused(method: str, change: str) -> None:
    given, refused = made(method), 0
    for claim, own in given.answers.items():
        changed = {
            "left out": own[:-1],
            "added": (*own, Answer("both")),
            "exchanged": (*own[1:], *own[:1]),
            "of one outcome": tuple(Answer("yes") for _ in own),
        }[change]
        if changed == own:
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
        ({"found": {}}, OTHERS),
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
    found = {**given.found, "coverage forward": given.found["forward I"]}
    with pytest.raises(ClaimError) as raised:
        certify_primitive(replace(given, found=found), PrimePar())
    assert str(raised.value) == (
        "coverage forward: expected an expression for what is to be found, got others"
    )
    found = {**given.found, "coverage forward": {**given.found["coverage forward"], "at_t": "t"}}
    with pytest.raises(ClaimError) as raised:
        certify_primitive(replace(given, found=found), PrimePar())
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
    for version in (1, 3):
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
    found = []
    for case in cases(given):
        x = case.variable("x", 1, Form.of(5))
        found.append(case.decide(x.plus(Form.of(-3))))
    return found


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
        message or "expected factors that contradict what is known, got others"
    )


def test_more_cases_than_the_checker_follows_are_refused() -> None:
    comparisons = MOST_CASES.bit_length()
    with pytest.raises(ClaimError) as raised:
        for case in cases([BOTH] * 2 * MOST_CASES):
            for each in range(comparisons):
                case.decide(Form.named(f"x{each}"))
    assert str(raised.value) == f"expected at most {MOST_CASES} cases"


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
    assert str(raised.value) == f"expected an index below {MOST_QUOTIENTS} sides left of % or //"
