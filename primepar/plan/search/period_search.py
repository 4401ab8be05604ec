"""Plans for local SGD: how many replicas, and the plan of one, for a period between averages.

For each number of replicas the search finds the plan of one replica on its devices and its share of
the batch. A step of all replicas and an average are then simulated. With a longer period an average
costs less per step, so that more replicas on fewer devices each can be faster.
"""

from __future__ import annotations

from dataclasses import dataclass

from primepar.errors import PlanError
from primepar.models import ModelConfig
from primepar.plan.cluster import Cluster
from primepar.plan.plan import Plan
from primepar.plan.search.planner import Planner
from primepar.plan.search.search import search
from primepar.plan.simulator.period import PeriodSimulation, simulate_period


@dataclass(frozen=True)
class PeriodPlan:
    """A plan whose replicas are averaged, and its simulated time."""

    plan: Plan
    run: PeriodSimulation


def plans_for_period(
    model: ModelConfig,
    cluster: Cluster,
    devices: int,
    batch: int,
    period: int,
    dtype: str | None = None,
) -> list[PeriodPlan]:
    """Return a plan for each number of replicas, the fastest first.

    Replicas are two or more, and divide `devices`, a power of two, and `batch`, the sequences of a
    step. Whether a replica fits the memory of its devices is not asked. `dtype` is by default the
    first that the cluster has. Raises `PlanError` if no number of replicas fits, and what the
    search and `simulate_period` raise.
    """
    kind = dtype or next(iter(cluster.rates))
    plans = []
    for count in range(2, devices + 1):
        if devices % count or batch % count:
            continue
        inner = search(Planner.of(model, cluster, devices // count, batch // count, kind))
        sequences = {name: _with_replicas(count, text) for name, text in inner.sequences.items()}
        plan = Plan(model=model, ranks=devices, batch=batch, sequences=sequences)
        run = simulate_period(plan, batch, model.context, cluster, kind, period)
        plans.append(PeriodPlan(plan, run))
    if not plans:
        raise PlanError(
            f"batch: expected a multiple of two or more replicas that divide {devices} devices, "
            f"got {batch}: take an even number of both"
        )
    return sorted(plans, key=lambda plan: plan.run.seconds)


def _with_replicas(count: int, sequence: str) -> str:
    """The sequence of all devices: the rows are cut into replicas first."""
    return f"M{count},{sequence}" if sequence else f"M{count}"
