"""Primitives are proved for every side, by their own maps; what is not decided is unknown."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest
from one_mesh import verify_side
from primitive_cases import Layers, Mirror, OtherWay, Rectangle, ResidentSums, TravellingSums
from profiles import few

from primepar import Primitive, where
from primepar.certify.certificate_format import PrimitiveCertificate
from primepar.certify.claims import PROPERTIES, Subject, claims
from primepar.certify.primitive import certify_primitive
from primepar.partition import PRIMITIVES, PrimePar
from primepar.schedule.expression import evaluate
from primepar.schedule.primitive import Slices, Value
from primepar.verify.primitive import decide, proof
from primepar.verify.primitive.claims_on_mesh import limits
from primepar.verify.primitive.proof import verify_primitive
from primepar.verify.primitive.slice_counts import slices_of
from primepar.verify.primitive.witness import Points, Witnesses
from primepar.verify.primitive.z3_question import Questions

WRONG = Path(__file__).parents[1] / "wrong"


class RowThenColumn(Primitive):
    """Rows of W forward, columns backward: each device receives blocks of all others."""

    axes = ("d",)

    def steps(self, s: Value) -> Value:
        return 1

    def forward(self, d: Value, t: Value, s: Value) -> Slices:
        return dict(N=d)

    def backward(self, d: Value, t: Value, s: Value) -> Slices:
        return dict(K=d)


class OneDevice(Primitive):
    """No axis at all."""

    def forward(self, t: Value) -> Slices:
        return {}


OURS = (TravellingSums, OtherWay, Layers, Rectangle, Mirror, ResidentSums, RowThenColumn, OneDevice)
RIGHT = {**PRIMITIVES, **{kind.__name__: kind for kind in OURS}}


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_primitive_is_proved_and_certified_for_every_side(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proof, "formula_results", lambda _: ())  # test_equal_on_meshes.py
    report = verify_primitive(RIGHT[name](), name)
    right = [(result.name, result.verdict, result.certified) for result in report.properties]
    assert right == [(result, "proved", True) for result in PROPERTIES]
    assert (report.target, report.verdict) == (name, "proved")
    assert isinstance(report.certificate, PrimitiveCertificate)
    assert certify_primitive(report.certificate, RIGHT[name]()) > 0


@few
@pytest.mark.parametrize("name", RIGHT)
def test_what_is_proved_for_every_side_is_proved_for_each(name: str) -> None:
    primitive = RIGHT[name]()
    count = len(primitive.side_names)
    for sides in product((1, 2, 3) if count < 3 else (1, 2), repeat=count):
        assert verify_side(primitive, sides).verdict == "proved"


@pytest.mark.parametrize("name", RIGHT)
def test_every_property_stands_on_claims_that_are_not_empty(name: str) -> None:
    subject = Subject(RIGHT[name](), slices_of(RIGHT[name]()))
    along = dict.fromkeys(subject.primitive.side_names, 3)
    stated = list(claims(subject))
    named = {name for claim in stated for name in claim.properties}
    # Without homes a sum is whole by coverage and by the order of the lowering.
    assert {*PROPERTIES} - named == (set() if subject.maps.homes else {"completion"})
    one_step = evaluate(subject.maps.steps, along) == 1
    for claim in stated:
        given, witnesses = limits(claim, along)
        goes_on = claim.properties == ("placement",) and not subject.maps.homes
        assert min((*given.values(), *witnesses.values()), default=1) > 0 or (one_step and goes_on)


def test_a_wrong_expression_proves_and_refutes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Z3 finds a point where it is wrong and something else is right, again and again."""
    monkeypatch.setattr(decide, "find", nothing_but_0)
    monkeypatch.setattr(decide, "ROUNDS", 3)
    report = verify_primitive(PrimePar())
    assert {result.name: result.verdict for result in report.properties} == {
        "coverage": "unknown",
        "placement": "unknown",
        "completion": "not asked",
        "alignment": "unknown",
        "deadlock-freedom": "proved",
    }
    assert report["placement"].reason == "forward I: no expressions were found for the witnesses"
    assert report.certificate is None


def nothing_but_0(points: Points) -> Witnesses:
    return {name: 0 for name, _ in points.claim.witnesses}


def test_what_z3_proves_wrongly_is_not_certified(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if Z3 had a fault: it finds no counterexample to expressions that are wrong."""
    monkeypatch.setattr(decide, "find", nothing_but_0)
    monkeypatch.setattr(Questions, "counterexample", lambda *_: None)
    report = verify_primitive(PrimePar())
    assert {result.name: result.certified for result in report.properties[:6]} == {
        "coverage": False,
        "placement": False,
        "completion": False,
        "alignment": False,
        "deadlock-freedom": True,
        "races": True,
    }
    assert report.certificate is None


def test_a_claim_that_z3_takes_for_right_everywhere_does_not_certify_a_wrong_primitive(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class WrongAt9(PrimePar):
        """Right on the small meshes, which are evaluated without Z3."""

        def forward(self, r: Value, c: Value, t: Value, s: Value) -> Slices:
            return dict(M=r, N=(r + c + where(s == 9, 0, t)) % s, K=c)

    monkeypatch.setattr(Questions, "counterexample", lambda *_: None)
    report = verify_primitive(WrongAt9())
    assert (report["coverage"].verdict, report["coverage"].certified) == ("proved", False)
    assert report.certificate is None
