"""The price of a given plan, next to the best plan of a space."""

from __future__ import annotations

from collections.abc import Callable

from primepar.plan.cluster import Cluster
from primepar.plan.plan import Plan
from primepar.plan.search.best_within import best_for
from primepar.plan.search.explain import Explanation, explain
from primepar.plan.search.given_plan import Given
from primepar.plan.search.planner import Planner
from primepar.plan.search.sequence_space import SpaceName


def price_of(
    plan: Plan,
    cluster: Cluster,
    batch: int,
    dtype: str | None = None,
    space: SpaceName = "paper",
    tick: Callable[[str], object] = str,
) -> Explanation:
    """Explain a plan on a cluster, with what each operator takes more than in the best one.

    A step has `batch` sequences of the model's context. The best is within the memory of a device,
    where some plan is. Raises `ClusterError` for devices or a data type that the cluster has not,
    and `PlanError` for a batch that does not fit the plan.
    """
    plan.check_batch(batch, plan.model.context)
    plan.check_without_pipeline()

    def planner(tradeoffs: bool) -> Planner:
        return Planner.of(plan.model, cluster, plan.ranks, batch, dtype, space,
                          tradeoffs=tradeoffs, tick=tick)  # fmt: skip

    given = Given.with_sequences(planner(False), plan.sequences).result
    return explain(given, best=best_for(planner))
