"""The benchmark of the executor: its statistics, its memory, its targets, and one tiny run."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from command import run
from profiles import long
from torch.profiler import record_function

from benchmarks.bench import BenchRun, MachineLoad, bench, load_run
from benchmarks.contenders import ListFacts
from benchmarks.executor import (
    BEGIN,
    ContenderRow,
    LeftOut,
    Measured,
    executor,
    peak_after_begin,
    peak_of,
    rows_of,
    targets,
)
from benchmarks.scores import above_floor
from docs.render_performance import page

FACTS = ListFacts(messages=0, collectives=4, waits=4, computes=9)


def test_a_score_is_of_differences_in_the_same_round() -> None:
    """Rounds of a machine that slows down: what is added to all contenders of a round cancels."""
    drift = [0.0, 10.0, 20.0, 30.0, 40.0]
    floor = [1.0 + slow for slow in drift]
    ours, theirs = [3.0 + slow for slow in drift], [5.0 + slow for slow in drift]
    assert above_floor(ours, theirs, floor) == above_floor([2.0], [4.0], [0.0])
    assert above_floor(ours, theirs, floor).value == 0.5


def test_the_interval_of_a_score_has_its_ratio_and_grows_with_the_noise() -> None:
    theirs, floor = [2.0] * 9, [0.0] * 9
    wide, narrow = (
        above_floor([1.0 + noise * step for step in range(-4, 5)], theirs, floor)
        for noise in (0.1, 0.01)
    )
    assert wide.value == narrow.value == 0.5
    assert wide.low < narrow.low < 0.5 < narrow.high < wide.high


def test_a_reference_that_is_no_dearer_than_the_floor_scores_infinite() -> None:
    assert above_floor([2.0], [1.0], [1.0]).value == float("inf")


def test_the_peak_of_known_tensors() -> None:
    """4 MiB are held from the start; 8 MiB of a first tensor are freed before 2 MiB of another."""

    def work() -> int:
        resident = torch.ones(1 << 20)
        with record_function(BEGIN):
            first = torch.ones(1 << 21)
        del first
        second = torch.ones(1 << 19)
        return resident.nbytes + 0 * second.nbytes

    assert peak_of(work) == 8 << 20


def test_memory_from_before_the_steps_counts_while_it_lives() -> None:
    events = [(0, "[memory]", 7), (1, "[memory]", 5), (2, "[memory]", -7), (3, BEGIN, 0)]
    assert peak_after_begin(events) == 5
    assert peak_after_begin([*events, (4, "[memory]", 1), (5, "[memory]", -6)]) == 6


def load(busy: float) -> MachineLoad:
    return MachineLoad("2026-01-01", "machine", {"torch": "2"}, 2, 10.0, busy, 9.0, 0.5)


def test_a_machine_is_idle_if_little_went_elsewhere() -> None:
    for busy, text in ((9.5, "idle (2% of"), (19.0, "loaded (50% of")):
        assert f"torch 2; {text} the CPU went elsewhere), load average 0.5" in str(load(busy))


def rows(megatron: float, peak: int) -> list[ContenderRow]:
    """Three rounds without noise, in which DTensor takes 3 s and the floor 1 s."""
    seconds = {"floor:columns": 1.0, "floor:rows": 1.5, "dtensor": 3.0, "dtensor-sp": 4.0,
               "megatron": megatron}  # fmt: skip
    cpu = {name: [value] * 3 for name, value in seconds.items()}
    peaks = dict(zip(seconds, (10, 10, 90, 100, peak), strict=True))
    measured = Measured(cpu, cpu, peaks, dict.fromkeys(seconds, (8, 64.0)))
    return list(rows_of("mlp:M=64,h=64 on 4 ranks", {"megatron": FACTS}, measured))


@pytest.mark.parametrize(
    ("megatron", "peak", "verdicts"),
    [(1.9, 70, ["met"] * 3), (2.0, 71, ["missed", "met", "missed"])],
)
def test_targets_are_met_up_to_their_limit(megatron: float, peak: int, verdicts: list[str]) -> None:
    """CPU above the floor 0.45 and 0.5 of DTensor's, with the limit 0.45."""
    known = list(targets(rows(megatron, peak)))
    assert [line["result"] for line in known] == verdicts
    assert [line["metric"] for line in known] == ["CPU above the floor", "wall", "new memory"]


def test_a_plan_is_held_to_the_same_one_by_hand() -> None:
    """And not to the one that keeps its inputs, which sends less."""
    cpu = {"floor:rows": 1.0, "dtensor": 3.0, "dtensor-sp": 3.0, "megatron-sp by hand": 3.0,
           "megatron-sp by hand, kept": 2.0, "megatron-sp": 3.3}  # fmt: skip
    peaks = dict(zip(cpu, (1, 9, 9, 8, 9, 10), strict=True))
    sent = dict(
        zip(cpu, ((0, 0.0), *[(1, size) for size in (4.0, 4.0, 5.0, 4.0, 5.0)]), strict=True)
    )
    seconds = {name: [value] * 3 for name, value in cpu.items()}
    measured = Measured(seconds, seconds, peaks, sent)
    made = rows_of("mlp:M=1,h=1 on 4 ranks", {"megatron-sp": FACTS}, measured)
    lines = [line for line in targets(made) if line["wanted of"] == "megatron-sp"]
    assert [(line["metric"], line["measured"], line["result"]) for line in lines] == [
        ("CPU over the same by others", "1.10 [1.10, 1.10]", "missed"),
        ("wall over the same by others", "1.10 [1.10, 1.10]", "missed"),
        ("new memory over the same by others", "1.25 [1.25, 1.25]", "missed"),
        ("sent over the same by others", "1.00 [1.00, 1.00]", "met"),
    ]


def test_the_page_has_each_contender() -> None:
    left_out = LeftOut("mlp:M=64,h=64 on 4 ranks", "3d", "4 is no cube")
    measured: list[ContenderRow | LeftOut] = [*rows(2.0, 70), left_out]
    options = {"batch": True, "rounds": 3}
    stored = BenchRun[ContenderRow | LeftOut](options, load(19.0), {"mlp": [measured]})
    text = page(stored)
    assert "Floor: `floor:columns`." in text
    assert "Left out: 4 is no cube." in text
    assert "gloo, float32, 3 rounds, all ranks under SCHED_BATCH." in text
    assert "The machine was loaded, so times are no evidence for or against a target." in text
    assert "\n| megatron | 2000.00 | 2000.00 | 0.50 [0.50, 0.50] | " in text


@long
def test_a_run_on_two_ranks_is_checked_timed_and_counted(tmp_path: Path) -> None:
    out = tmp_path / "run.json"
    options = ["--ranks", "2", "--problem", "mlp:M=32,h=16", "--rounds", "2", "--plan", "megatron",
               "--plan", "megatron-sp"]  # fmt: skip
    done = run(*options, "--out", str(out), program=lambda: bench(executor), name="executor")
    assert (done.code, done.err) == (0, "")
    stored = load_run(out, ContenderRow, LeftOut)
    by_name = {row.name: row for row in stored.measured if isinstance(row, ContenderRow)}
    assert set(by_name) == {
        "floor:columns", "floor:rows", "ddp", "fsdp2", "dtensor", "dtensor-sp", "megatron by hand",
        "megatron-sp by hand", "megatron-sp by hand, kept", "megatron", "megatron-sp",
    }  # fmt: skip
    assert all(len(row.cpu) == len(row.wall) == 2 for row in by_name.values())
    floors = [by_name["floor:columns"], by_name["floor:rows"]]
    assert all((floor.sent, floor.collectives) == (0, 0) for floor in floors)
    assert max(min(floor.cpu) for floor in floors) < min(by_name["dtensor"].cpu)
    # Two all-reduces of M h elements of 4 bytes, each 2 (g - 1) / g of it on each of 2 ranks.
    same = [by_name[name].sent for name in ("dtensor", "megatron by hand", "megatron")]
    assert same == [2 * 32 * 16 * 4 * 2] * 3
    # Of five collectives, each half an all-reduce, one is the second gather of the input.
    twice = [by_name[name].sent for name in ("megatron-sp by hand", "megatron-sp")]
    assert twice == [same[0] * 5 / 4] * 2
    assert by_name["megatron-sp by hand, kept"].sent == same[0]
    assert all(row.peak > 0 for row in by_name.values())
