"""A plan that was searched and written trains as one device does."""

from __future__ import annotations

from dataclasses import replace
from itertools import cycle
from pathlib import Path

import pytest
from partitioned_cases import SHAPES, difference, step
from planner_cases import TWO_LEVELS, cluster
from step_cases import BATCH, SMALL

from primepar.plan import load_plan, save_plan
from primepar.plan.cluster import Link
from primepar.plan.search.planner import Planner
from primepar.plan.search.search import search
from primepar.plan.search.sequence_space import SpaceName
from primepar.plan.search.within import WithinLimits


@pytest.mark.parametrize(
    ("family", "space"), list(zip(SHAPES, cycle(["paper", "all"]), strict=False))
)
def test_written_plans_have_the_loss_and_gradients_of_one_device(
    family: str, space: SpaceName, tmp_path: Path
) -> None:
    model = SMALL[family]
    planner = Planner.of(model, TWO_LEVELS, 4, BATCH, None, space)
    within = WithinLimits(planner)
    smallest = within.fastest(within.least_memory)
    assert smallest is not None
    for result in (search(planner), smallest):
        save_plan(result.plan, tmp_path / "plan.json")
        plan = load_plan(tmp_path / "plan.json")
        assert plan == result.plan
        assert difference(plan, BATCH, model.context) < 1e-9


@pytest.mark.parametrize("family", SHAPES)
def test_predicted_bytes_are_those_counted_where_nothing_is_redistributed(family: str) -> None:
    """A vocabulary that is cut evenly has no padding."""
    model = replace(SMALL[family], vocabulary=24)
    a_second = cluster(Link(4, 0.0, 1.0, False), overlap=False)
    result = search(Planner.of(model, a_second, 4, BATCH, None, "paper"))
    assert (
        sum(
            sum(result.planner.redistribution_seconds(name, result.choices))
            for name in result.choices
        )
        == 0
    )
    sent = step(result.plan, BATCH, model.context).sent
    assert result.seconds == pytest.approx(4 * float(max(sent)), rel=1e-12)
    assert len(set(sent)) == 1
