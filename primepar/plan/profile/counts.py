"""What the cost model counts for an operator on one device: launches, operations and bytes.

No formula is duplicated: the cost model is evaluated on clusters where one of them takes a second
each and the others take no time.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from primepar.models.config import ModelConfig
from primepar.models.graph import Operator
from primepar.plan.cluster import Cluster, Link, Passing, Rate
from primepar.plan.cost.candidate import Spread
from primepar.plan.cost.layouts import Layouts
from primepar.plan.cost.linear import Training
from primepar.plan.cost.links import ClusterLinks
from primepar.plan.cost.local_operators import LocalOperatorCost, Lookup, embedding_cost


@dataclass(frozen=True)
class Counts:
    """Launches, operations of products, bytes through a device's memory, and scores."""

    starts: float = 0.0
    operations: float = 0.0
    bytes: float = 0.0
    scores: float = 0.0
    """Of queries with keys, as often as attention passes them."""


def counts(model: ModelConfig, operator: Operator, batch: int, dtype: str) -> Counts:
    """Counts of one training step of an operator that is not linear, on one device."""
    clusters = _cluster(launch=1), _cluster(rate=1), _cluster(bandwidth=1), _cluster(scores=1)
    return Counts(*(_seconds(model, operator, batch, dtype, cluster) for cluster in clusters))


def _cluster(
    launch: float = 0, rate: float = inf, bandwidth: float = inf, scores: float = inf
) -> Cluster:
    return Cluster(
        name="one device",
        nodes=1,
        devices_per_node=1,
        memory=inf,
        memory_bandwidth=bandwidth,
        launch=launch,
        overlap=False,
        rates={dtype: Rate(inf, rate) for dtype in ("float64", "float32", "float16", "bfloat16")},
        links=(Link(1, 0, inf, False),),
        operators={"attention": Passing(launch, bandwidth, scores)},
    )


def _seconds(
    model: ModelConfig, operator: Operator, batch: int, dtype: str, cluster: Cluster
) -> float:
    training = Training(ClusterLinks(cluster, 0), dtype, batch, model.context)
    layouts = Layouts(training.links)
    whole = layouts.number(Spread.whole())
    assert whole is not None, "one device holds everything"
    if operator.kind == "embedding":
        return embedding_cost(training, model, layouts, Lookup(whole, whole, ())).seconds
    return LocalOperatorCost(training, model, layouts, operator, whole).cost.seconds
