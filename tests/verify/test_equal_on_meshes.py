"""Formulas of memory and traffic, compared with what is counted on every small mesh."""

from __future__ import annotations

from typing import Any

import pytest
from primitive_cases import Rectangle, TravellingSums
from profiles import long

from primepar import Primitive, where
from primepar.errors import PrimitiveError
from primepar.partition import PRIMITIVES, PrimePar
from primepar.partition.stationary import InputStays
from primepar.partition.summa import Summa, SummaRectangular
from primepar.partition.three_d import ThreeD
from primepar.schedule import Linear, Sequence
from primepar.schedule.deadline import deadline
from primepar.schedule.expression import Value
from primepar.schedule.primitive import Slices
from primepar.verify.primitive.equal_on_meshes import formula_results
from primepar.verify.primitive.proof import verify_primitive
from primepar.verify.report import PropertyResult, Report


def of(kind: type[Primitive], **formulas: Any) -> Primitive:
    """A primitive of other formulas."""
    made: Primitive = type(kind.__name__, (kind,), formulas)()
    return made


def compared(primitive: Primitive) -> dict[str, PropertyResult]:
    return {result.name: result for result in formula_results(primitive)}


VIRTUAL = [name for name, kind in PRIMITIVES.items() if kind.virtual]
MESHES = {
    "tesseract": 18,
    "summa-deep": 18,
    "summa-deep-kept": 18,
    "summa-rectangular": 60,
    "grid-kept": 120,
    **dict.fromkeys(("three-d", "three-d-exchanged", "three-d-regathered"), 4),
    **dict.fromkeys(VIRTUAL, 19),
}
"""Meshes with sides up to 6 and at most 64 devices, 32 of several sides; 6 of one or two axes."""
BOUNDS = {
    "summa-rectangular": 39,
    **dict.fromkeys(("output-stays", "input-stays", "weight-stays"), 4),
    **dict.fromkeys(VIRTUAL, 9),
}
"""Meshes on which `held` is what is live, where it is more on others."""


# The other grids share the formulas of the first: test_reference_check.py counts them all.
MANY_MESHES = ("grid-kept", "summa-rectangular")
ONE_GRID = [
    pytest.param(name, marks=[long] * (name in MANY_MESHES))
    for name in PRIMITIVES
    if name == "grid-kept" or not name.startswith("grid")
]


@pytest.mark.parametrize("name", ONE_GRID)
def test_every_formula_of_the_library_is_equal_on_all_meshes(name: str) -> None:
    results = compared(PRIMITIVES[name]())
    meshes = MESHES.get(name, 6)
    assert {result.verdict for result in results.values()} == {"equal"}
    assert results["traffic"].meshes == meshes
    assert results["memory"].meshes == BOUNDS.get(name, meshes)


def test_the_report_states_the_number_of_meshes_and_proves_nothing_of_formulas() -> None:
    report = verify_primitive(InputStays(), "input-stays")
    assert str(report).splitlines() == [
        "input-stays: proved for every s >= 1 (axes r, c)",
        "  coverage          proved",
        "  placement         proved",
        "  completion        proved",
        "  alignment         proved",
        "  deadlock-freedom  proved",
        "  races             proved",
        "  memory            equal on 4 meshes",
        "      held is more than what is live on 2 meshes",
        "      resident copies at s=6 (6x6 devices): I 1, W 1, dO 1",
        "  traffic           equal on 6 meshes",
    ]
    assert [result.certified for result in report.properties[6:]] == [None, None]


def test_what_is_equal_changes_no_verdict() -> None:
    equal = PropertyResult("traffic", "equal", 0.0, meshes=1)
    assert str(equal) == "traffic           equal on 1 mesh"
    for verdict in ("proved", "refuted", "unknown"):
        other = PropertyResult("races", verdict, 0.0)
        assert Report.of("x", [other, equal]).verdict == verdict


RIGHT: dict[type[Primitive], Any] = {
    TravellingSums: lambda self, M, N, K, s: where(
        s == 1, 0, ((3 * s - 2) * M * N + 3 * (s - 1) * M * K) / s**2
    ),
    Rectangle: lambda self, M, N, K, p, q: (
        2 * (q - 1) * M * N / (p * q) + 2 * (p - 1) * N * K / (p * q)
    ),
}


@pytest.mark.parametrize("kind", RIGHT)
def test_the_formula_of_a_primitive_of_ones_own_is_equal(kind: type[Primitive]) -> None:
    assert compared(of(kind, sent=RIGHT[kind]))["traffic"].verdict == "equal"


def twice_at_five(self: Summa, *sizes: Value) -> Value:
    return Summa.sent(self, *sizes) * where(sizes[-1] == 5, 2, 1)


WRONG = {
    "forgets the layers": (
        of(
            SummaRectangular,
            held=Primitive.held,
            sent=lambda self, M, N, K, q, u, v: Summa.sent(self, M, N, K, q),
        ),
        "traffic",
        "q=1, u=1, v=2 (1x1x1x2 devices): M=2 N=4 K=4: expected 0 elements to leave each device, "
        "as sent states, got 24 that leave all 2, 12 each: fix the formula",
    ),
    "no step too few": (
        of(PrimePar, sent=lambda self, M, N, K, s: 2 * (s - 1) * (M * N + N * K + M * K) / s**2),
        "traffic",
        "s=2 (2x2 devices): M=4 N=4 K=4: expected 24 elements to leave each device, as sent "
        "states, got 128 that leave all 4, 32 each: fix the formula",
    ),
    "exchanges two dims": (
        of(Summa, sent=lambda self, M, N, K, s: Summa.sent(self, M, K, N, s)),
        "traffic",
        "s=2 (2x2 devices): M=4 N=64 K=4: expected 204 elements to leave each device, as sent "
        "states, got 1536 that leave all 4, 384 each: fix the formula",
    ),
    "right on small sides": (
        of(Summa, sent=twice_at_five),
        "traffic",
        "s=5 (5x5 devices): M=10 N=10 K=10: expected 192 elements to leave each device, as sent "
        "states, got 2400 that leave all 25, 96 each: fix the formula",
    ),
    "gathers once": (
        of(ThreeD, sent=lambda self, M, N, K, s: (s - 1) * (M * N + N * K + M * K) / s**3),
        "traffic",
        "s=2 (2x2x2 devices): M=8 N=4 K=8: expected 16 elements to leave each device, as sent "
        "states, got 256 that leave all 8, 32 each: fix the formula",
    ),
    "no buffers": (
        of(PrimePar, held=lambda self, M, N, K, s: 2 * (M * N + N * K + M * K) / s**2),
        "memory",
        "s=2 (2x2 devices): M=4 N=4 K=4: expected at most 24 live elements on each device, as "
        "held states, got 32 on device 0 (r=0, c=0): fix the formula",
    ),
    "one panel": (
        of(Summa, held=lambda self, M, N, K, s: (3 * M * N + 3 * N * K + 2 * M * K) / s**2),
        "memory",
        "s=3 (3x3 devices): M=6 N=6 K=6: expected at most 32 live elements on each device, as "
        "held states, got 36 on device 0 (r=0, c=0): fix the formula",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_formula_is_refuted_at_the_smallest_mesh(name: str) -> None:
    primitive, wrong, sentence = WRONG[name]
    results = compared(primitive)
    assert {key for key, result in results.items() if result.verdict != "equal"} == {wrong}
    assert (results[wrong].verdict, results[wrong].counterexample) == ("refuted", sentence)


def test_a_report_with_a_wrong_formula_is_refuted() -> None:
    report = verify_primitive(WRONG["no buffers"][0])
    assert report.verdict == "refuted"
    assert {result.name for result in report.properties if result.verdict == "refuted"} == {
        "memory"
    }


@pytest.mark.parametrize("kind", [Summa, ThreeD, InputStays])
def test_no_formula_can_be_a_tenth_smaller(kind: type[Primitive]) -> None:
    def less(self: Primitive, *sizes: Value) -> Value:
        stated = kind.held(self, *sizes)
        return None if stated is None else stated * 9 / 10

    assert compared(of(kind, held=less))["memory"].verdict == "refuted"


def test_a_bound_that_is_never_reached_is_equal_nowhere() -> None:
    plenty = of(PrimePar, held=lambda self, M, N, K, s: 9 * (M * N + N * K + M * K))
    result = compared(plenty)["memory"]
    assert (result.verdict, result.meshes) == ("equal", 0)
    assert str(result.reason).startswith("held is more than what is live on 6 meshes\n")


def test_a_formula_that_is_wrong_on_more_devices_alone_is_not_found() -> None:
    """Hence *equal on 4 meshes*, and never proved."""

    def sent(self: ThreeD, *sizes: Value) -> Value:
        return ThreeD.sent(self, *sizes) * where(sizes[-1] >= 6, 2, 1)

    result = compared(of(ThreeD, sent=sent))["traffic"]
    assert (result.verdict, result.meshes) == ("equal", 4)


def test_what_is_not_compared_in_time_is_unknown() -> None:
    with deadline(0.0):
        results = list(formula_results(Summa()))
    assert [(result.name, result.verdict, result.reason) for result in results] == [
        (
            name,
            "unknown",
            "stopped after 0 meshes, of which none is wrong: give it a longer --timeout",
        )
        for name in ("memory", "traffic")
    ]


def test_a_formula_with_if_is_unknown_where_it_is_right() -> None:
    def sent(self: Summa, M: Value, N: Value, K: Value, s: Value) -> Value:
        return 0 if s == 1 else Summa.sent(self, M, N, K, s)

    report = verify_primitive(of(Summa, sent=sent))
    assert (report["memory"].verdict, report["traffic"].verdict) == ("equal", "unknown")
    assert str(report["traffic"].reason).endswith(
        "Summa.sent: expected +, -, *, //, %, comparisons, &, |, ~ and where, got `if`, `and`, "
        "`or`, `not`, min or max of a device, step or side: write where(condition, a, b) and join "
        "conditions with &, | and ~"
    )


def test_a_formula_that_cannot_be_called_is_refused() -> None:
    with pytest.raises(PrimitiveError) as raised:
        verify_primitive(of(Summa, sent=lambda self, M, N, K, s: M / (s - 1)))
    assert str(raised.value) == (
        "Summa.sent: expected an amount, got ZeroDivisionError: Fraction(1, 0), for M=2 N=2 K=2, "
        "sides (1,)"
    )
    with pytest.raises(PrimitiveError) as raised:
        Sequence.of(of(Summa, sent=lambda self, M, N, K, s: -M), 2).elements[0].sent(
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


def test_without_a_formula_or_with_something_wrong_nothing_is_compared() -> None:
    assert list(compared(of(Summa, sent=Primitive.sent))) == ["memory"]
    assert list(compared(of(Summa, held=Primitive.held))) == ["traffic"]
    assert [result.name for result in verify_primitive(Late()).properties][-1] == "deadlock-freedom"
