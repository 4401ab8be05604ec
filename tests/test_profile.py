"""`primepar plan --profile`: a real one on two processes, one that is stopped, what is refused."""

from __future__ import annotations

import signal
from pathlib import Path

import profile_cases as cases
import pytest
from command import run
from distributed_ranks import on_ranks

from primepar.distributed.profiling import clock as profile_clock
from primepar.distributed.profiling.measure import Profile
from primepar.plan.cluster import KINDS, load_cluster

CONFIG = str(Path(__file__).resolve().parent.parent / "docs" / "examples" / "config.json")


def test_two_processes_write_a_cluster_that_can_be_planned_on(tmp_path: Path) -> None:
    answers = on_ranks(2, cases.all_cases, tmp_path)
    assert [each[:2] for each in answers] == [(0, 128 + signal.SIGTERM)] * 2
    cluster = load_cluster(str(tmp_path / "whole.toml"))
    assert (cluster.devices, list(cluster.operators)) == (2, list(KINDS))
    text = (tmp_path / "whole.toml").read_text()
    assert text.startswith("# Measured by `primepar plan --profile` on ")
    assert "#   all-reduce over bits 0: " in text
    said = run("plan", CONFIG, "--cluster", str(tmp_path / "whole.toml"), "--devices", "2")
    assert (said.code, said.err) == (0, "")
    assert [each.name for each in tmp_path.glob("*.toml")] == ["whole.toml"]
    # The slower clock of the two counts, once for each of the runs that the median is of.
    assert {each[2] for each in answers} == {(2.0, 2 + profile_clock.REPEATS)}
    assert [each[3] for each in answers] == [
        "--profile: expected processes on one machine, got host0, host1: measure each on its own, "
        "and write the links between them into the file", "",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ((), "--profile: expected a place for the cluster file, got none: write -o cluster.toml"),
        (("-o", "none/here.toml"),
         "--output none/here.toml: expected a folder that is there, got none: make it first"),
        (("-o", "here.toml", "--ranks", "3"),
         "--ranks: expected a power of two from 2 to 64 processes, got 3: take 2"),
        (("-o", "here.toml", "--ranks", "1"),
         "--ranks: expected a power of two from 2 to 64 processes, got 1: take 2"),
        (("-o", "here.toml", "--ranks", "1000"),
         "--ranks: expected a power of two from 2 to 64 processes, got 1000: take 64"),
        (("-o", "here.toml", "--dtype", "int8"),
         "--dtype: expected one of float32, float64, bfloat16, got 'int8'"),
        (("-o", "here.toml", "opt-6.7b"),
         "MODEL: expected none beside --profile, which measures this machine and plans nothing, "
         "got opt-6.7b: leave it out"),
        (("-o", "here.toml", "--devices", "4"),
         "--devices: expected none beside --profile, which measures this machine and plans "
         "nothing, got 4: leave it out"),
        (("-o", "here.toml", "--json"),
         "--json: expected none beside --profile, which measures this machine and plans nothing: "
         "leave it out"),
    ],
)  # fmt: skip
def test_what_cannot_be_profiled_is_refused_in_one_line(
    options: tuple[str, ...], error: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    said = run("plan", "--profile", *options)
    assert (said.code, said.err, said.out) == (2, f"primepar: error: {error}\n", "")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((), "MODEL: expected a value, got none: write primepar plan MODEL (a config.json as "
         "Hugging Face writes it, or a published model, as opt-175b)"),
        (("opt-6.7b", "--cluster", "h200-8"),
         "--devices: expected a value, got none: write --devices VALUE (devices of the plan, a "
         "power of two)"),
        (("opt-6.7b", "--cluster", "h200-8", "--devices", "4", "--ranks", "4"),
         "--ranks: expected none without --profile, which starts processes, got 4: leave it out"),
    ],
)  # fmt: skip
def test_a_plan_still_needs_its_model_cluster_and_devices(
    arguments: tuple[str, ...], error: str
) -> None:
    said = run("plan", *arguments)
    assert (said.code, said.err) == (2, f"primepar: error: {error}\n")


def test_the_processes_are_told_what_was_asked() -> None:
    asked = Profile(output="a b.toml", ranks=2, dtype="float64", device="cpu")
    assert asked.arguments() == [
        "--profile", "--output", "a b.toml", "--dtype", "float64", "--device", "cpu"
    ]  # fmt: skip
