"""The benchmark of predicted against measured steps: its plans, their order, its table."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import predicted_and_measured as bench
from primepar.plan.cluster import load_cluster

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"


def test_all_six_plans_are_predicted_and_none_is_faster_than_the_planners() -> None:
    cluster = load_cluster("h200-8")
    plans = bench.plans(cluster)
    assert list(plans) == ["the planner's", *bench.WRITTEN]
    assert len(plans) == 6
    predicted = [bench.predicted(cluster, plan) for plan in plans.values()]
    assert bench.ranks(predicted)[0] == 1
    assert len(set(predicted)) == 6
    assert bench.simulated(cluster, plans["data"]) > 0


@pytest.mark.parametrize(
    ("other", "tau"), [((1.0, 2.0, 3.0), 1.0), ((3.0, 2.0, 1.0), -1.0), ((1.0, 3.0, 2.0), 1 / 3)]
)
def test_kendalls_tau(other: tuple[float, ...], tau: float) -> None:
    assert bench.kendall((4.0, 5.0, 6.0), other) == pytest.approx(tau)


def test_the_table_has_the_fastest_first_and_says_how_far_the_order_agrees() -> None:
    rows = [bench.TimedPlan("slow", 0.2, 0.1, 0.4), bench.TimedPlan("fast", 0.1, 0.2, 0.1)]
    assert bench.table(rows).splitlines() == [
        "plan              predicted ms  #   simulated ms  #    measured ms  #",
        "fast                     100.0  1          200.0  2          100.0  1",
        "slow                     200.0  2          100.0  1          400.0  2",
        "",
        "predicted: Kendall's tau +1.00; measured over predicted 1.50 (median)",
        "simulated: Kendall's tau -1.00; measured over simulated 2.25 (median)",
    ]


def test_no_rounds_are_refused_in_one_line() -> None:
    command = [sys.executable, str(BENCHMARKS / "predicted_and_measured.py"), "--rounds", "0"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == (
        "predicted_and_measured.py: error: --rounds: expected 1 or more, got 0"
    )
