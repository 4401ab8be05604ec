"""Programs made wrong by hand: each is refuted for the right property, by all three readers."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import Golden
from mutants import Ones
from oracle.explore import explore

from primepar.errors import EmulationError
from primepar.reference import emulate
from primepar.schedule import Program, load_program
from primepar.verify.program import verify_program

FOLDER = Path(__file__).parents[1] / "wrong"


PROGRAMS = {
    "all-reduce-by-max": "completion",
    "all-reduce-over-wrong-group": "completion",
    "collective-order-swapped": "deadlock-freedom",
    "doubled-all-reduce": "completion",
    "dropped-message": "deadlock-freedom",
    "duplicated-product": "coverage completion",
    "early-overwrite": "races",
    "gradient-ends-elsewhere": "alignment",
    "missing-all-reduce": "completion",
    "missing-partner": "deadlock-freedom",
    "missing-product": "coverage completion",
    "missing-wait": "races",
    "other-collective": "deadlock-freedom",
    "outside-the-grid": "coverage placement completion",
    "partial-sum-lost": "completion",
    "phase-starts-elsewhere": "alignment",
    "posted-broadcast-overwritten": "races",
    "posted-collectives-crossed": "deadlock-freedom",
    "posted-gather-read-early": "races",
    "posted-reduce-not-waited": "races",
    "posted-too-late": "deadlock-freedom",
    "read-before-arrival": "races",
    "send-send-deadlock": "deadlock-freedom",
    "sum-ends-nowhere": "completion",
    "swapped-order-deadlock": "deadlock-freedom",
    "tags-crossed": "deadlock-freedom",
    "unfinished-without-a-grid": "completion",
    "used-after-free": "placement",
    "waited-for-twice": "deadlock-freedom",
    "weight-not-sent-home": "alignment",
    "wrong-block-sent": "placement",
    "wrong-peer": "deadlock-freedom",
    "wrong-root": "deadlock-freedom",
    "wrong-slice": "placement",
    "wrong-sum": "completion",
}
"""Wrong program -> the properties that fail."""


def load(name: str) -> Program:
    return load_program(FOLDER / f"{name}.json")


def test_every_wrong_program_is_in_the_table() -> None:
    assert {path.stem for path in FOLDER.glob("*.json")} == set(PROGRAMS)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_wrong_program_is_refuted_for_the_right_property(name: str, golden: Golden) -> None:
    report = verify_program(load(name), name)
    refuted = [result for result in report.properties if result.verdict == "refuted"]
    assert report.verdict == "refuted"
    assert {result.name for result in refuted} == set(PROGRAMS[name].split())
    texts = [f"{result.name}: {result.counterexample}" for result in refuted]
    golden(f"wrong/{name}", "\n".join(texts))


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_wrong_program_fails_in_the_explorer_for_the_same_property(name: str) -> None:
    assert explore(load(name)).failed == set(PROGRAMS[name].split())


def test_a_counterexample_replays_in_the_emulator(golden: Golden) -> None:
    lines = []
    for name in PROGRAMS:
        program = load(name)
        with pytest.raises(EmulationError) as raised:
            emulate(program, [Ones() for _ in range(program.ranks)])
        lines.append(f"{name}: {type(raised.value).__name__}: {raised.value}")
    golden("wrong/emulated", "\n".join(lines))
