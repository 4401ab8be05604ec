"""Primitives made wrong by hand: refuted for the right property, at the smallest mesh, replayed."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest
from one_mesh import verify_side
from oracle.explore import explore
from profiles import few, thinned

from primepar.api.target import load_primitive
from primepar.reference.check import check, check_program
from primepar.schedule import Primitive, Sequence, lower
from primepar.schedule.primitive import Slices, Value
from primepar.verify.primitive.proof import verify_primitive
from primepar.verify.primitive.smallest_mesh import side_choices
from primepar.verify.program import verify_program

FOLDER = Path(__file__).parents[1] / "wrong"


class Wrong(NamedTuple):
    """A primitive, the smallest sides where it is wrong, what is refuted, and what is unknown.

    Property -> the whole counterexample. Whatever is in neither is proved for every side, but for
    completion, which is not asked where coverage, placement or alignment is not proved.
    """

    name: str
    sides: tuple[int, ...]
    refuted: dict[str, str]
    unknown: str = ""


def twice(mesh: str, sub_operator: str, one: str, other: str) -> str:
    return (
        f"{mesh}: {sub_operator}: expected one device to compute it once, got {one} and {other}: "
        "give one of them another"
    )


def nowhere(mesh: str, place: str, block: str, step: int) -> str:
    return (
        f"{mesh}: {place}: expected {block} to be on some device at t={step}, got it on none: "
        f"let a device use it at t={step}"
    )


def homeless(
    mesh: str, tensor: str, block: str, need: str, add: str, missing: str, rest: str
) -> dict[str, str]:
    """All that is refuted where `missing` has no home, nor have the blocks that come first."""
    return {
        "placement": f"{mesh}: {need}: expected {block} to be resident on some device, got it on "
        f"none: let the home of {tensor} assign it to one",
        "completion": f"{mesh}: {add} to have a home, got none: "
        f"let the home of {tensor} assign it to some device",
        "alignment": f"{mesh}: home of {tensor}: expected {missing} to be resident on some device, "
        f"got it on none: only {rest} blocks are resident",
    }


S2 = "s=2 (2x2 devices)"
FIRST, SECOND, THIRD = "device 0 (r=0, c=0)", "device 1 (r=0, c=1)", "device 2 (r=1, c=0)"
Q1D2, LAYER = "q=1, d=2 (1x1x2 devices)", "device 1 (r=0, c=0, e=1)"
WIDE, TALL = "q=1, u=1, v=2 (1x1x1x2 devices)", "q=1, u=2, v=1 (1x2x1x1 devices)"
CORNER = "device 0 (r=0, a=0, c=0, b=0)"
I_ELSEWHERE = (
    f"{S2}: gradient starts on {FIRST}: expected I[0,0] here, got I[0,1] from forward: "
    "end forward where gradient starts, or one hop away"
)
DW_ELSEWHERE = (
    f"{S2}: forward starts on {FIRST}: expected W[0,0] here, got dW[1,1] from gradient: "
    "end gradient where forward starts"
)

PRIMITIVES = [
    Wrong("another_row.py:AnotherRow", (2,), {
        "alignment": f"{S2}: backward starts on {FIRST}: expected dO[1,0] here, got O[0,0] from "
        "forward: end forward where backward starts",
    }),
    Wrong("backward_forgets_k.py:BackwardForgetsK", (2,), {
        "coverage": twice(S2, "backward sub-operator (M=0, N=1, K=0)",
                          f"{FIRST} at t=0", f"{FIRST} at t=1"),
        "alignment": f"{S2}: backward starts on {FIRST}: expected dO[0,1] here, got O[0,0] from "
        "forward: end forward where backward starts",
    }),
    Wrong("first_row_alone.py:FirstRowAlone", (2,), {
        "placement": nowhere(S2, f"forward, {FIRST} at t=1", "I[0,1]", 0),
        "alignment": f"{S2}: gradient starts on {SECOND}: expected I[0,0] here, got I[0,1] from "
        "forward: end forward where gradient starts, or one hop away",
    }),
    Wrong("half_a_last_step.py:HalfALastStep", (2,), {
        "coverage": twice(S2, "gradient sub-operator (M=1, N=0, K=1)",
                          f"{FIRST} at t=1", "device 2 (r=1, c=0) at t=0"),
        "alignment": f"{S2}: forward starts on {FIRST}: expected W[0,0] here, got dW[0,1] from "
        "gradient: end gradient where forward starts",
    }),
    Wrong("halves.py:Halves", (2,), {
        "coverage": twice(S2, "forward sub-operator (M=0, N=0, K=0)",
                          f"{FIRST} at t=0", f"{FIRST} at t=1"),
        "alignment": f"{S2}: gradient starts on {FIRST}: expected I[0,1] here, got I[0,0] from "
        "forward: end forward where gradient starts, or one hop away",
    }),
    Wrong("late.py:Late", (4,), {
        "coverage": twice("s=4 (4x4 devices)", "forward sub-operator (M=0, N=0, K=0)",
                          f"{FIRST} at t=0", f"{FIRST} at t=2"),
    }),
    Wrong("no_last_step.py:NoLastStep", (2,), {"alignment": DW_ELSEWHERE}),
    Wrong("nobody_sends.py:NobodySends", (2,), {
        "placement": nowhere(S2, f"forward, {FIRST} at t=1", "I[0,1]", 0),
        "alignment": I_ELSEWHERE,
    }),
    Wrong("oblong.py:Oblong", (2, 1), {
        "placement": nowhere("p=2, q=1 (2x1 devices)", f"forward, {FIRST} at t=1", "I[0,1]", 0),
        "alignment": I_ELSEWHERE.replace(S2, "p=2, q=1 (2x1 devices)"),
    }, unknown="coverage"),
    Wrong("odd_sides_only.py:OddSidesOnly", (2,), {
        "coverage": twice(S2, "gradient sub-operator (M=1, N=1, K=1)",
                          f"{SECOND} at t=1", "device 2 (r=1, c=0) at t=0"),
        "placement": nowhere(S2, f"forward, {FIRST} at t=1", "W[1,0]", 0),
    }),
    Wrong("one_step.py:OneStep", (2,), {
        "coverage": f"{S2}: forward sub-operator (M=0, N=0, K=1): expected one device to compute "
        "it, got none: only 4 of 8 are computed",
        "alignment": DW_ELSEWHERE,
    }),
    Wrong("one_step_too_many.py:OneStepTooMany", (1,), {
        "coverage": twice("s=1 (1x1 device)", "forward sub-operator (M=0, N=0, K=0)",
                          f"{FIRST} at t=0", f"{FIRST} at t=1"),
        "alignment": DW_ELSEWHERE,
    }),
    Wrong("one_time_index.py:OneTimeIndex", (2,), {
        "coverage": "s=2 (2x2x2x2 devices): forward sub-operator (M=0, N=0, K=1): expected one "
        "device to compute it, got none: only 32 of 64 are computed",
    }),
    Wrong("twins.py:Twins", (2,), {
        "coverage": twice(S2, "forward sub-operator (M=0, N=0, K=0)",
                          f"{FIRST} at t=0", f"{SECOND} at t=0"),
        "placement": nowhere(S2, f"forward, {FIRST} at t=1", "I[0,1]", 0),
        "alignment": I_ELSEWHERE,
    }),
    Wrong("two_at_a_time.py:TwoAtATime", (2,), {
        "coverage": twice(S2, "forward sub-operator (M=0, N=0, K=0)",
                          f"{FIRST} at t=0", f"{FIRST} at t=1"),
    }),
]  # fmt: skip
WITH_HOMES = [
    Wrong("digits_exchanged.py:DigitsExchanged", (1, 2), {
        "coverage": f"{Q1D2}: forward sub-operator (M=1, N=0, K=0): expected one device to compute "
        "it, got none: only 2 of 4 are computed",
        **homeless(Q1D2, "I", "I[2,0]", f"forward, {LAYER} at t=0",
                   f"backward, {LAYER} at t=0: expected the sum dI[2,0]", "I[2,0]", "2 of 4"),
    }, unknown="deadlock-freedom"),
    Wrong("every_second_column.py:EverySecondColumn", (2,), {
        "coverage": twice(S2, "forward sub-operator (M=0, N=0, K=0)",
                          f"{FIRST} at t=0", f"{FIRST} at t=1"),
    }),
    Wrong("every_second_row.py:EverySecondRow", (2,), homeless(
        S2, "W", "W[1,0]", f"forward, {FIRST} at t=1",
        f"gradient, {FIRST} at t=1: expected the sum dW[1,0]", "W[1,0]", "2 of 4",
    )),
    Wrong("first_row_of_sums_stays.py:FirstRowOfSumsStays", (2,), homeless(
        S2, "O", "dO[1,0]", f"backward, {THIRD} at t=0",
        f"forward, {THIRD} at t=0: expected the sum O[1,0]", "O[1,0]", "1 of 2",
    )),
    Wrong("first_slice_stays.py:FirstSliceStays", (2,), homeless(
        "s=2 (2 devices)", "O", "dO[0,1]", "backward, device 1 (d=1) at t=0",
        "forward, device 1 (d=1) at t=0: expected the sum O[0,1]", "O[0,1]", "2 of 4",
    )),
    Wrong("input_on_the_diagonal.py:InputOnTheDiagonal", (2,), homeless(
        S2, "I", "I[1,0]", f"forward, {THIRD} at t=0",
        f"backward, {THIRD} at t=0: expected the sum dI[1,0]", "I[0,1]", "2 of 4",
    )),
    Wrong("oblong_summa.py:OblongSumma", (1, 2), {
        "coverage": "p=1, q=2 (1x2 devices): forward sub-operator (M=0, N=1, K=0): expected one "
        "device to compute it, got none: only 2 of 4 are computed",
        **homeless("p=2, q=1 (2x1 devices)", "I", "I[0,1]", f"forward, {FIRST} at t=1",
                   f"backward, {FIRST} at t=1: expected the sum dI[0,1]", "", ""),
        "alignment": "p=1, q=2 (1x2 devices): home of W: expected W[1,0] to be resident on some "
        "device, got it on none: only 2 of 4 blocks are resident",
    }, unknown="deadlock-freedom"),
    Wrong("last_digit_open.py:LastDigitOpen", (1, 1, 2), homeless(
        WIDE, "W", "W[1,0]", f"forward, {CORNER} at t=0",
        f"gradient, {CORNER} at t=0: expected the sum dW[1,0]", "W[1,0]", "2 of 4",
    ), unknown="coverage deadlock-freedom"),
    Wrong("no_digit_open.py:NoDigitOpen", (1, 2, 1), homeless(
        TALL, "I", "I[0,1]", f"forward, {CORNER} at t=0",
        f"backward, {CORNER} at t=0: expected the sum dI[0,1]", "I[0,1]", "2 of 4",
    )),
    Wrong("one_layer_stays.py:OneLayerStays", (1, 2), homeless(
        Q1D2, "I", "I[1,0]", f"forward, {LAYER} at t=0",
        f"backward, {LAYER} at t=0: expected the sum dI[1,0]", "I[1,0]", "1 of 2",
    )),
    Wrong("output_on_the_diagonal.py:OutputOnTheDiagonal", (2,), homeless(
        S2, "O", "dO[0,1]", f"backward, {SECOND} at t=0",
        f"forward, {SECOND} at t=0: expected the sum O[0,1]", "O[0,1]", "2 of 4",
    )),
    Wrong("rotates_by_two.py:RotatesByTwo", (2,), {
        "coverage": twice(S2, "forward sub-operator (M=0, N=0, K=0)",
                          f"{FIRST} at t=0", f"{FIRST} at t=1"),
    }),
    Wrong("sequence_twice.py:SequenceTwice", (2,), homeless(
        "s=2 (2 devices)", "I", "I[1,0]", "forward, device 0 (d=0) at t=0",
        "backward, device 0 (d=0) at t=0: expected the sum dI[1,0]", "I[1,0]", "2 of 4",
    )),
    Wrong("wrong_axis.py:WrongAxis", (2,), homeless(
        "s=2 (2x2x2 devices)", "O", "dO[0,2]", "backward, device 2 (i=0, j=1, l=0) at t=0",
        "forward, device 2 (i=0, j=1, l=0) at t=0: expected the sum O[0,2]", "O[0,2]", "8 of 16",
    )),
]  # fmt: skip
ALL = [*PRIMITIVES, *WITH_HOMES]
SHORT = thinned(ALL, 3)
NAMES = [wrong.name.partition(":")[0] for wrong in ALL]


def load(wrong: Wrong) -> Primitive:
    return load_primitive(f"{FOLDER}/{wrong.name}")


def test_every_wrong_primitive_is_in_the_table() -> None:
    assert sorted(path.name for path in FOLDER.glob("*.py")) == sorted(NAMES)


@pytest.mark.parametrize("wrong", SHORT, ids=[wrong.name.partition(":")[0] for wrong in SHORT])
def test_a_wrong_primitive_is_refuted_with_the_smallest_counterexample(wrong: Wrong) -> None:
    report = verify_primitive(load(wrong), wrong.name)
    counterexamples = {result.name: result.counterexample for result in report.properties}
    assert {name: text for name, text in counterexamples.items() if text} == wrong.refuted
    left = {verdict: [result.name for result in report.properties if result.verdict == verdict]
            for verdict in ("unknown", "not asked")}  # fmt: skip
    assert left["unknown"] == wrong.unknown.split()
    lacking = {*wrong.refuted, *wrong.unknown.split()} & {"coverage", "placement", "alignment"}
    is_asked = not lacking or "completion" in wrong.refuted
    assert left["not asked"] == ([] if is_asked else ["completion"])
    assert (report.target, report.verdict) == (wrong.name, "refuted")


@few
@pytest.mark.parametrize("wrong", ALL, ids=NAMES)
def test_the_counterexample_replays_on_emulated_devices_and_in_the_program(wrong: Wrong) -> None:
    primitive = load(wrong)
    for sides in side_choices(primitive):
        smallest = sides == wrong.sides
        assert check(Sequence.of(primitive, *sides)).equal != smallest
        assert verify_side(primitive, sides).verdict == ("refuted" if smallest else "proved")
        if smallest:
            break


@pytest.mark.parametrize(
    ("name", "block"),
    [
        ("first_row_of_sums_stays.py:FirstRowOfSumsStays", "O[1,0]"),
        ("first_slice_stays.py:FirstSliceStays", "O[0,1]"),
        ("output_on_the_diagonal.py:OutputOnTheDiagonal", "O[0,1]"),
        ("wrong_axis.py:WrongAxis", "O[0,2]"),
    ],
)
def test_a_sum_without_a_home_is_refuted_where_no_later_phase_misses_it(
    name: str, block: str
) -> None:
    sequence = Sequence.of(load_primitive(f"{FOLDER}/{name}"), 2)
    program = lower(sequence, phases=("forward",))
    report = verify_program(program)
    refuted = {
        result.name: result.counterexample for result in report.properties if result.counterexample
    }
    message = (
        f"{block}: expected it in final on some rank, or read when it is finished, got neither"
    )
    assert refuted == {"completion": f"{message}: list it where it ends, or give it a home"}
    assert explore(program).failed == {"completion"}
    emulated = check_program(program)
    assert not emulated.equal
    assert emulated.message == (
        f"expected {block} in final on some device, or read when it is finished, got neither"
    )


def test_a_primitive_that_is_wrong_for_even_sides_only_is_right_for_odd_ones() -> None:
    primitive = load(next(wrong for wrong in PRIMITIVES if "Odd" in wrong.name))
    verdicts = [verify_side(primitive, (side,)).verdict for side in (1, 2, 3, 4, 5)]
    assert verdicts == ["proved", "refuted", "proved", "refuted", "proved"]


class TurnedWeight(Primitive):
    """dW ends one column from where W starts forward; the halves of N are on one device."""

    axes = {"r": "s", "c": "s", "h": "b"}
    virtual = ("h",)

    def forward(self, r: Value, c: Value, h: Value, t: Value, s: Value, b: Value) -> Slices:
        return dict(M=r, N=((r + c + t) % s, h), K=c)

    def gradient(self, r: Value, c: Value, h: Value, t: Value, s: Value, b: Value) -> Slices:
        return dict(M=r, N=((r + c + t + 1) % s, h), K=(c + 1) % s)


def test_a_fault_of_a_virtual_axis_is_on_the_device_of_the_place() -> None:
    refuted = verify_primitive(TurnedWeight())["alignment"]
    assert refuted.verdict == "refuted"
    assert str(refuted.counterexample).splitlines()[0] == (
        "s=2, b=1 (2x2 devices): forward starts on device 0 (r=0, c=0): expected W[0,0] here, got "
        "dW[0,1] from gradient: end gradient where forward starts"
    )
