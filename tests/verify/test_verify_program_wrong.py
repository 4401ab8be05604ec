"""Programs made wrong by hand: each is refuted for the right property, by all three readers."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest
from conftest import Golden
from mutants import Ones
from oracle.explore import explore

from primepar.errors import (
    DeadlockError,
    EmulationError,
    IncompleteError,
    InFlightError,
    MismatchError,
    MissingBlockError,
    WrongDataError,
)
from primepar.reference import emulate
from primepar.schedule import Program, load_program
from primepar.verify.program import verify_program

FOLDER = Path(__file__).parents[1] / "wrong"


class Wrong(NamedTuple):
    """What is wrong with a program, and how its emulation ends."""

    properties: frozenset[str]
    error: type[EmulationError]
    place: str


def wrong(properties: str, error: type[EmulationError], place: str) -> Wrong:
    return Wrong(frozenset(properties.split()), error, place)


PROGRAMS = {
    "all-reduce-by-max": wrong("completion", WrongDataError, "device 1, programs[1][1]"),
    "all-reduce-over-wrong-group": wrong("completion", WrongDataError, "device 1, programs[1][1]"),
    "collective-order-swapped": wrong("deadlock-freedom", DeadlockError, "device 0 at "
                                      "programs[0][0] waits"),
    "doubled-all-reduce": wrong("completion", WrongDataError, "device 0, programs[0][2]"),
    "dropped-message": wrong("deadlock-freedom", DeadlockError, "device 1 at programs[1][4] waits"),
    "duplicated-product": wrong("coverage completion", WrongDataError, "device 1, programs[1][6]"),
    "early-overwrite": wrong("races", InFlightError, "device 0, programs[0][1]"),
    "gradient-ends-elsewhere": wrong("alignment", IncompleteError, "device 0: expected dW[0,1]"),
    "missing-all-reduce": wrong("completion", IncompleteError, "device 0: at the end expected "
                                "the 2 terms of O[0,0], got it without forward M=0 N=1 K=0"),
    "missing-partner": wrong("deadlock-freedom", DeadlockError, "device 1 at programs[1][1] waits"),
    "missing-product": wrong("coverage completion", IncompleteError, "expected forward M=0 N=1 "
                             "K=0 to be computed exactly once, got it 0 times"),
    "missing-wait": wrong("races", InFlightError, "device 0, programs[0][4]"),
    "other-collective": wrong("deadlock-freedom", MismatchError, "device 1, programs[1][0]"),
    "outside-the-grid": wrong("coverage placement completion", WrongDataError,
                              "device 1, programs[1][5]"),
    "partial-sum-lost": wrong("completion", IncompleteError, "device 1: at the end expected "
                              "the 2 terms of O[0,0], got it without forward M=0 N=1 K=0"),
    "phase-starts-elsewhere": wrong("alignment", MissingBlockError, "device 0, programs[0][2]"),
    "posted-broadcast-overwritten": wrong("races", InFlightError, "device 0, programs[0][1]"),
    "posted-collectives-crossed": wrong("deadlock-freedom", MismatchError, "device 1, "
                                        "programs[1][0]"),
    "posted-gather-read-early": wrong("races", InFlightError, "device 0, programs[0][1]"),
    "posted-reduce-not-waited": wrong("races", MismatchError, "device 1: expected request 'a' to "
                                      "be waited for"),
    "posted-too-late": wrong("deadlock-freedom", DeadlockError, "device 0 at programs[0][1] waits "
                             "for device 1 to call broadcast over 0,1 root=0; device 1 at "
                             "programs[1][0] waits for device 0 to send Y"),
    "read-before-arrival": wrong("races", InFlightError, "device 1, programs[1][4]"),
    "send-send-deadlock": wrong("deadlock-freedom", DeadlockError, "device 0 at programs[0][0] "
                                "waits for device 1 to receive X; device 1 at programs[1][0] "
                                "waits for device 0 to receive Y"),
    "sum-ends-nowhere": wrong("completion", IncompleteError, "expected O[1,0] in final on some "
                              "device, or read, got neither"),
    "swapped-order-deadlock": wrong("deadlock-freedom", DeadlockError, "device 0 at "
                                    "programs[0][0] waits"),
    "tags-crossed": wrong("deadlock-freedom", MismatchError, "device 1, programs[1][0]"),
    "unfinished-without-a-grid": wrong("completion", IncompleteError, "device 0, programs[0][1]"),
    "used-after-free": wrong("placement", MissingBlockError, "device 0, programs[0][6]"),
    "waited-for-twice": wrong("deadlock-freedom", MismatchError, "device 1, programs[1][6]"),
    "weight-not-sent-home": wrong("alignment", IncompleteError, "device 0: expected W[0,0] "
                                     "in its memory at the end, got it on device 1"),
    "wrong-block-sent": wrong("placement", WrongDataError, "device 0, programs[0][5]"),
    "wrong-peer": wrong("deadlock-freedom", DeadlockError, "device 0 at programs[0][0] waits"),
    "wrong-root": wrong("deadlock-freedom", MismatchError, "device 1, programs[1][1]"),
    "wrong-slice": wrong("placement", WrongDataError, "device 0, programs[0][5]"),
    "wrong-sum": wrong("completion", WrongDataError, "device 0, programs[0][5]"),
}  # fmt: skip


def load(name: str) -> Program:
    return load_program(FOLDER / f"{name}.json")


def test_every_wrong_program_is_in_the_table() -> None:
    assert {path.stem for path in FOLDER.glob("*.json")} == set(PROGRAMS)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_wrong_program_is_refuted_for_the_right_property(name: str, golden: Golden) -> None:
    report = verify_program(load(name), name)
    refuted = [result for result in report.properties if result.verdict == "refuted"]
    assert report.verdict == "refuted"
    assert {result.name for result in refuted} == PROGRAMS[name].properties
    texts = [f"{result.name}: {result.counterexample}" for result in refuted]
    golden(f"wrong/{name}", "\n".join(texts))


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_wrong_program_fails_in_the_explorer_for_the_same_property(name: str) -> None:
    assert explore(load(name)).failed == PROGRAMS[name].properties


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_counterexample_replays_in_the_emulator(name: str) -> None:
    program = load(name)
    with pytest.raises(PROGRAMS[name].error) as raised:
        emulate(program, [Ones() for _ in range(program.ranks)])
    assert PROGRAMS[name].place in str(raised.value)
