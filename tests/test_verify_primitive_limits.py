"""What cannot be proved is unknown and says why; what is no map of slices is bad input."""

from __future__ import annotations

from pathlib import Path

import pytest

from primepar import Primitive, where
from primepar.errors import PrimitiveError
from primepar.partition import ByOutput, PrimePar
from primepar.schedule.primitive import Slices, Value
from primepar.targets import load_primitive
from primepar.verify.primitive.proof import verify_primitive
from primepar.verify.primitive.side import verify_side

ONE_MESH = "or prove one mesh with --side"


def test_steps_that_no_sample_shows_are_not_overlooked() -> None:
    class TwiceWhereLarge(ByOutput):
        def steps(self, s: Value) -> Value:
            return where(s > 50, 2, 1)

    report = verify_primitive(TwiceWhereLarge())
    assert report.verdict == "unknown"
    assert report["coverage"].reason == (
        "forward: no sub-operator is computed at two places or steps: "
        "not so for some sides that sum up to more than 16"
    )
    assert verify_side(TwiceWhereLarge(), (51,)).verdict == "refuted"


class WithIf(PrimePar):
    """PrimePar with an `if`: right, but not one map for every side."""

    def gradient(self, r: Value, c: Value, t: Value, s: Value) -> Slices:
        last = 1 if t == s - 1 else 0
        return dict(M=(r + t) % s, N=(r + c - 1 + last) % s, K=(c - 1 + last) % s)


class Flat(Primitive):
    """A right partition of M whose slice index is a product."""

    axes = ("r", "c")

    def steps(self, s: Value) -> Value:
        return 1

    def forward(self, r: Value, c: Value, t: Value, s: Value) -> Slices:
        return dict(M=r * s + c)


class StepsWithMin(ByOutput):
    """A right partition that asks which is smaller for its steps."""

    def steps(self, s: Value) -> Value:
        return min(s, 1)


class OddAndEven(Primitive):
    """Right, but dI passes over half the mesh where the side is odd, and rests where it is even."""

    axes = ("r", "c")

    def forward(self, r: Value, c: Value, t: Value, s: Value) -> Slices:
        return dict(M=(r + c + t) % s, N=r, K=c)

    def backward(self, r: Value, c: Value, t: Value, s: Value) -> Slices:
        return dict(M=(r + c - 1 + t) % s, N=(r - c) % s, K=c)

    def gradient(self, r: Value, c: Value, t: Value, s: Value) -> Slices:
        return dict(M=(r + c - 2 + t) % s, N=r, K=c)


class OnlyNumbers(ByOutput):
    """A map that numbers can call and symbols cannot."""

    def forward(self, d: Value, t: Value, s: Value) -> Slices:
        return dict(K=d.__class__(d))


IF = (
    "a map for every side cannot ask `if`, `and`, min or max of an index: "
    f"write where(condition, a, b), {ONE_MESH}"
)
UNKNOWN = {
    WithIf: IF,
    StepsWithMin: IF,
    Flat: "a product of two indices or sides is not linear: write an index of several digits as a "
    f"tuple, M=(r, c) for M=r*s + c, {ONE_MESH}",
    OnlyNumbers: "called with symbols: OnlyNumbers.forward: expected a map that can be called as "
    "forward(self, d, t, s), got TypeError: Symbol.__init__() missing 3 required positional "
    "arguments: 'term', 'low', and 'high'",
}


@pytest.mark.parametrize("kind", UNKNOWN)
def test_a_right_map_that_symbols_cannot_follow_is_unknown_and_says_why(
    kind: type[Primitive],
) -> None:
    report = verify_primitive(kind())
    assert report.verdict == "unknown"
    assert {each.verdict for each in report.properties} == {"unknown"}
    assert {each.reason for each in report.properties} == {UNKNOWN[kind]}
    assert verify_side(kind(), (3,)).verdict == "proved"


def test_a_right_map_that_no_one_rule_explains_is_unknown_and_says_where() -> None:
    report = verify_primitive(OddAndEven())
    assert {each.name: each.reason for each in report.properties if each.verdict != "proved"} == {
        "completion": "backward, dI: one rule says where each block comes from: "
        "a device needs what no device has, s=6",
        "deadlock-freedom": "backward, dI: every receive has its send: "
        "a device needs what no device has, s=6",
    }
    assert {verify_side(OddAndEven(), (side,)).verdict for side in (1, 2, 3, 4)} == {"proved"}


def test_a_wrong_map_that_symbols_cannot_follow_is_refuted_by_search() -> None:
    class WrongWithIf(PrimePar):
        def forward(self, r: Value, c: Value, t: Value, s: Value) -> Slices:
            return dict(M=r if t else c, N=(r + c + t) % s, K=c)

    report = verify_primitive(WrongWithIf())
    assert (report.verdict, report["coverage"].counterexample) == (
        "refuted",
        "s=2 (2x2 devices): forward sub-operator (M=0, N=1, K=0): expected one device to compute "
        "it once, got device 0 (r=0, c=0) at t=1 and device 2 (r=1, c=0) at t=0: "
        "give one of them another",
    )


def test_without_time_nothing_is_known() -> None:
    report = verify_primitive(PrimePar(), timeout=0.0)
    assert report.verdict == "unknown"
    assert report["alignment"].reason == (
        "forward to gradient, I: there is such a device and step: "
        "Z3 did not decide it in the time that it was given"
    )


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
            "Mine.forward: expected a map that can be called as forward(self, r, c, t, s), "
            "got IndexError: list index out of range",
        ),
        (
            "dict(M=r, N=t, H=c)",
            "Mine.forward: expected dims out of B, M, N, K, got 'H': leave out a dim that is not "
            "split",
        ),
        (
            "(r, c)",
            "Mine.forward: expected dict(M=..., N=..., K=...), got tuple: return the slice index "
            "of each dim that the map splits",
        ),
        (
            "dict(M=r, N=t, K=c - 1)",
            "Mine.forward: expected a slice index of K that is 0 or more, got -1 at r=0, c=0, "
            "t=0, sides (1,): wrap it with % of the side",
        ),
        (
            "dict(M=r, N=t, K=c / 2)",
            "Mine.forward: expected a slice index of K that is 0 or more, got 0.0 at r=0, c=0, "
            "t=0, sides (1,): wrap it with % of the side",
        ),
        (
            "dict(M=r, N=t, K=(1 - c) if s > 3 else c)",
            "Mine.forward: expected a slice index of K that is 0 or more, got -1 at r=0, c=2, "
            "t=0, sides (4,): wrap it with % of the side",
        ),
    ],
)
def test_a_map_that_gives_no_slices_is_bad_input(body: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(FILE.format(body=body))
    with pytest.raises(PrimitiveError) as error:
        verify_primitive(load_primitive(f"{tmp_path}/mine.py:Mine"))
    assert str(error.value) == message
