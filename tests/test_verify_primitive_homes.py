"""Homes for every side: what is fitted is what moves; odd homes are right, wrong fits are not."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product

import pytest
from family import member

from primepar import Primitive, where
from primepar.partition import PRIMITIVES
from primepar.partition.sequence_parallel import SequenceColumn
from primepar.partition.stationary import InputStays
from primepar.partition.summa import Summa
from primepar.partition.tesseract import Tesseract
from primepar.partition.three_d import ThreeD
from primepar.reference.check import check
from primepar.schedule import Movement, Sequence
from primepar.schedule.movement import Hop
from primepar.schedule.operators import PRODUCTS, Index, tensor_dims
from primepar.schedule.primitive import Slices, Value
from primepar.schedule.sequence import Coordinates, Element
from primepar.verify.primitive import moved as primitive_moved
from primepar.verify.primitive.fit import Sample, fit_radices, samples
from primepar.verify.primitive.fit_sender import FitError, Sender
from primepar.verify.primitive.locate import (
    HomeSample,
    Locator,
    Radices,
    Rule,
    fit_locators,
    fit_opening,
    fit_rules,
)
from primepar.verify.primitive.proof import PROVED, obligations, verify_primitive
from primepar.verify.primitive.side import verify_side

WITH_HOMES = [name for name, kind in PRIMITIVES.items() if kind.home is not None]


# What is fitted is what moves


def digits(element: Element, tensor: str, index: Index) -> list[int]:
    """The digits of a block, major first, dim by dim."""
    dims = [dim for dim in tensor_dims(tensor) if dim in element.radices or dim != "B"]
    found = []
    for dim, flat in zip(dims, index, strict=True):
        minor: list[int] = []
        for radix in reversed(element.radices.get(dim, ())):
            flat, digit = divmod(flat, radix)
            minor.insert(0, digit)
        found += minor
    return found


def source(rule: Rule, hop: Hop, sequence: Sequence) -> Coordinates:
    """Where the rule says that a hop comes from."""
    (element,) = sequence.elements
    device, lengths = sequence.coordinates[hop.target], element.axis_lengths
    if isinstance(rule, Sender):
        return rule.of(device, lengths)
    assert isinstance(rule, Locator)
    at = (*device, *digits(element, hop.tensor, hop.index))
    rows = [(*row, *more) for row, more in zip(rule.coordinates, rule.digits, strict=True)]
    return tuple(
        (sum(a * b for a, b in zip(row, at, strict=True)) + step) % length
        for row, step, length in zip(rows, rule.offset, lengths, strict=True)
    )


def agree(rule: Rule, hops: Iterable[Hop], tensor: str, sequence: Sequence) -> None:
    own = [hop for hop in hops if hop.tensor == tensor]
    assert bool(own) == (rule is not None)
    for hop in own:
        assert sequence.coordinates[hop.source] == source(rule, hop, sequence)


@pytest.mark.parametrize("name", WITH_HOMES)
def test_every_fitted_rule_gives_the_derived_movement(name: str) -> None:
    seen = samples(PRIMITIVES[name]())
    found = fit_locators(seen, fit_radices(seen))
    located = {tensor: each for tensor, each in found.items() if isinstance(each, Locator)}
    homes = [HomeSample(sample, located) for sample in seen]
    count = len(seen[0].element.sides)
    for sides in product((2, 3, 4) if count == 1 else (2, 3), repeat=count):
        sequence = member(name, sides)
        phases = Movement(sequence).phases
        for phase, made in PRODUCTS.items():
            for tensor in made.reads:
                opening = fit_opening(homes, phase, tensor)
                agree(opening, phases[phase].prologue, tensor, sequence)
            for tensor in (*made.reads, made.writes):
                spans = fit_rules(homes, phase, tensor)
                for t in range(sequence.steps - 1):
                    rule = [span.rule for span in spans if span.first.at(sides) <= t][-1]
                    moved = phases[phase].operands[t], phases[phase].partials[t + 1]
                    agree(rule, moved[tensor == made.writes], tensor, sequence)


def test_every_replica_is_counted() -> None:
    for name, expected in (("tesseract", "d devices"), ("summa", "one device")):
        found = [each.sentence for each in obligations(PRIMITIVES[name]())]
        assert f"home of W: every block rests on {expected}" in found
        assert "home of I: every block rests on one device" in found


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


class StartsBesideHome(Summa):
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
        own = super().home(tensor, r, c, s)
        return dict(M=r, K=(r + c - 1) % s) if tensor == "O" else own


class LayersShareWeight(Tesseract):
    """W is spread over the layers too, and gathered."""

    def home(self, tensor: str, r: Value, c: Value, e: Value, q: Value, d: Value) -> Slices:
        return dict(N=r, K=(c, e)) if tensor == "W" else super().home(tensor, r, c, e, q, d)


HARMLESS: list[type[Primitive]] = [
    TransposedWeight, SkewedInput, ReplicasOnDiagonals, StartsBesideHome, KeepsAll,
    InputSplitAlongN, ExchangedDigits, EndsAtHome, LayersShareWeight,
]  # fmt: skip


@pytest.mark.parametrize("kind", HARMLESS)
def test_homes_that_are_not_the_nearest_are_proved_all_the_same(
    kind: type[Primitive], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kind, "sent", Primitive.sent)
    monkeypatch.setattr(kind, "held", Primitive.held)
    report = verify_primitive(kind())
    assert {each.name: each.verdict for each in report.properties} == dict.fromkeys(
        (*PROVED, "races"), "proved"
    )
    for sides in product((1, 2, 3), repeat=len(kind().side_names)):
        if all(side < 3 for side in sides[1:]):
            assert verify_side(kind(), sides).verdict == "proved"
            assert check(Sequence.of(kind(), *sides)).equal


# What is not proved


def test_a_wrong_locator_proves_and_refutes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(seen: list[Sample], radices: Radices) -> dict[str, Locator | FitError]:
        right = fit_locators(seen, radices)
        located = right["W"]
        assert isinstance(located, Locator)
        return {**right, "I": located}

    monkeypatch.setattr(primitive_moved, "fit_locators", wrong)
    report = verify_primitive(SkewedInput())
    assert {each.name: each.verdict for each in report.properties} == {
        "coverage": "proved",
        "placement": "unknown",
        "completion": "unknown",
        "alignment": "unknown",
        "deadlock-freedom": "unknown",
    }
    assert report["alignment"].reason == (
        "home of I: every block rests on some device: "
        "not so at s=2, though no mesh that was looked at is wrong"
    )


def test_no_property_stands_on_slices_beyond_the_grid() -> None:
    """The fitted grid of M is that of the homes; the map of a deeper mesh goes beyond it."""

    class ForgetsLayers(Tesseract):
        def home(self, tensor: str, r: Value, c: Value, e: Value, q: Value, d: Value) -> Slices:
            return dict(M=r, N=c) if tensor == "I" else super().home(tensor, r, c, e, q, d)

    report = verify_primitive(ForgetsLayers())
    assert {each.name: each.verdict for each in report.properties} == {
        "coverage": "refuted",
        "placement": "refuted",
        "completion": "refuted",
        "alignment": "refuted",
        "deadlock-freedom": "unknown",
    }
    assert report["deadlock-freedom"].reason == (
        "forward: every slice index is in its grid: "
        "not so at q=1, d=2, though no mesh that was looked at is wrong"
    )


class HomeWithIf(Summa):
    def home(self, tensor: str, r: Value, c: Value, s: Value) -> Slices:
        return dict(M=r, N=c if c else 0) if tensor == "I" else super().home(tensor, r, c, s)


class SwapsTheFirstTwo(Summa):
    """Right, but no affine rule says where the blocks of I rest."""

    def home(self, tensor: str, r: Value, c: Value, s: Value) -> Slices:
        swapped = where((c < 2) & (s > 1), 1 - c, c)
        return dict(M=r, N=swapped) if tensor == "I" else super().home(tensor, r, c, s)


IF = (
    "a map for every side cannot ask `if`, `and`, min or max of an index: "
    "write where(condition, a, b), or prove one mesh with --side"
)
NOT_SO = "not so at s=4, though no mesh that was looked at is wrong"
UNKNOWN: dict[type[Primitive], dict[str, str]] = {
    HomeWithIf: dict.fromkeys(PROVED, IF),
    SwapsTheFirstTwo: {
        "placement": "forward, I: what a device needs next and has not rests on "
        f"(M, -N + 1): {NOT_SO}",
        "completion": "backward, dI: every sum that a device adds to is at home on (M, -N + 1): "
        f"{NOT_SO}",
        "alignment": f"home of I: every block rests on some device: {NOT_SO}",
        "deadlock-freedom": "forward, I: (M, -N + 1), which sends a block, does not want it "
        f"itself: {NOT_SO}",
    },
}


@pytest.mark.parametrize("kind", UNKNOWN)
def test_a_right_home_that_no_rule_explains_is_unknown_and_says_where(
    kind: type[Primitive],
) -> None:
    report = verify_primitive(kind())
    assert {each.name: each.reason for each in report.properties if each.reason} == UNKNOWN[kind]
    assert report.verdict == "unknown"
    assert {verify_side(kind(), (side,)).verdict for side in (1, 2, 3)} == {"proved"}
