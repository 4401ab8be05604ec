"""Certificates of primitives for every side: they hold of what is right, and of nothing else."""

from __future__ import annotations

from collections import Counter
from functools import cache
from itertools import product
from random import Random
from typing import Any

import pytest
from certificate_cases import altered
from certificate_meshes import OneMesh
from msgspec.structs import replace

from primepar import Primitive, where
from primepar.certify.cases import Answer, Case, Linear, cases
from primepar.certify.primitive import PrimitiveCertificate, certify_primitive
from primepar.errors import CertificateError, ClaimError
from primepar.partition import PRIMITIVES, PrimePar
from primepar.partition.summa import Summa
from primepar.schedule.primitive import call_map
from primepar.verify.certificate.primitive import primitive_certificate
from primepar.verify.primitive.proof import verify_primitive


@cache
def made(name: str) -> PrimitiveCertificate:
    return primitive_certificate(PRIMITIVES[name]())


@pytest.mark.parametrize("name", PRIMITIVES)
def test_the_certificate_of_every_primitive_holds_for_every_side(name: str) -> None:
    assert certify_primitive(made(name), PRIMITIVES[name]()) > 0


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
    ("wrong", "right", "claim"),
    [
        (Slow, "primepar", "coverage forward"),
        (Unaligned, "primepar", "coverage gradient"),
        (LateBreak, "primepar", "coverage forward"),
        (Homeless, "summa", "home I"),
        (Outside, "summa", "home W"),
    ],
)
def test_a_wrong_primitive_has_no_certificate_and_no_other_holds_of_it(
    wrong: type[Primitive], right: str, claim: str
) -> None:
    with pytest.raises(ClaimError) as refused:
        certify_primitive(made(right), wrong())
    assert str(refused.value).startswith(f"{claim}: expected ")
    with pytest.raises(CertificateError) as missing:
        primitive_certificate(wrong())
    assert str(missing.value).startswith("no certificate: ")
    assert verify_primitive(wrong()).verdict != "proved"


class Rounded(PrimePar):
    """Turns an index into a number, which no form of all sides can be."""

    def forward(self, r: Any, c: Any, t: Any, s: Any) -> dict[str, Any]:
        return dict(M=int(r), N=(r + c + t) % s, K=c)


def test_a_map_that_forms_cannot_follow_has_no_certificate() -> None:
    with pytest.raises(CertificateError) as raised:
        primitive_certificate(Rounded())
    assert str(raised.value) == (
        "no certificate: coverage forward: Rounded.forward: expected a map that can be called as "
        "forward(self, r, c, t, s), got TypeError: an index of every mesh is no plain number"
    )
    with pytest.raises(CertificateError) as raised:
        primitive_certificate(PrimePar(), timeout=0.001)
    assert str(raised.value).endswith("no answer within 0.001 s: give it a longer --timeout")


def test_only_the_check_of_all_sides_finds_a_side_far_off() -> None:
    """Coverage of `LateBreak` holds on every mesh up to 8, and fails on 9."""

    def wrong(s: int) -> bool:
        found = [tuple(call_map(LateBreak(), "forward", (r, c), t, (s,)).items())
                 for r, c, t in product(range(s), repeat=3)]  # fmt: skip
        return len(set(found)) < len(found)

    assert [s for s in range(1, 11) if wrong(s)] == [9]


@pytest.mark.parametrize("name", ["by-input", "primepar", "output-stays", "three-d"])
def test_an_altered_number_is_refused_unless_what_is_said_is_still_true(name: str) -> None:
    primitive, given = PRIMITIVES[name](), made(name)
    random, ends = Random(name), Counter[str]()
    for _ in range(15):
        way, changed = altered(given, random)
        assert isinstance(changed, PrimitiveCertificate)
        try:
            certify_primitive(changed, primitive)
        except ClaimError:
            ends["refused"] += 1
            continue
        ends[way[0]] += 1
        assert changed.slices == given.slices
        for sides in product((1, 3), repeat=len(primitive.side_names)):
            OneMesh(primitive, sides, changed).check()
    assert ends["refused"] > 3


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"answers": {}}, "answers: expected those of every claim about this primitive, "
         "got others"),
        (
            {"slices": {"M": ((0, (1,)),), "N": ((0, (1,)),), "K": ((0, (2,)),)}},
            "slices: expected as many sub-operators of forward as devices times steps, got another "
            "number",
        ),
        ({"witnesses": {}}, "coverage forward: expected rules of this primitive, got others: "
         "KeyError"),
        ({"homes": {}}, "home I: expected rules of this primitive, got others: KeyError"),
    ],
)  # fmt: skip
def test_what_is_left_out_or_made_up_is_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(ClaimError) as raised:
        certify_primitive(replace(made("summa"), **change), Summa())
    assert str(raised.value) == said


def test_the_certificate_of_another_primitive_is_refused() -> None:
    with pytest.raises(ClaimError) as raised:
        certify_primitive(made("output-stays"), Summa())
    assert str(raised.value).startswith("coverage forward: expected ")


def follow(*given: Answer) -> list[bool]:
    """Whether x >= 3, in each case, of an x from 1 to 4."""
    found = []
    for case in cases(given):
        x = case.fresh("x", 1, Linear(case, 5, {}))
        found.append(x >= 3)
    return found


BOTH = Answer("both")


def test_both_outcomes_of_a_comparison_are_followed() -> None:
    assert follow(BOTH) == [True, False]


@pytest.mark.parametrize(
    ("answers", "said"),
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
    answers: tuple[Answer, ...], said: str | None
) -> None:
    with pytest.raises(ClaimError) as raised:
        follow(*answers)
    assert str(raised.value) == (
        said or "expected factors that contradict what is known, got others"
    )


def test_a_name_stands_for_one_variable() -> None:
    """Else an axis could be taken for a step."""
    case = Case((), lambda *_: (True, True))
    case.fresh("x", 0)
    with pytest.raises(ClaimError) as raised:
        case.fresh("x", 0)
    assert str(raised.value) == "expected axes of other names, got 'x' twice"


@pytest.mark.parametrize(("x", "n"), list(product((-7, -3, 0, 2, 9), (1, 3, 4))))
def test_division_of_forms_is_that_of_numbers(x: int, n: int) -> None:
    case = Case((), lambda *_: (True, True))
    quotient, rest = divmod(Linear(case, x, {}), n)
    assert (quotient, rest.constant) == divmod(x, n)
