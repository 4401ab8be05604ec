"""Primitives are proved for every side, by what their own maps say; the rest is honest."""

from __future__ import annotations

from itertools import pairwise, product
from pathlib import Path

import numpy as np
import pytest
import z3
from test_movement import TABLE_1, offsets

from primepar import Primitive, where
from primepar.partition import PRIMITIVES, PrimePar, parse_sequence
from primepar.schedule import Movement, Sequence
from primepar.schedule.holdings import Mesh
from primepar.schedule.operators import PHASES, Phase
from primepar.schedule.primitive import Slices, Value
from primepar.schedule.sequence import Coordinates
from primepar.targets import load_primitive
from primepar.verify.primitive import claims as primitive_claims
from primepar.verify.primitive.fit import (
    Sample,
    Span,
    Transition,
    fit_moves,
    fit_radices,
    samples,
    transitions,
)
from primepar.verify.primitive.fit_sender import Row, Sender
from primepar.verify.primitive.order import Claim
from primepar.verify.primitive.proof import Prover, asked, obligations, verify_primitive
from primepar.verify.primitive.side import verify_side
from primepar.verify.primitive.symbolic import SymbolicMap
from primepar.verify.report import Report

WRONG = Path(__file__).parent / "wrong"


class TravellingSums(Primitive):
    """W stays; I and dO pass along the rows, O and dI along with their partial sums."""

    axes = ("r", "c")

    def forward(self, r: Value, c: Value, t: Value, s: Value) -> Slices:
        return dict(M=(r + c + t) % s, N=r, K=c)

    def backward(self, r: Value, c: Value, t: Value, s: Value) -> Slices:
        return dict(M=(r + c - 1 + t) % s, N=r, K=c)

    def gradient(self, r: Value, c: Value, t: Value, s: Value) -> Slices:
        return dict(M=(r + c - 2 + t) % s, N=r, K=c)


class OtherWay(PrimePar):
    """PrimePar whose backward walks the other way, so that W has further to go home."""

    sent, held = Primitive.sent, Primitive.held

    def backward(self, r: Value, c: Value, t: Value, s: Value) -> Slices:
        return dict(M=r, N=(r + c - 1) % s, K=(c - t) % s)


class Layers(Primitive):
    """PrimePar on each of `d` layers that share out N: O is reduced over them."""

    axes = {"r": "q", "c": "q", "e": "d"}

    def forward(self, r: Value, c: Value, e: Value, t: Value, q: Value, d: Value) -> Slices:
        return dict(M=r, N=(e, (r + c + t) % q), K=c)

    def backward(self, r: Value, c: Value, e: Value, t: Value, q: Value, d: Value) -> Slices:
        return dict(M=r, N=(e, (r + c - 1) % q), K=(c + t) % q)

    def gradient(self, r: Value, c: Value, e: Value, t: Value, q: Value, d: Value) -> Slices:
        last = where(t == q - 1, 1, 0)
        return dict(M=(r + t) % q, N=(e, (r + c - 1 + last) % q), K=(c - 1 + last) % q)


class Rectangle(Primitive):
    """Rows of M and columns of K on a mesh that need not be square."""

    axes = {"r": "p", "c": "q"}

    def steps(self, p: Value, q: Value) -> Value:
        return 1

    def forward(self, r: Value, c: Value, t: Value, p: Value, q: Value) -> Slices:
        return dict(M=r, K=c)


class Mirror(PrimePar):
    """PrimePar whose rows go backward in N, so that W is mirrored between two phases."""

    sent, held = Primitive.sent, Primitive.held

    def backward(self, r: Value, c: Value, t: Value, s: Value) -> Slices:
        return dict(M=r, N=(c - r - 1) % s, K=(c + t) % s)


class RestingSums(PrimePar):
    """PrimePar whose dO stays in backward: sums of dI rest on every device, and are reduced."""

    sent, held = Primitive.sent, Primitive.held

    def backward(self, r: Value, c: Value, t: Value, s: Value) -> Slices:
        return dict(M=r, N=(r + t) % s, K=c)


class OneDevice(Primitive):
    """No axis at all."""

    def forward(self, t: Value) -> Slices:
        return {}


OURS = (TravellingSums, OtherWay, Layers, Rectangle, Mirror, RestingSums, OneDevice)
RIGHT = {**PRIMITIVES, **{kind.__name__: kind for kind in OURS}}


COPIES = {
    "by-batch": "I 1, W s, O 1",
    "by-sequence": "I 1, W s, O 1",
    "by-input": "I 1, W 1, O s",
    "by-output": "I s, W 1, O 1",
    "tesseract": "I 1, W d, O 1",
}
"""Copies at rest, where there are several."""


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_primitive_is_proved_for_every_side(name: str) -> None:
    report = verify_primitive(RIGHT[name](), name)
    notes = {"memory": "copies at rest: " + COPIES.get(name, "I 1, W 1, O 1")}
    assert [(each.name, each.verdict, each.reason) for each in report.properties] == [
        (each, "proved", notes.get(each)) for each in asked(RIGHT[name]())
    ]
    assert (report.target, report.verdict) == (name, "proved")


@pytest.mark.parametrize("name", RIGHT)
def test_what_is_proved_for_every_side_is_proved_for_each(name: str) -> None:
    primitive = RIGHT[name]()
    count = len(primitive.side_names)
    for sides in product((1, 2, 3) if count < 3 else (1, 2), repeat=count):
        assert verify_side(primitive, sides).verdict == "proved"


@pytest.mark.parametrize("name", RIGHT)
def test_every_property_stands_on_claims_that_are_not_empty(name: str) -> None:
    found = list(obligations(RIGHT[name]()))
    real = [each for each in found if "there is" not in each.sentence]
    assert {each.property for each in real} == set(asked(RIGHT[name]()))
    assert all(each.reason is None and each.seconds > 0 for each in found)


def fitted(primitive: Primitive) -> dict[Transition, tuple[Span, ...]]:
    seen = samples(primitive)
    return {transition: fit_moves(seen, transition) for transition in transitions()}


def offset_at(spans: tuple[Span, ...], step: int, side: int) -> Row:
    """The offset of the last span that has begun; its sender is a neighbour."""
    sender = [span.sender for span in spans if span.first.at((side,)) <= step][-1]
    if sender is None:
        return ()
    assert sender == Sender.neighbour(sender.offset)
    return sender.offset


def fitted_offsets(
    moves: dict[Transition, tuple[Span, ...]], phase: Phase, step: int, side: int
) -> dict[str, set[Row]]:
    """Tensor -> offset of its senders while `step` computes."""
    found: dict[str, set[Row]] = {}
    for transition, spans in moves.items():
        within = transition.following is None
        at = step - transition.is_partial
        if transition.phase != phase or not transition.may_hop or not spans:
            continue
        if at not in range(side - 1) if within else step != side - 1:
            continue
        offset = tuple(part % side for part in offset_at(spans, at, side))
        if any(offset):
            found[transition.tensor] = {offset}
    return found


@pytest.mark.parametrize("side", [2, 3, 4, 5])
@pytest.mark.parametrize("phase", PHASES)
def test_the_fitted_offsets_are_table_1_and_the_derived_movement(side: int, phase: Phase) -> None:
    moves = fitted(PrimePar())
    sequence = Sequence.of(PrimePar(), side)
    moved = Movement(sequence).phases[phase]
    for step in range(side):
        row = TABLE_1[phase, step - side if step - side >= -2 else ...]
        table = {tensor: {(dr % side, dc % side)} for tensor, (dr, dc) in row.items()}
        derived = offsets(sequence, (*moved.operands[step], *moved.partials[step]))
        assert fitted_offsets(moves, phase, step, side) == table == derived


@pytest.mark.parametrize("side", [2, 3, 4, 5])
@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("kind", [TravellingSums, OtherWay])
def test_the_fitted_offsets_are_the_derived_movement(
    kind: type[Primitive], phase: Phase, side: int
) -> None:
    moves = fitted(kind())
    sequence = Sequence.of(kind(), side)
    moved = Movement(sequence).phases[phase]
    for step in range(side):
        derived = offsets(sequence, (*moved.operands[step], *moved.partials[step]))
        assert fitted_offsets(moves, phase, step, side) == derived


def from_near_to_far(mesh: Mesh, target: int) -> list[int]:
    left, order = set(range(mesh.sequence.ranks)), []
    while left:
        order.append(mesh.nearest(target, left))
        left.remove(order[-1])
    return order


def as_fitted(sample: Sample, target: int) -> list[Coordinates]:
    """All devices in the order in which fits look for the holder of a block."""
    left, order = np.ones((len(sample.devices), 1), bool), []
    while left.any():
        (nearest,) = sample.nearest(left, np.array([target]))
        left[nearest] = False
        order.append(sample.devices[nearest])
    return order


def test_fits_proofs_and_the_derived_movement_agree_on_which_holder_is_nearest() -> None:
    sequence = Sequence.of(Rectangle(), 4, 3)
    devices = sequence.coordinates
    symbolic = SymbolicMap(Rectangle(), fit_radices(samples(Rectangle())))
    one, other, here = (symbolic.point(tag) for tag in ("1", "2", ""))
    nearer = symbolic.is_nearer(one, other, here)
    sides = [
        (side.term, z3.IntVal(number))
        for side, number in zip(symbolic.space.sides, (4, 3), strict=True)
    ]
    sample = samples(Rectangle())[0].on((4, 3))
    for rank, target in enumerate(devices):
        order = as_fitted(sample, sample.devices.index(target))
        assert order == [devices[each] for each in from_near_to_far(Mesh(sequence), rank)]
        for near, far in pairwise(order):
            at = zip((*one, *other, *here), (*near, *far, *target), strict=True)
            numbers = [(axis, z3.IntVal(number)) for axis, number in at]
            assert z3.is_true(z3.simplify(z3.substitute(nearer, *sides, *numbers)))


def test_a_wrong_fit_proves_and_refutes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(seen: list[Sample], transition: Transition) -> tuple[Span, ...]:
        spans = fit_moves(seen, transition)
        return tuple(Span(span.first, span.sender and Sender.neighbour((2, 2))) for span in spans)

    monkeypatch.setattr(primitive_claims, "fit_moves", wrong)
    report = verify_primitive(PrimePar())
    verdicts = {each.name: each.verdict for each in report.properties}
    assert verdicts == {
        "coverage": "proved",
        "placement": "unknown",
        "completion": "unknown",
        "alignment": "unknown",
        "deadlock-freedom": "proved",
    }
    assert report["placement"].reason == (
        "forward, I: what a device needs next and has not, (r + 2, c + 2) has: "
        "not so at s=2, though no mesh that was looked at is wrong"
    )


def test_a_rule_for_the_wrong_steps_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def late(seen: list[Sample], transition: Transition) -> tuple[Span, ...]:
        spans = fit_moves(seen, transition)
        return tuple(Span(span.first.plus(1), span.sender) for span in spans)

    monkeypatch.setattr(primitive_claims, "fit_moves", late)
    assert verify_primitive(PrimePar())["placement"].reason == (
        "forward, I: the rules leave out no step: "
        "not so at s=2, though no mesh that was looked at is wrong"
    )


def test_a_claim_without_a_case_is_not_proved() -> None:
    seen = samples(PrimePar())
    symbolic = SymbolicMap(PrimePar(), fit_radices(seen))
    prover = Prover(symbolic, float("inf"))
    nowhere = z3.And(symbolic.in_mesh(symbolic.here), symbolic.here[0] < 0)
    assert prover.ask(Claim("coverage", "nowhere", nowhere)) == (None, None)
    empty = Claim("coverage", "nowhere", nowhere, is_sanity=True)
    assert prover.ask(empty) == ("there is no such case to prove", None)


def test_two_p_with_nested_time_are_right_and_with_one_time_index_are_not() -> None:
    nested: Report = verify_side(parse_sequence("P2x2,P2x2"))
    assert (nested.target, nested.verdict) == ("P2x2,P2x2", "proved")
    published = load_primitive(f"{WRONG}/one_time_index.py:OneTimeIndex")
    assert verify_primitive(published)["coverage"].counterexample == (
        "s=2 (2x2x2x2 devices): forward sub-operator (M=0, N=0, K=1): expected one device to "
        "compute it, got none: only 32 of 64 are computed"
    )
