"""Homes for every side: those that are not the nearest are right, and steps are counted."""

from __future__ import annotations

from functools import partial
from itertools import product

import pytest
from one_mesh import verify_side
from profiles import few

from primepar import Primitive, where
from primepar.certify.cases import Answer
from primepar.certify.claims import PROPERTIES, Subject, claims
from primepar.certify.primitive import certify_claim, holds
from primepar.errors import CertificateError, ClaimError, SymbolicError
from primepar.partition.sequence_parallel import SequenceColumn
from primepar.partition.stationary import InputStays
from primepar.partition.summa import Summa
from primepar.partition.tesseract import Tesseract
from primepar.partition.three_d import ThreeD
from primepar.reference.check import check
from primepar.schedule import Sequence
from primepar.schedule.primitive import Slices, Value
from primepar.verify.certificate.answers import answers
from primepar.verify.primitive.proof import verify_primitive
from primepar.verify.primitive.slice_counts import slices_of

# Homes that cost more and are right


class TransposedWeight(Summa):
    def home(self, tensor: str, r: Value, c: Value, s: Value) -> Slices:
        return dict(N=c, K=r) if tensor == "W" else super().home(tensor, r, c, s)


class SkewedInput(Summa):
    def home(self, tensor: str, r: Value, c: Value, s: Value) -> Slices:
        return dict(M=r, N=(r + c) % s) if tensor == "I" else super().home(tensor, r, c, s)


class ReplicasOnDiagonals(Summa):
    sent, held = Primitive.sent, Primitive.held

    def home(self, tensor: str, r: Value, c: Value, s: Value) -> Slices:
        return dict(M=(r + c) % s) if tensor == "I" else super().home(tensor, r, c, s)


class StartsNextToHome(Summa):
    def forward(self, r: Value, c: Value, t: Value, s: Value) -> Slices:
        return dict(M=r, N=(t + 1) % s, K=c)


class KeepsAll(Summa):
    sent, held = Primitive.sent, Primitive.held
    keeps = ("I", "W")


class InputSplitAlongN(SequenceColumn):
    def home(self, tensor: str, d: Value, s: Value) -> Slices:
        return dict(N=d) if tensor == "I" else super().home(tensor, d, s)


class ExchangedDigits(ThreeD):
    sent, held = Primitive.sent, Primitive.held

    def home(self, tensor: str, i: Value, j: Value, l: Value, s: Value) -> Slices:
        return dict(M=(j, i), N=l) if tensor == "I" else super().home(tensor, i, j, l, s)


class EndsAtHome(InputStays):
    """The way of O ends at its home, and does not begin there."""

    def home(self, tensor: str, r: Value, c: Value, s: Value) -> Slices:
        home_ = super().home(tensor, r, c, s)
        return dict(M=r, K=(r + c - 1) % s) if tensor == "O" else home_


class LayersShareWeight(Tesseract):
    """W is spread over the layers too, and gathered."""

    def home(self, tensor: str, r: Value, c: Value, e: Value, q: Value, d: Value) -> Slices:
        return dict(N=r, K=(c, e)) if tensor == "W" else super().home(tensor, r, c, e, q, d)


HARMLESS: list[type[Primitive]] = [
    TransposedWeight, SkewedInput, ReplicasOnDiagonals, StartsNextToHome, KeepsAll,
    InputSplitAlongN, ExchangedDigits, EndsAtHome, LayersShareWeight,
]  # fmt: skip


@few
@pytest.mark.parametrize("kind", HARMLESS)
def test_homes_that_are_not_the_nearest_are_proved_all_the_same(
    kind: type[Primitive], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kind, "sent", Primitive.sent)
    monkeypatch.setattr(kind, "held", Primitive.held)
    report = verify_primitive(kind())
    assert [result.name for result in report.properties][:6] == [*PROPERTIES]
    assert {result.verdict for result in report.properties} == {"proved"}
    assert report.certificate is not None
    for sides in product((1, 2, 3), repeat=len(kind().side_names)):
        if all(side < 3 for side in sides[1:]):
            assert verify_side(kind(), sides).verdict == "proved"
            assert check(Sequence.of(kind(), *sides)).equal


# What is not proved


def test_no_property_stands_on_slices_beyond_the_grid() -> None:
    """No rule gives the number of slices of M: the map of a deeper mesh goes beyond its homes."""

    class ForgetsLayers(Tesseract):
        def home(self, tensor: str, r: Value, c: Value, e: Value, q: Value, d: Value) -> Slices:
            return dict(M=r, N=c) if tensor == "I" else super().home(tensor, r, c, e, q, d)

    report = verify_primitive(ForgetsLayers())
    assert {result.name: result.verdict for result in report.properties} == {
        "coverage": "refuted",
        "placement": "refuted",
        "completion": "refuted",
        "alignment": "refuted",
        "deadlock-freedom": "unknown",
    }
    assert report["deadlock-freedom"].reason == (
        "the number of slices of M follows no rule that is affine in the sides"
    )


class SwapsTheFirstTwo(Summa):
    """Right, though no single affine form gives the homes of the blocks of I."""

    def home(self, tensor: str, r: Value, c: Value, s: Value) -> Slices:
        swapped = where((c < 2) & (s > 1), 1 - c, c)
        return dict(M=r, N=swapped) if tensor == "I" else super().home(tensor, r, c, s)


def test_a_home_in_cases_is_proved_and_certified() -> None:
    report = verify_primitive(SwapsTheFirstTwo())
    assert report.certificate is not None
    assert report.verdict == "proved"
    assert {verify_side(SwapsTheFirstTwo(), (side,)).verdict for side in (1, 2, 3)} == {"proved"}


class HomeWithIf(Summa):
    def home(self, tensor: str, r: Value, c: Value, s: Value) -> Slices:
        return dict(M=r, N=c if c else 0) if tensor == "I" else super().home(tensor, r, c, s)


def test_a_home_that_symbols_cannot_follow_is_refused() -> None:
    with pytest.raises(SymbolicError) as error:
        verify_primitive(HomeWithIf())
    assert "HomeWithIf.home: expected +, -, *, //, %" in str(error.value)


class TooFewSteps(Summa):
    """Its certificate was once accepted, with answers made for it."""

    def steps(self, s: Value) -> Value:
        return where(s >= 2, 1, s)


def test_the_steps_of_a_primitive_with_homes_are_counted() -> None:
    report = verify_primitive(TooFewSteps())
    assert (report["coverage"].verdict, report.certificate) == ("refuted", None)
    counts = [claim for claim in claims(Subject(TooFewSteps(), slices_of(Summa())))
              if claim.name.startswith("count")]  # fmt: skip
    assert len(counts) == 3
    for claim in counts:
        with pytest.raises(CertificateError) as error:
            answers(partial(holds, claim, {}))
        assert str(error.value) == ("expected a claim that holds in every case, got one that fails")
        for outcome in ("yes", "no", "both"):
            for length in range(1, 6):
                with pytest.raises(ClaimError):
                    certify_claim(claim, {}, (Answer(outcome, ((0, 1), (-1, 1))),) * length)
