"""A plan that was searched and written trains as one device does."""

from __future__ import annotations

from pathlib import Path

import pytest
from partitioned_cases import SHAPES, difference
from planner_cases import TWO_LEVELS
from step_cases import BATCH, SMALL

from primepar.plan import load_plan, save_plan
from primepar.plan.planner import Planner
from primepar.plan.space import SpaceName
from primepar.plan.tradeoff import Tradeoff


@pytest.mark.parametrize("space", ["paper", "all"])
@pytest.mark.parametrize("family", SHAPES)
def test_written_plans_have_the_loss_and_gradients_of_one_device(
    family: str, space: SpaceName, tmp_path: Path
) -> None:
    model = SMALL[family]
    planner = Planner.of(model, TWO_LEVELS, 4, BATCH, None, space, tradeoffs=True)
    smallest = Tradeoff(planner).fastest(Tradeoff(planner).least_memory())
    assert smallest is not None
    for found in (Planner.of(model, TWO_LEVELS, 4, BATCH, None, space).search(), smallest):
        save_plan(found.plan, tmp_path / "plan.json")
        plan = load_plan(tmp_path / "plan.json")
        assert plan == found.plan
        assert difference(plan, BATCH, model.context) < 1e-9
