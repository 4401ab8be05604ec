"""The price of a given plan, next to the best one."""

from __future__ import annotations

from collections.abc import Callable

from primepar.plan.cluster import Cluster
from primepar.plan.pipeline.explained_pipeline import explain_pipeline
from primepar.plan.pipeline.splits import Splits
from primepar.plan.pipeline.training_options import EXECUTED
from primepar.plan.plan import Plan
from primepar.plan.search.explain import Explanation, explain
from primepar.plan.search.given_plan import Given
from primepar.plan.search.planner import Planner
from primepar.plan.search.ranked import ComparedPlan, best_for, simulated
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

    A step has `batch` sequences of the model's context. The best is that of a space within the
    memory of a device, where some plan is. A plan with stages, micro-batches, shards or
    recomputation is compared with the best split into these. Raises `ClusterError` for devices or a
    data type that the cluster has not, and `PlanError` for a batch that does not fit the plan.
    """
    plan.check_batch(batch, plan.model.context)
    kind = dtype or next(iter(cluster.rates))
    has_options = plan.schedule is not None or plan.sharded_optimizer
    if has_options or plan.ranks & (plan.ranks - 1):
        splits = Splits(plan.model, cluster, plan.ranks, batch, kind, space, choices=EXECUTED,
                        tick=tick)  # fmt: skip
        return explain_pipeline(splits, plan, batch)

    planner = Planner.of(plan.model, cluster, plan.ranks, batch, kind, space, tick=tick,
                         posted=True)  # fmt: skip
    given = Given.with_sequences(planner, plan.sequences).result
    (asked,) = simulated([ComparedPlan("", given)])
    best, *others = best_for(planner)
    return explain(asked, (best, *others), best=best)
