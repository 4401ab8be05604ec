"""The benchmarks of published runs: rows have what the papers print, constants are the best."""

from __future__ import annotations

from statistics import median

import pytest

from benchmarks.bench import text
from benchmarks.published_ranks import measure as ranked
from benchmarks.published_ranks import seconds_by_term
from benchmarks.published_runs import (
    CONSTANTS,
    LayerMemory,
    PublishedRun,
    best_part,
    error_of,
    measure,
    priced,
    runs,
)

PRINTED = {"22B": (41.5, 29.0), "175B": (51.4, 31.8), "530B": (56.0, 29.7), "1T": (56.3, 32.1)}
"""Model FLOPs utilization and throughput increase of Table 5 of 2205.05198, in percent."""
UTILIZATIONS = {
    "Megatron-LM in MegaScale": (53.0, 44.7, 48.7, 41.2),
    "MegaScale": (65.3, 59.0, 59.1, 55.2),
    "Llama 3": (43, 41, 38),
    "torchtitan A100": (58.2, 51.7),
    "BLOOM": (149.02 / 3.12 * 3 / 4,),
}
"""Printed by other papers, in percent; BLOOM's teraflops with a second forward."""
PETAFLOPS = (4.4, 8.8, 18.2, 34.6, 70.8, 143.8, 227.1, 297.4, 410.2, 502.0)
"""Aggregate rates of Table 1 of 2104.04473."""


def of(paper: str) -> list[PublishedRun]:
    return [run for run in runs() if run.paper == paper]


@pytest.mark.parametrize("name", PRINTED)
def test_the_rows_of_korthikanti_have_the_printed_utilization_and_increase(name: str) -> None:
    full, present = (
        next(run for run in runs() if run.run == f"{name} {way}") for way in ("full", "present")
    )
    utilization, increase = PRINTED[name]
    part = present.operations / (present.peak * present.published)
    assert 100 * part == pytest.approx(utilization, abs=0.35)
    assert 100 * (full.published / present.published - 1) == pytest.approx(increase, abs=0.15)


@pytest.mark.parametrize("paper", UTILIZATIONS)
def test_the_rows_of_others_have_the_printed_utilization(paper: str) -> None:
    for run, printed in zip(of(paper), UTILIZATIONS[paper], strict=True):
        part = 100 * run.operations / (run.peak * run.published)
        assert part == pytest.approx(printed, rel=0.06), run


def test_the_rows_of_narayanan_have_the_printed_aggregate_rate() -> None:
    for run, petaflops in zip(of("Narayanan"), PETAFLOPS, strict=True):
        assert run.teraflops is not None
        assert run.teraflops * run.devices / 1e3 == pytest.approx(petaflops, rel=0.015)


def test_no_constant_is_better_than_the_printed_one() -> None:
    for operations in CONSTANTS.values():
        part = best_part(runs(), operations)
        best, *others = (
            median(abs(error_of(run, operations, part * near)) for run in runs())
            for near in (1.0, 0.9, 1.1)
        )
        assert best <= min(others)


def test_the_tables() -> None:
    lines = text([measure(runs()[0])]).splitlines()
    assert lines[1].split()[:2] == ["Korthikanti", "22B"]
    assert lines[4].startswith("all 1 runs: ")
    row = LayerMemory("22B", "full recomputation", 2.0, 1.0, 4.0, 5.0)
    assert text([row]).splitlines()[1].split() == [
        "22B", "full", "recomputation", "2.000", "-1.000", "+4.000", "5.000", "+150.0%", "+0.00%",
    ]  # fmt: skip


def test_a_published_layout_has_a_rank_among_the_splits() -> None:
    row = ranked(runs()[0])
    assert (row.layout, row.devices) == ("1 x 1 x 8", 8)
    assert 1 <= row.rank <= row.published <= row.splits + 1
    assert row.fastest < row.seconds
    known = priced(runs()[2])
    assert sum(seconds_by_term(known).values()) == pytest.approx(known.seconds)
