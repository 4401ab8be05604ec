"""The splits of devices into stages, replicas and devices of a replica that a model allows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from primepar.errors import PlanError
from primepar.models.config import ModelConfig
from primepar.plan.cluster import Cluster
from primepar.plan.pipeline.boundaries import Split
from primepar.plan.search.search import EXACT


def all_splits(model: ModelConfig, cluster: Cluster, devices: int, batch: int) -> Iterator[Split]:
    """All splits of some devices that the layers and the batch allow.

    A replica of a stage has a power of two of devices, at most `EXACT`, for which the search is
    exact. They fill groups of a level of links, or are a part of one.
    """
    for stages in divisors(devices):
        for replicas in divisors(devices // stages):
            parts = devices // (stages * replicas)
            if parts & (parts - 1) or parts > EXACT or not _is_even(cluster, parts):
                continue
            if stages <= model.layers and not batch % replicas:
                yield Split(stages, replicas, parts)


def _is_even(cluster: Cluster, parts: int) -> bool:
    joins = [link.joins for link in cluster.links]
    return all(max(parts, size) % min(parts, size) == 0 for size in joins[:-1])


def no_split(model: ModelConfig, devices: int, batch: int) -> PlanError:
    """The error for devices that have no split."""
    power = 1 << devices.bit_length() - 1
    return PlanError(
        f"expected devices that are stages, at most {model.layers}, by replicas that divide the "
        f"batch of {batch}, by at most {EXACT} devices, a power of two, got {devices}: take "
        f"{power}, or another --batch"
    )


def divisors(number: int) -> Iterable[int]:
    """All divisors, the least first."""
    return (factor for factor in range(1, number + 1) if not number % factor)
