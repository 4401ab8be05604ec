"""What a primitive sends, for every side: counted from its maps, and compared with its formula."""

from __future__ import annotations

from typing import Any

import pytest
from primitive_cases import Rectangle, TravellingSums

from primepar import Primitive, where
from primepar.errors import PrimitiveError
from primepar.partition import PRIMITIVES, PrimePar
from primepar.partition.summa import Summa, SummaRectangular
from primepar.partition.three_d import ThreeD
from primepar.schedule import Linear, Sequence
from primepar.schedule.expression import Value
from primepar.schedule.primitive import Slices
from primepar.verify.primitive.proof import verify_primitive


def with_sent(kind: type[Primitive], sent: Any) -> Primitive:
    """A primitive of another formula."""
    made: Primitive = type(kind.__name__, (kind,), {"sent": sent})()
    return made


@pytest.mark.parametrize("name", PRIMITIVES)
def test_every_formula_of_the_library_is_asked(name: str) -> None:
    verdicts = {
        result.name: result.verdict for result in verify_primitive(PRIMITIVES[name]()).properties
    }
    assert (verdicts["memory"], verdicts["traffic"]) == ("proved", "proved")


RIGHT: dict[type[Primitive], Any] = {
    TravellingSums: lambda self, M, N, K, s: where(
        s == 1, 0, ((3 * s - 2) * M * N + 3 * (s - 1) * M * K) / s**2
    ),
    Rectangle: lambda self, M, N, K, p, q: (
        2 * (q - 1) * M * N / (p * q) + 2 * (p - 1) * N * K / (p * q)
    ),
}


@pytest.mark.parametrize("kind", RIGHT)
def test_the_formula_of_a_primitive_of_ones_own_is_proved(kind: type[Primitive]) -> None:
    assert verify_primitive(with_sent(kind, RIGHT[kind]))["traffic"].verdict == "proved"


def twice_at_five(self: Summa, *sizes: Value) -> Value:
    return Summa.sent(self, *sizes) * where(sizes[-1] == 5, 2, 1)


REFUTED = {
    "forgets the layers": (
        with_sent(SummaRectangular, lambda self, M, N, K, q, u, v: Summa.sent(self, M, N, K, q)),
        "q=1, u=1, v=2 (1x1x1x2 devices): M=2 N=4 K=4: expected 0 elements to leave each device, "
        "as sent states, got 24 that leave all 2, 12 each: fix the formula",
    ),
    "no step too few": (
        with_sent(PrimePar, lambda self, M, N, K, s: 2 * (s - 1) * (M * N + N * K + M * K) / s**2),
        "s=2 (2x2 devices): M=4 N=4 K=4: expected 24 elements to leave each device, as sent "
        "states, got 128 that leave all 4, 32 each: fix the formula",
    ),
    "exchanges two dims": (
        with_sent(Summa, lambda self, M, N, K, s: Summa.sent(self, M, K, N, s)),
        "s=2 (2x2 devices): M=4 N=64 K=4: expected 204 elements to leave each device, as sent "
        "states, got 1536 that leave all 4, 384 each: fix the formula",
    ),
    "right on small sides": (
        with_sent(Summa, twice_at_five),
        "s=5 (5x5 devices): M=10 N=10 K=10: expected 192 elements to leave each device, as sent "
        "states, got 2400 that leave all 25, 96 each: fix the formula",
    ),
    "gathers once": (
        with_sent(ThreeD, lambda self, M, N, K, s: (s - 1) * (M * N + N * K + M * K) / s**3),
        "s=2 (2x2x2 devices): M=8 N=4 K=8: expected 16 elements to leave each device, as sent "
        "states, got 256 that leave all 8, 32 each: fix the formula",
    ),
}


def test_a_formula_that_is_wrong_on_many_devices_only_is_refuted_there() -> None:
    def sent(self: ThreeD, *sizes: Value) -> Value:
        return ThreeD.sent(self, *sizes) * where(sizes[-1] >= 6, 2, 1)

    report = verify_primitive(with_sent(ThreeD, sent))
    assert report["traffic"].verdict == "refuted"
    assert str(report["traffic"].counterexample).startswith("s=6 (6x6x6 devices): M=72 N=12 K=72")


def test_a_formula_that_is_wrong_on_long_sides_only_is_refuted_there() -> None:
    kind = PRIMITIVES["by-output"]

    def sent(self: Primitive, *sizes: Value) -> Value:
        return kind.sent(self, *sizes) + where(sizes[-1] > 40, sizes[0], 0)

    report = verify_primitive(with_sent(kind, sent))
    assert str(report["traffic"].counterexample).startswith("s=41 (41 devices): ")


@pytest.mark.parametrize("name", REFUTED)
def test_a_wrong_formula_is_refuted_at_the_smallest_mesh(name: str) -> None:
    primitive, sentence = REFUTED[name]
    report = verify_primitive(primitive)
    assert [result.name for result in report.properties if result.verdict != "proved"] == [
        "traffic"
    ]
    assert report["traffic"].counterexample == sentence


def test_a_formula_with_if_is_unknown_where_it_is_right() -> None:
    def sent(self: Summa, M: Value, N: Value, K: Value, s: Value) -> Value:
        return 0 if s == 1 else Summa.sent(self, M, N, K, s)

    report = verify_primitive(with_sent(Summa, sent))
    assert [result.name for result in report.properties if result.verdict != "proved"] == [
        "traffic"
    ]
    assert report["traffic"].verdict == "unknown"
    assert str(report["traffic"].reason).endswith(
        "Summa.sent: expected +, -, *, //, %, comparisons, &, |, ~ and where, got `if`, `and`, "
        "`or`, `not`, min or max of a device, step or side: write where(condition, a, b) and join "
        "conditions with &, | and ~"
    )


def test_a_formula_that_cannot_be_called_is_refused() -> None:
    primitive = with_sent(Summa, lambda self, M, N, K, s: M / (s - 1))
    with pytest.raises(PrimitiveError) as raised:
        verify_primitive(primitive)
    assert str(raised.value) == (
        "Summa.sent: expected an amount, got ZeroDivisionError: Fraction(1, 0), for M=2 N=2 K=2, "
        "sides (1,)"
    )
    with pytest.raises(PrimitiveError) as raised:
        Sequence.of(with_sent(Summa, lambda self, M, N, K, s: -M), 2).elements[0].sent(
            Linear(2, 2, 2)
        )
    assert str(raised.value) == (
        "Summa.sent: expected 0 elements or more, got -2 for M=2 N=2 K=2, sides (2,): "
        "correct the formula"
    )


class Late(PrimePar):
    """Walks in steps of two; its formula is that of PrimePar."""

    def forward(self, r: Value, c: Value, t: Value, s: Value) -> Slices:
        return dict(M=r, N=(r + c + 2 * t) % s, K=c)


def test_without_a_formula_or_with_something_wrong_traffic_is_not_asked() -> None:
    nothing = with_sent(Summa, lambda self, *sizes: None)
    assert [result.name for result in verify_primitive(nothing).properties][-1] == "memory"
    assert [result.name for result in verify_primitive(Late()).properties][-1] == "deadlock-freedom"
