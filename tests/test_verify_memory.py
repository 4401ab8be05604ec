"""Memory of a primitive for every side: counted from its maps, and compared with its formula."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import z3
from primitive_cases import FetchesMore, Layers, OtherWay, Rectangle, ResidentSums, TravellingSums

from primepar import Primitive, where
from primepar.partition import PRIMITIVES, PrimePar
from primepar.partition.stationary import InputStays, OutputStays, WeightStays
from primepar.partition.summa import Summa, SummaRectangular
from primepar.partition.tesseract import Tesseract
from primepar.partition.three_d import ThreeD, ThreeDRegathered
from primepar.schedule import Linear, Sequence, lower
from primepar.schedule.expression import Value
from primepar.schedule.ledger import peak
from primepar.schedule.meaning import Meaning
from primepar.schedule.tracing import formula
from primepar.verify.formulas.block_sets import BlockSets
from primepar.verify.formulas.liveness import Life
from primepar.verify.formulas.memory import Count
from primepar.verify.formulas.polynomial import Range
from primepar.verify.primitive.proof import verify_primitive
from primepar.verify.primitive.slice_counts import slices_of


def with_held(kind: type[Primitive], held: Any) -> Primitive:
    """A primitive of another formula of memory, and none of traffic."""
    made: Primitive = type(kind.__name__, (kind,), {"held": held, "sent": Primitive.sent})()
    return made


MESHES: list[tuple[type[Primitive], tuple[int, ...]]] = [
    *((PRIMITIVES[name], (2,)) for name in ("by-batch", "by-input", "sequence-column")),
    *((kind, (side,)) for kind in (PrimePar, Summa, OtherWay, TravellingSums) for side in (1, 3)),
    *((kind, (2,)) for kind in (ThreeD, ThreeDRegathered)),
    *((kind, (4,)) for kind in (OutputStays, InputStays, WeightStays)),
    *((SummaRectangular, sides) for sides in ((1, 2, 3), (2, 1, 1))),
    (ResidentSums, (3,)),
    *((kind, sides) for kind in (Tesseract, Layers, Rectangle) for sides in ((1, 2), (2, 1))),
]
LOOSE: list[tuple[type[Primitive], tuple[int, ...]]] = [
    (InputStays, (3,)),
    (WeightStays, (2,)),
    (SummaRectangular, (2, 1, 2)),
    (FetchesMore, (3,)),
]
"""Where more is counted than is live: a home counts before its sum comes, and what is kept of
several steps counts apart from what a step reads."""
SCALES = ((1, 1, 1), (16, 1, 1), (1, 16, 1), (1, 1, 16))


def live_elements(primitive: Primitive, sides: tuple[int, ...]) -> tuple[list[int], list[int]]:
    """Most live elements on a device, as the proof counts them and in the program."""
    sequence = Sequence.of(primitive, *sides)
    operators = [
        Linear(**{dim: count * dict(zip("MNK", scale, strict=True)).get(dim, 1)
                  for dim, count in sequence.grid.items()})
        for scale in SCALES
    ]  # fmt: skip
    lowered = [lower(sequence, operator) for operator in operators]
    most = [
        max(peak(program, r, Meaning(program).size) for r in range(program.ranks))
        for program in lowered
    ]
    return counted(primitive, sides, operators), most


@pytest.mark.parametrize(("kind", "sides"), MESHES)
def test_what_is_counted_for_every_side_is_live_in_the_lowered_program(
    kind: type[Primitive], sides: tuple[int, ...]
) -> None:
    counted, most = live_elements(kind(), sides)
    assert counted == most


@pytest.mark.parametrize(("kind", "sides"), LOOSE)
def test_no_less_is_counted_than_is_live(kind: type[Primitive], sides: tuple[int, ...]) -> None:
    counted, most = live_elements(kind(), sides)
    assert all(a >= b for a, b in zip(counted, most, strict=True))
    assert counted != most


def counted(primitive: Primitive, sides: tuple[int, ...], operators: list[Linear]) -> list[int]:
    """Most live elements on any device at any moment on one mesh, as the proof counts them."""
    blocks = BlockSets(primitive, slices_of(primitive), float("inf"))
    lengths = {f"side {name}": side for name, side in zip(primitive.side_names, sides, strict=True)}
    most = [0] * len(operators)
    for moment in Life(blocks).moments():
        count = Count(blocks, moment)
        here = z3.And(count.during, Range(lengths, frozenset(lengths)).term())
        conditions = count.conditions
        for truths in blocks.cases(here, list(conditions.values())):
            met = frozenset(pair for pair, one in zip(conditions, truths, strict=True) if one)
            total = count.total(met)
            for place, operator in enumerate(operators):
                slices = Sequence.of(primitive, *sides).grid
                sizes = {dim: operator.size(dim) // slices.get(dim, 1) for dim in "BMNK"}
                sizes["M"] *= sizes.pop("B")
                least = {**lengths, **{f"size {dim}": size for dim, size in sizes.items()}}
                known = Range(least, frozenset(least))
                elements = total.within(known).number
                assert elements is not None
                most[place] = max(most[place], elements)
    return most


REFUTED = {
    "no buffers": (
        with_held(PrimePar, lambda self, M, N, K, s: 2 * (M * N + N * K + M * K) / s**2),
        "s=2 (2x2 devices): M=4 N=4 K=4: expected at most 24 live elements on each device, as "
        "held states, got 32 on device 0 (r=0, c=0): fix the formula",
    ),
    "one panel": (
        with_held(Summa, lambda self, M, N, K, s: (3 * M * N + 3 * N * K + 2 * M * K) / s**2),
        "s=3 (3x3 devices): M=6 N=6 K=6: expected at most 32 live elements on each device, as "
        "held states, got 36 on device 0 (r=0, c=0): fix the formula",
    ),
}


@pytest.mark.parametrize("name", REFUTED)
def test_a_formula_that_is_too_small_is_refuted_at_the_smallest_mesh(name: str) -> None:
    primitive, sentence = REFUTED[name]
    report = verify_primitive(primitive)
    assert [result.name for result in report.properties if result.verdict != "proved"] == ["memory"]
    assert report["memory"].counterexample == sentence


TIGHT = (Summa, ThreeD, InputStays)


@pytest.mark.parametrize("kind", TIGHT)
def test_no_formula_can_be_a_tenth_smaller(kind: type[Primitive]) -> None:
    def less(self: Primitive, *sizes: Value) -> Value:
        stated = kind.held(self, *sizes)
        return None if stated is None else stated * 9 / 10

    assert verify_primitive(with_held(kind, less))["memory"].verdict == "refuted"


def test_without_a_formula_memory_is_not_asked() -> None:
    nothing = with_held(Summa, Primitive.held)
    assert [result.name for result in verify_primitive(nothing).properties][-1] == "races"


def right_but_for_one_side(self: Summa, M: Value, N: Value, K: Value, s: Value) -> Value:
    """Enough for 4 blocks of I wherever s is not 5, and for 3 there."""
    return ((3 + (s - 5) ** 2) * M * N + 3 * N * K + 2 * M * K) / s**2


@pytest.mark.parametrize("backwards", [False, True])
def test_every_case_of_a_moment_is_asked_about(
    backwards: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the case that is wrong at s = 5 alone comes first or last."""
    cases = BlockSets.cases

    def in_order(*given: Any) -> Iterator[tuple[bool, ...]]:
        every = list(cases(*given))
        return iter(every[::-1] if backwards else every)

    monkeypatch.setattr(BlockSets, "cases", in_order)
    primitive = with_held(Summa, right_but_for_one_side)
    blocks = BlockSets(primitive, slices_of(primitive), float("inf"))
    traced = formula(primitive, "held")
    assert traced is not None
    moments = Life(blocks).moments()
    (between,) = (moment for moment in moments if moment.text.endswith("gradient, a step between"))
    solver = z3.Solver()
    solver.add(Count(blocks, between).beyond(blocks.amount(traced)))
    assert solver.check() == z3.sat
    assert solver.model()[z3.Int("side s")].as_long() == 5
    assert verify_primitive(primitive)["memory"].verdict == "refuted"


def test_a_formula_that_is_asked_with_logic_is_proved() -> None:
    def held(self: Summa, M: Value, N: Value, K: Value, s: Value) -> Value:
        more = where((s > 2) & ~(s == 1) | (s < 0), 4, s + 1)
        return (more * M * N + where(s != 1, 3, 2) * N * K + 2 * M * K) / s**2

    assert verify_primitive(with_held(Summa, held))["memory"].verdict == "proved"


def test_a_formula_of_what_is_kept_without_homes_is_unknown() -> None:
    kind = type("Keeps", (PrimePar,), {"keeps": ("I",)})
    plenty = with_held(kind, lambda self, M, N, K, s: 9 * (M * N + N * K + M * K))
    report = verify_primitive(plenty)
    assert report["memory"].verdict == "unknown"
    assert report["memory"].reason == "what is kept is counted only where tensors have homes"
    assert {result.verdict for result in report.properties[:6]} == {"proved"}
