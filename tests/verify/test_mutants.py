"""The kept mutants are refuted for the property that they break, and a mistake is one."""

from __future__ import annotations

import json

import pytest
from command import run
from mutation import FIELD_WAYS, PROGRAM_WAYS, SEVERAL_WAYS, WAYS
from mutation_keep import FOLDER, Kept, index
from mutation_maps import MAP_WAYS
from mutation_oracle import MORE_STEPS, Task, changes, decide, map_changes, result
from oracle.explore import explore
from profiles import IS_LONG

from primepar.partition import PRIMITIVES
from primepar.schedule import load_program
from primepar.verify.report import PropertyResult, Report, Verdict

KEPT = index()


@pytest.mark.parametrize("kept", KEPT, ids=lambda kept: kept.file.removesuffix(".json"))
def test_a_kept_mutant_is_refuted_for_what_it_breaks_and_the_explorer_agrees(kept: Kept) -> None:
    path = FOLDER / kept.file
    done = run("verify", str(path), "--json")
    printed = json.loads(done.out)
    refuted = {result["name"] for result in printed["properties"] if result["verdict"] == "refuted"}
    if "deadlock-freedom" in refuted:
        refuted -= {"races"} - set(kept.fails)  # behind a deadlock the explorer looks for none
    assert (done.code, printed["verdict"]) == ((1, "refuted") if kept.fails else (0, "proved"))
    assert refuted == set(kept.fails)
    assert explore(load_program(path)).failed == set(kept.fails)


def test_every_way_every_property_and_every_method_is_kept() -> None:
    assert {path.name for path in FOLDER.iterdir()} == {mutant.file for mutant in KEPT} | {
        "index.json"
    }
    assert {mutant.way for mutant in KEPT if mutant.fails} == set(PROGRAM_WAYS)
    assert {name for mutant in KEPT for name in mutant.fails} == {
        "coverage", "placement", "completion", "alignment", "deadlock-freedom", "races", "memory",
        "traffic",
    }  # fmt: skip
    assert sum(not mutant.fails for mutant in KEPT) >= 8
    assert len({mutant.method for mutant in KEPT}) >= 12


@pytest.mark.parametrize(
    "method",
    ["by-output", "sequence-row", "step in rows", "recomputed step", "sharded step", "stream-k",
     "pipeline 1f1b", "pipeline zbv", "patrickstar", "local-sgd", *MORE_STEPS],
)  # fmt: skip
def test_a_mutant_is_refuted_if_it_does_harm_and_proved_if_not(method: str) -> None:
    most = 10 if IS_LONG and method in MORE_STEPS else 1
    counts = {way: len(changes(method, way, most)) for way in PROGRAM_WAYS}
    assert sum(count > 0 for count in counts.values()) >= 15
    tasks = [Task(method, way, n, most) for way, count in counts.items() for n in range(count)]
    assert [task for task in tasks if decide(task).is_wrong] == []


@pytest.mark.parametrize("way", ["wrong reduction", "wrong scale", *SEVERAL_WAYS])
def test_so_is_a_mutant_of_sums_in_one_call(way: str) -> None:
    count = len(changes("sums in one call", way, 20))
    tasks = [Task("sums in one call", way, number, 20) for number in range(count)]
    assert [task for task in tasks if decide(task).is_wrong] == []


@pytest.mark.parametrize("way", MAP_WAYS)
def test_so_is_a_mutant_of_a_map(way: str) -> None:
    tasks = [
        Task("by-input", way, number, 1) for number in range(len(map_changes("by-input", way, 1)))
    ]
    assert [task for task in tasks if decide(task).is_wrong] == []


def test_every_primitive_has_mutants_of_its_map() -> None:
    assert [name for name in PRIMITIVES if not map_changes(name, "wrong offset", 1)] == []


def test_every_way_has_a_name_of_its_own() -> None:
    assert len({*WAYS, *FIELD_WAYS, *MAP_WAYS}) == len(WAYS) + len(FIELD_WAYS) + len(MAP_WAYS)


@pytest.mark.parametrize(
    ("failed", "verdict", "split", "note"),
    [
        ({"races"}, "refuted", "", ""),
        (set(), "proved", "", ""),
        ({"races"}, "proved", "", "rank 0: races should fail; proved  "),
        ({"races"}, "unknown", "", "rank 0: races should fail; unknown  "),
        (set(), "refuted", "", "rank 0: nothing should fail; refuted races "),
        ({"races"}, "refuted", "emulator", "rank 0: races should fail; refuted races emulator"),
    ],
)
def test_a_mutant_is_wrong_if_prover_and_explorer_differ(
    failed: set[str], verdict: Verdict, split: str, note: str
) -> None:
    report = Report.of("summa", [PropertyResult("races", verdict, 0.0)])
    made = result(Task("summa", "wrong peer", 0, 4), "rank 0", failed, report, split, 0.1, "a")
    assert (made.is_wrong, made.note) == (bool(note), note)
