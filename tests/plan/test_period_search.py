"""The planner with a period: how many replicas, and the plan of each."""

from __future__ import annotations

import pytest

from primepar.errors import ClusterError, ConfigError, PlanError
from primepar.models import GPTConfig
from primepar.plan.cluster import load_cluster
from primepar.plan.replicas import replicas_of
from primepar.plan.search.period_search import plans_for_period
from primepar.plan.search.planner import Planner
from primepar.plan.search.search import search

MODEL = GPTConfig(layers=2, hidden=128, heads=4, context=32, vocabulary=256)
CLUSTER = load_cluster("v100-8x4")


def test_a_longer_period_makes_more_replicas_faster() -> None:
    counts = {}
    for period in (1, 64):
        plans = plans_for_period(MODEL, CLUSTER, 8, 8, period)
        counts[period] = [plan.run.replicas for plan in plans]
        seconds = [plan.run.seconds for plan in plans]
        assert seconds == sorted(seconds)
        assert all(plan.run.period == period for plan in plans)
    assert counts == {1: [4, 8, 2], 64: [8, 4, 2]}


def test_a_replica_has_the_plan_that_is_searched_for_its_devices() -> None:
    for planned in plans_for_period(MODEL, CLUSTER, 4, 4, 2):
        replicas = replicas_of(planned.plan)
        size, share = 4 // replicas.count, 4 // replicas.count
        alone = search(Planner.of(MODEL, CLUSTER, size, share, "float32"))
        assert replicas.plan.sequences == alone.sequences
        assert (replicas.plan.ranks, replicas.plan.batch) == (size, share)


def test_sizes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(PlanError) as caught:
        plans_for_period(MODEL, CLUSTER, 8, 3, 2)
    assert str(caught.value) == (
        "batch: expected a multiple of two or more replicas that divide 8 devices, got 3: take an "
        "even number of both"
    )
    with pytest.raises(ConfigError) as wrong:
        plans_for_period(MODEL, CLUSTER, 2, 2, 0)
    assert str(wrong.value) == "--average-every: expected 1 or more, got 0"
    with pytest.raises(ClusterError):
        plans_for_period(MODEL, CLUSTER, 6, 6, 2)
