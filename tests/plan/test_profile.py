"""`primepar profile`: a real one on two processes, one that is stopped, what is refused."""

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

CONFIG = str(Path(__file__).resolve().parents[2] / "docs" / "examples" / "config.json")


def test_two_processes_write_a_cluster_that_can_be_planned_on(tmp_path: Path) -> None:
    answers = on_ranks(2, cases.all_cases, tmp_path)
    assert [answer[:2] for answer in answers] == [(0, 128 + signal.SIGTERM)] * 2
    cluster = load_cluster(str(tmp_path / "whole.toml"))
    assert (cluster.devices, list(cluster.operators)) == (2, list(KINDS))
    text = (tmp_path / "whole.toml").read_text()
    assert text.startswith("# Measured by `primepar profile` on ")
    assert "#   all-reduce over bits 0: " in text
    done = run("plan", CONFIG, "--cluster", str(tmp_path / "whole.toml"), "--devices", "2")
    assert (done.code, done.err) == (0, "")
    assert [answer.name for answer in tmp_path.glob("*.toml")] == ["whole.toml"]
    # From the first start to the last end; or the work of both ranks on one core, or on two.
    calls = 2 * profile_clock.RUNS + 1 + profile_clock.TURNS
    assert {answer[2] for answer in answers} == {(11.0, 3.0, 1.5, calls)}
    assert [answer[3] for answer in answers] == [
        "profile: expected processes on one machine, got host0, host1: measure each on its own, "
        "and write the links between them into the file", "",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ((), "--output: expected a value, got none: write --output FILE (write the cluster file, "
         "cluster.toml)"),
        (("-o", "none/here.toml"),
         "--output none/here.toml: expected a folder that is there, got none: make it first"),
        (("-o", "here.toml", "--ranks", "3"),
         "--ranks: expected a power of two from 2 to 64 processes, got 3: take 2"),
        (("-o", "here.toml", "--ranks", "1"),
         "--ranks: expected a power of two from 2 to 64 processes, got 1: take 2"),
        (("-o", "here.toml", "--ranks", "1000"),
         "--ranks: expected a power of two from 2 to 64 processes, got 1000: take 64"),
        (("-o", "here.toml", "--dtype", "int8"),
         "--dtype: expected one of float32, float64, bfloat16, float16, got 'int8': see primepar "
         "profile --help"),
        (("-o", "here.toml", "opt-6.7b"),
         "expected no more arguments of primepar profile, got opt-6.7b: leave it out"),
        (("-o", "here.toml", "--json"),
         "--json: expected an option of primepar profile, got no such one: primepar profile --help "
         "lists them"),
    ],
)  # fmt: skip
def test_what_cannot_be_profiled_is_refused_in_one_line(
    options: tuple[str, ...], error: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = run("profile", *options)
    assert (done.code, done.err, done.out) == (2, f"primepar: error: {error}\n", "")
    assert list(tmp_path.iterdir()) == []


def test_a_plan_still_needs_its_model() -> None:
    done = run("plan")
    assert (done.code, done.err) == (
        2,
        "primepar: error: MODEL: expected a value, got none: write primepar plan MODEL (a "
        "config.json of Hugging Face, or the name of a published model, as opt-175b; or a plan, "
        "which is priced: plan.json, or a preset as megatron with --model)\n",
    )


def test_the_options_are_passed_to_the_processes() -> None:
    asked = Profile(output="a b.toml", ranks=2, dtype="float64", device="cpu")
    assert asked.arguments() == [
        "--output", "a b.toml", "--dtype", "float64", "--device", "cpu"
    ]  # fmt: skip
