"""The benchmark of published runs: its rows are those of the papers, its constants are the best."""

from __future__ import annotations

from statistics import mean

import pytest

from benchmarks.bench import text
from benchmarks.external import CONSTANTS, PEAK, RUNS, LayerMemory, best_constant, cluster, measure

PRINTED = {"22B": (41.5, 29.0), "175B": (51.4, 31.8), "530B": (56.0, 29.7), "1T": (56.3, 32.1)}
"""Model FLOPs utilization and throughput increase of Table 5 of 2205.05198, in percent."""
PETAFLOPS = (4.4, 8.8, 18.2, 34.6, 70.8, 143.8, 227.1, 297.4, 410.2, 502.0)
"""Aggregate rates of Table 1 of 2104.04473."""


@pytest.mark.parametrize("name", PRINTED)
def test_the_rows_of_korthikanti_have_the_printed_utilization_and_increase(name: str) -> None:
    full, present = (
        next(run for run in RUNS if run.name == f"{name} {way}") for way in ("full", "present")
    )
    utilization, increase = PRINTED[name]
    part = present.operations / (PEAK * present.seconds * present.devices)
    assert 100 * part == pytest.approx(utilization, abs=0.35)
    assert 100 * (full.seconds / present.seconds - 1) == pytest.approx(increase, abs=0.15)


def test_the_rows_of_narayanan_have_the_printed_aggregate_rate() -> None:
    rows = [run for run in RUNS if run.paper == "Narayanan"]
    for run, petaflops in zip(rows, PETAFLOPS, strict=True):
        assert run.executed / run.seconds / 1e15 == pytest.approx(petaflops, rel=0.015)


def test_the_cluster_has_more_nodes_of_the_shipped_one() -> None:
    assert cluster(128).devices == max(run.devices for run in RUNS) == 3072
    assert cluster(160).rate("float16").products == cluster(96).rate("float16").products


def test_no_constant_is_better_than_the_printed_one() -> None:
    for operations in CONSTANTS.values():
        part, errors = best_constant(RUNS, operations)
        for near in (0.97, 1.03):
            shifted = [run.seconds_at(operations(run), part * near) / run.seconds - 1
                       for run in RUNS]  # fmt: skip
            assert mean(map(abs, errors)) <= mean(map(abs, shifted))


def test_the_tables() -> None:
    lines = text([measure(RUNS[0])]).splitlines()
    assert lines[1].split()[:2] == ["Korthikanti", "22B"]
    assert lines[3].startswith("predicted: ")
    row = LayerMemory("22B", "full recomputation", 2.0, 1.0, 4.0, 5.0)
    assert text([row]).splitlines()[1].split() == [
        "22B", "full", "recomputation", "2.000", "-1.000", "+4.000", "5.000", "+150.0%", "+0.00%",
    ]  # fmt: skip
