"""What cannot be proved is unknown, with the reason; what is no map of slices is bad input."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest
import z3
from one_mesh import verify_side
from profiles import few

from primepar import Primitive, where
from primepar.api.target import load_primitive
from primepar.errors import PrimitiveError
from primepar.partition import ByOutput, PrimePar
from primepar.pictures.counterexample import counterexample_lines
from primepar.schedule.primitive import Slices, Value
from primepar.verify.counterexample.primitive import MOST_DEVICES
from primepar.verify.primitive import z3_question as question
from primepar.verify.primitive.proof import verify_primitive

LANGUAGE = "expected +, -, *, //, %, comparisons, &, |, ~ and where"
IF = (
    f"{LANGUAGE}, got `if`, `and`, `or`, `not`, min or max of a device, step or side: "
    "write where(condition, a, b) and join conditions with &, | and ~"
)
NUMBER = (
    f"{LANGUAGE}, got a device, step or side that is turned into a number, looked up or counted "
    "with: use +, -, *, //, % and where"
)


class TwiceWhereLarge(ByOutput):
    def steps(self, s: Value) -> Value:
        return where(s > 50, 2, 1)


class WrongAt9(PrimePar):
    def forward(self, r: Value, c: Value, t: Value, s: Value) -> Slices:
        return dict(M=r, N=(r + c + where(s == 9, 0, t)) % s, K=c)


class WrongFrom64(PrimePar):
    def forward(self, r: Value, c: Value, t: Value, s: Value) -> Slices:
        return dict(M=r, N=(r + c + where(s >= 64, 0, t)) % s, K=c)


class Cube(Primitive):
    """A sub-operator for each device."""

    axes = ("i", "j", "l")

    def steps(self, s: Value) -> Value:
        return 1

    def forward(self, i: Value, j: Value, l: Value, t: Value, s: Value) -> Slices:
        return dict(M=i, N=j, K=l)


class WrongAt5(Cube):
    def forward(self, i: Value, j: Value, l: Value, t: Value, s: Value) -> Slices:
        return dict(M=i, N=where(s == 5, i, j), K=l)


class WrongFrom16(Cube):
    def forward(self, i: Value, j: Value, l: Value, t: Value, s: Value) -> Slices:
        return dict(M=i, N=where(s >= 16, 0, j), K=l)


@few
@pytest.mark.parametrize(
    ("kind", "side"),
    [(TwiceWhereLarge, 51), (WrongAt9, 9), (WrongFrom64, 64), (WrongAt5, 5), (WrongFrom16, 16)],
)
def test_what_is_wrong_on_large_meshes_alone_is_refuted_with_the_smallest(
    kind: type[Primitive], side: int
) -> None:
    report = verify_primitive(kind())
    axes = len(kind().axis_sides)
    mesh = "x".join([str(side)] * axes)
    details = report["coverage"].details
    assert details is not None
    assert (details.sides, report.smallest_sides) == ({"s": side}, (side,))
    assert (details.places != ()) == (side**axes <= MOST_DEVICES)
    assert (counterexample_lines(details) != []) == (details.places != ())
    assert (report["coverage"].counterexample or "").startswith(
        f"s={side} ({mesh} devices): forward"
    )
    lengths = sorted({*range(1, 9), side - 1, side})
    assert [length for length in lengths if is_wrong(kind(), length)] == [side]


def is_wrong(primitive: Primitive, side: int) -> bool:
    """Whether forward does a sub-operator twice: called with integers, without the prover."""
    axes, done = len(primitive.axis_sides), set()
    for *device, t in product(*(range(side),) * axes, range(primitive.steps(side))):
        named = tuple(primitive.forward(*device, t, side).values())
        if named in done:
            return True
        done.add(named)
    return False


class OddAndEven(Primitive):
    """Right; dI passes over half the mesh where the side is odd, and stays where it is even."""

    axes = ("r", "c")

    def forward(self, r: Value, c: Value, t: Value, s: Value) -> Slices:
        return dict(M=(r + c + t) % s, N=r, K=c)

    def backward(self, r: Value, c: Value, t: Value, s: Value) -> Slices:
        return dict(M=(r + c - 1 + t) % s, N=(r - c) % s, K=c)

    def gradient(self, r: Value, c: Value, t: Value, s: Value) -> Slices:
        return dict(M=(r + c - 2 + t) % s, N=r, K=c)


class NegatedCondition(PrimePar):
    """PrimePar with `~`, which of integers is arithmetic and means logic here."""

    def gradient(self, r: Value, c: Value, t: Value, s: Value) -> Slices:
        last = where(~(t == s - 1), 0, 1)
        return dict(M=(r + t) % s, N=(r + c - 1 + last) % s, K=(c - 1 + last) % s)


class FromASideOn(PrimePar):
    """The devices of a row start elsewhere in N where the side is larger than 3."""

    def forward(self, r: Value, c: Value, t: Value, s: Value) -> Slices:
        return dict(M=r, N=(r + c + t + where(s > 3, s, 0)) % s, K=c)


class ByRemainder(PrimePar):
    """A whole turn more where 3 divides the side."""

    def forward(self, r: Value, c: Value, t: Value, s: Value) -> Slices:
        return dict(M=r, N=(r + c + t + where(s % 3 == 0, s, 0)) % s, K=c)


class CountedFromTheEnd(PrimePar):
    """A whole turn more at the last step but one."""

    def forward(self, r: Value, c: Value, t: Value, s: Value) -> Slices:
        return dict(M=r, N=(r + c + t + where(t == s - 2, s, 0)) % s, K=c)


class LowerRows(ByOutput):
    """Devices from the third on have the slices of K the other way round among them."""

    def forward(self, d: Value, t: Value, s: Value) -> Slices:
        return dict(K=where(d >= 2, s + 1 - d, d))


THRESHOLDS = (OddAndEven, NegatedCondition, FromASideOn, ByRemainder, CountedFromTheEnd, LowerRows)


@few
@pytest.mark.parametrize("kind", THRESHOLDS)
def test_right_maps_with_thresholds_are_proved_and_certified(kind: type[Primitive]) -> None:
    report = verify_primitive(kind())
    assert report.verdict == "proved"
    assert report.certificate is not None
    assert {verify_side(kind(), (side,)).verdict for side in (1, 2, 3, 4)} == {"proved"}


class Flat(Primitive):
    """A right partition of M whose slice index is a product."""

    axes = ("r", "c")

    def steps(self, s: Value) -> Value:
        return 1

    def forward(self, r: Value, c: Value, t: Value, s: Value) -> Slices:
        return dict(M=r * s + c)


def test_a_right_map_that_no_rule_explains_is_unknown_with_the_reason() -> None:
    report = verify_primitive(Flat())
    assert {(result.verdict, result.reason) for result in report.properties} == {
        ("unknown", "the number of slices of M follows no rule that is affine in the sides")
    }
    assert verify_side(Flat(), (3,)).verdict == "proved"


def test_a_wrong_map_is_refuted_on_a_small_mesh_where_z3_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(question, "check_by", lambda *_: z3.unknown)
    wrong = load_primitive(f"{Path(__file__).parents[1]}/wrong/no_last_step.py:NoLastStep")
    report = verify_primitive(wrong)
    assert (report["coverage"].verdict, report["alignment"].verdict) == ("unknown", "refuted")


def test_without_time_nothing_is_known() -> None:
    report = verify_primitive(PrimePar(), timeout=0.0)
    assert report.verdict == "unknown"
    assert report["alignment"].reason == "no answer within 0 s: give it a longer --timeout"


FILE = """
from primepar import Primitive

class Mine(Primitive):
    axes = ("r", "c")

    def forward(self, r, c, t, s):
        return {body}
"""


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            "dict(M=r, N=[][r], K=c)",
            f"FILE:8: Mine.forward: {NUMBER}",
        ),
        (
            "dict(M=r, N=t, K=c - 1)",
            "FILE:7: Mine.forward: expected a slice index of K that is 0 or more, got -1 at r=0, "
            "c=0, t=0, sides (1,): wrap it with % of the side",
        ),
        (
            "dict(M=r, N=t, K=(1 - c) if s > 3 else c)",
            f"FILE:8: Mine.forward: {IF}",
        ),
    ],
)
def test_a_map_that_gives_no_slices_is_bad_input(body: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(FILE.format(body=body))
    with pytest.raises(PrimitiveError) as error:
        verify_primitive(load_primitive(f"{tmp_path}/mine.py:Mine"))
    assert str(error.value).replace(f"{tmp_path}/mine.py", "FILE") == message
