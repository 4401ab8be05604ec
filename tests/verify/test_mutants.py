"""The kept mutants are refuted for the property that they break, and the score can fail."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import msgspec
import mutation_score
import pytest
from command import run
from long_runs import Store
from mutation import FIELD_WAYS, PROGRAM_WAYS, SEVERAL_WAYS, WAYS
from mutation_keep import FOLDER, Kept, index
from mutation_maps import MAP_WAYS
from mutation_oracle import Generated, Judged, Task, changes, decide, map_changes
from oracle.explore import explore

from primepar.partition import PRIMITIVES
from primepar.schedule import load_program

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


@pytest.mark.parametrize("method", ["by-output", "sequence-row", "step in rows"])
def test_a_mutant_is_refuted_if_it_does_harm_and_proved_if_not(method: str) -> None:
    ways = [way for way in PROGRAM_WAYS if changes(method, way, 1)]
    assert len(ways) >= 17
    assert [way for way in ways if not decide(Task(method, way, 0, 1)).is_right] == []


@pytest.mark.parametrize("way", SEVERAL_WAYS)
def test_so_is_a_mutant_of_sums_in_one_call(way: str) -> None:
    count = len(changes("sums in one call", way, 20))
    tasks = [Task("sums in one call", way, number, 20) for number in range(count)]
    assert [task for task in tasks if not decide(task).is_right] == []


@pytest.mark.parametrize("way", MAP_WAYS)
def test_so_is_a_mutant_of_a_map(way: str) -> None:
    tasks = [
        Task("by-input", way, number, 1) for number in range(len(map_changes("by-input", way, 1)))
    ]
    assert [task for task in tasks if not decide(task).is_right] == []


def test_every_primitive_has_mutants_of_its_map() -> None:
    assert [name for name in PRIMITIVES if not map_changes(name, "wrong offset", 1)] == []


def test_every_way_has_a_name_of_its_own() -> None:
    assert len({*WAYS, *FIELD_WAYS, *MAP_WAYS}) == len(WAYS) + len(FIELD_WAYS) + len(MAP_WAYS)


RIGHT = Judged(
    "summa", "wrong peer", 0, "rank 0", "a", ("races",), "refuted", ("races",), "", 0.1
)  # fmt: skip
MISSED = msgspec.structs.replace(RIGHT, verdict="proved", refuted=())
OPEN = msgspec.structs.replace(RIGHT, verdict="unknown", refuted=())
REFUSED = msgspec.structs.replace(RIGHT, failed=(), digest="b")
APART = msgspec.structs.replace(RIGHT, split="emulator", digest="c")
HARMLESS = msgspec.structs.replace(RIGHT, failed=(), verdict="proved", refuted=(), digest="d")


@contextmanager
def scored(path: Path, *arguments: str) -> Iterator[None]:
    """Without mutants of its own, the score is about what the file holds."""
    with (
        patch.object(sys, "argv", ["mutation_score.py", "--kept", str(path), *arguments]),
        patch.object(mutation_score, "fingerprint", lambda: "now"),
    ):
        yield


def score(path: Path, *mutants: Judged, generated: tuple[Generated, ...] = ()) -> int:
    """What the command ends with if these were judged."""
    tasks = [Task(mutant.method, mutant.way, number, 4) for number, mutant in enumerate(mutants)]
    numbered = [
        msgspec.structs.replace(mutant, number=number) for number, mutant in enumerate(mutants)
    ]
    with Store[Judged | Generated](path, "now", Judged | Generated) as store:
        store.keep([*numbered, *generated])
    with (
        scored(path, "--programs", str(len(generated)), "--jobs", "1"),
        patch.object(mutation_score, "tasks", lambda *_: tasks),
    ):
        return mutation_score.main()


def test_a_perfect_score_ends_with_0(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    agreed = (Generated(0, "proved", (), ""), Generated(1, "refuted", ("races",), ""))
    assert score(tmp_path / "kept", RIGHT, HARMLESS, generated=agreed) == 0
    output = capsys.readouterr().out
    assert "harmful caught / harmful: 1 / 1 = 100 %" in output
    assert "harmless refused / harmless: 0 / 1 = 0 %" in output
    assert "2 generated programs: 1 proved, 1 refuted" in output
    assert "prover and explorer differ on none" in output


@pytest.mark.parametrize(
    ("wrong", "line"),
    [
        (MISSED, "WRONG summa, wrong peer, rank 0: races should fail; proved  "),
        (OPEN, "WRONG summa, wrong peer, rank 0: races should fail; unknown  "),
        (REFUSED, "WRONG summa, wrong peer, rank 0: nothing should fail; refuted races "),
        (APART, "WRONG summa, wrong peer, rank 0: races should fail; refuted races emulator"),
    ],
)
def test_one_mistake_is_reported_and_ends_with_1(
    wrong: Judged, line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert score(tmp_path / "kept", wrong, HARMLESS) == 1
    assert line in capsys.readouterr().out.splitlines()


def test_a_generated_program_on_which_the_two_differ_ends_with_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    differs = Generated(0, "proved", ("races",), "verdict")
    assert score(tmp_path / "kept", RIGHT, generated=(differs,)) == 1
    assert "prover and explorer differ on 0 (verdict)" in capsys.readouterr().out


def test_a_stopped_run_goes_on_and_other_code_starts_anew(tmp_path: Path) -> None:
    path = tmp_path / "out" / "kept"
    with Store[Judged | Generated](path, "old", Judged | Generated) as store:
        store.keep([RIGHT, Generated(3, "proved", (), "")])
    whole = path.read_bytes()
    path.write_bytes(whole + whole.splitlines()[1][:40])
    with Store[Judged | Generated](path, "old", Judged | Generated) as store:
        assert set(store.kept) == {RIGHT.key, 3}
    assert path.read_bytes() == whole
    with Store[Judged | Generated](path, "new", Judged | Generated) as store:
        assert store.kept == {}


def test_the_command_decides_what_is_not_decided_yet(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tasks = [
        Task("by-output", way, 0, 1)
        for way in ("wrong block", "missing reduction", "doubled reduction")
    ]
    path = tmp_path / "kept"
    with scored(path, "--programs", "8", "--jobs", "1"):
        with patch.object(mutation_score, "tasks", lambda *_: tasks):
            assert mutation_score.main() == 0
        kept = path.read_bytes()
        with patch.object(mutation_score, "tasks", lambda *_: tasks):
            assert mutation_score.main() == 0
    assert path.read_bytes() == kept
    first, second = capsys.readouterr().out.split("way  ")[1:]
    assert first == second
