"""`primepar profile`: a real one on two processes, one that is stopped, what is refused.

What is fitted to times: exact times give their coefficients back, and a cluster file.
"""

from __future__ import annotations

import signal
from pathlib import Path

import profile_cases as cases
import pytest
from command import run
from distributed_ranks import on_ranks

from primepar.distributed.profiling import clock as profile_clock
from primepar.distributed.profiling.measure import Profile
from primepar.plan.cluster import (
    KINDS,
    Collective,
    Passing,
    Ring,
    load_cluster,
    read_cluster,
)
from primepar.plan.profile import (
    MeasuredMachine,
    Sample,
    cluster_text,
    fit,
    growing,
    points_text,
)

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
        (("-o", "here.toml", "--ranks", "1000"),
         "--ranks: expected a power of two from 2 to 64 processes, got 1000: take 64"),
    ],
)  # fmt: skip
def test_what_cannot_be_profiled_is_refused_in_one_line(
    options: tuple[str, ...], error: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = run("profile", *options)
    assert (done.code, done.err, done.out) == (2, f"primepar: error: {error}\n", "")
    assert list(tmp_path.iterdir()) == []


def test_the_options_are_passed_to_the_processes() -> None:
    asked = Profile(output="a b.toml", ranks=2, dtype="float64", device="cpu")
    assert asked.arguments() == [
        "--output", "a b.toml", "--dtype", "float64", "--device", "cpu"
    ]  # fmt: skip


LAUNCH, RATE, MEMORY, LATENCY, BANDWIDTH = 3e-5, 4e10, 6e9, 5e-4, 7e8
REDUCE, GATHER = Ring(4e-4, 5e8), Ring(6e-4, 3e8)
SLOW = Passing(2e-4, 1e9)


def sample(what: str, size: int, counted: dict[str, float], **takes: float) -> Sample:
    """A sample that takes exactly what its counts cost."""
    seconds = sum(count * takes[name] for name, count in counted.items())
    return Sample(what, f"{size}", counted, seconds)


def exact() -> list[Sample]:
    """Times of a machine that follows the cost model exactly."""
    samples = []
    for size in (32, 64, 256, 512):
        counted = {"starts": 1.0, "operations": 2.0 * size**3, "bytes": 12.0 * size**2}
        samples.append(sample("product", size, counted, starts=LAUNCH, operations=1 / RATE,
                            bytes=1 / MEMORY))  # fmt: skip
        counted = {"starts": 1.0, "bytes": 8.0 * size**2}
        samples.append(sample("pass", size, counted, starts=1e-6, bytes=1 / MEMORY))
        counted = {"starts": 2.0, "operations": 5.0 * size, "bytes": 9.0 * size**2}
        samples.append(sample("attention", size, counted, starts=SLOW.launch, operations=1 / RATE,
                            bytes=1 / SLOW.memory_bandwidth))  # fmt: skip
        for members in (2, 4):
            for what, rounds, ring in (("all-reduce", 2, REDUCE), ("all-gather", 1, GATHER)):
                sent = rounds * size * (members - 1) / members
                counted = {"messages": rounds * (members - 1.0), "bytes": sent}
                samples.append(sample(what, size, counted, messages=ring.latency,
                                    bytes=1 / ring.bandwidth))  # fmt: skip
        counted = {"messages": 1.0, "bytes": float(size)}
        samples.append(sample("hop", size, counted, messages=LATENCY, bytes=1 / BANDWIDTH))
    return sorted(samples, key=lambda known: known.what)


def written(samples: list[Sample], hidden: float = 0.8) -> str:
    machine = MeasuredMachine("four processes", "a machine", "2026-01-01", 4, 10**9, "float32")
    return cluster_text(machine, samples, hidden)


def test_exact_times_give_the_coefficients_back() -> None:
    cluster = read_cluster(written(exact()))
    assert cluster.devices == cluster.links[0].joins == 4
    assert cluster.rate("float32").achieved == pytest.approx(RATE, rel=1e-3)
    assert cluster.launch == pytest.approx(LAUNCH, rel=1e-3)
    assert cluster.memory_bandwidth == pytest.approx(MEMORY, rel=1e-3)
    assert cluster.links[0].latency == pytest.approx(LATENCY, rel=1e-3)
    assert cluster.links[0].bandwidth == pytest.approx(BANDWIDTH, rel=1e-3)
    for coefficients, ring in ((cluster.links[0].line("all_reduce", 1), REDUCE),
                        (cluster.links[0].line("all_gather", 1), GATHER)):  # fmt: skip
        assert coefficients == pytest.approx(
            (ring.latency, ring.bandwidth, ring.bandwidth), rel=1e-3
        )
    assert cluster.passing("attention").launch == pytest.approx(SLOW.launch, rel=1e-3)
    assert cluster.passing("attention").memory_bandwidth == pytest.approx(1e9, rel=1e-3)
    assert cluster.passing("norm") == Passing(cluster.launch, cluster.memory_bandwidth)


def test_the_curves_give_the_measured_times_back() -> None:
    samples = exact()
    cluster = read_cluster(written(samples))
    rate, link = cluster.rate("float32"), cluster.links[0]
    assert sorted(link.curves) == ["all_gather", "all_reduce", "message"]
    assert sorted(link.curves["all_reduce"]) == sorted(link.curves["all_gather"]) == [2, 4]
    for known in samples:
        counted = known.counts
        if known.what == "product":
            seconds = rate.product().seconds(counted["operations"], 0)
        elif known.what in ("all-reduce", "all-gather"):
            rounds = 2 if known.what == "all-reduce" else 1
            group = round(counted["messages"]) // rounds + 1
            name: Collective = "all_reduce" if rounds == 2 else "all_gather"
            times = link.collective(name, group, counted["bytes"], 1)
            seconds = times.start + counted["bytes"] / times.alone
        else:
            continue
        assert seconds == pytest.approx(known.seconds, rel=1e-3)


def test_a_point_that_takes_as_long_as_a_larger_one_is_left_out() -> None:
    points = growing([(1e3, 2e-5), (1e4, 5e-5), (1e5, 4e-5), (1e6, 4e-4)])
    assert points == ((1e3, 5e7), (1e5, 2.5e9), (1e6, 2.5e9))
    assert points_text(points) == "[[1000, 5e+07], [100000, 2.5e+09], [1e+06, 2.5e+09]]"


@pytest.mark.parametrize(("hidden", "overlap"), [(-0.3, False), (0.49, False), (0.5, True)])
def test_transfers_overlap_where_half_of_one_is_hidden(hidden: float, overlap: bool) -> None:
    assert read_cluster(written(exact(), hidden)).overlap is overlap


def test_every_number_is_marked_as_measured_with_its_error() -> None:
    text = written(exact())
    assert text.count("off by 0% in the median, +0% at worst") + text.count("-0% at worst") == 7
    numbers = [line for line in text.splitlines() if " = " in line and "measured" not in line]
    assert numbers == ['name = "four processes"', "nodes = 1", "devices_per_node = 4",
                       "joins = 4", "shared = false"]  # fmt: skip


def test_short_times_count_as_much_as_long_ones() -> None:
    samples = [Sample("hop", "", {"messages": 1.0, "bytes": size}, 1e-3 + size * noise)
               for size, noise in ((1.0, 1e-9), (1e3, 1e-9), (1e9, 1.2e-9))]  # fmt: skip
    assert fit(samples).seconds["messages"] == pytest.approx(1e-3, rel=1e-3)


def test_what_would_take_less_than_nothing_takes_nothing() -> None:
    samples = [Sample("pass", "", {"starts": 1.0, "bytes": size}, 1e-9 * (size - 10))
               for size in (20.0, 1000.0)]  # fmt: skip
    fitted = fit(samples)
    assert fitted.seconds["starts"] == 0.0
    assert fitted.seconds["bytes"] > 0
    assert fitted.errors[0] > 0


def test_a_machine_whose_memory_takes_no_time_still_makes_a_file() -> None:
    samples = [
        Sample(measured.what, measured.size, measured.counts, 1e-4)
        if measured.what == "pass"
        else measured
        for measured in exact()
    ]
    cluster = read_cluster(written(samples))
    assert cluster.memory_bandwidth == pytest.approx(8 * 512**2 / 1e-4, rel=1e-3)
