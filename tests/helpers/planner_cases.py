"""Clusters and models for the tests of the planner."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import msgspec

from primepar.models.config import ModelConfig
from primepar.plan.cluster import Cluster, Link, Rate
from primepar.plan.cost.linear import Training
from primepar.plan.cost.links import ClusterLinks
from primepar.plan.plan import Plan
from primepar.plan.search import row
from primepar.plan.simulator.run import Simulation
from primepar.plan.simulator.step import simulate_equal_layers

SMALL = ModelConfig.of("opt", hidden=64, heads=8, layers=2, context=32, vocabulary=96)
UNTIED = ModelConfig.of("gpt", hidden=64, heads=8, layers=3, context=32, vocabulary=96)
BLOOM = ModelConfig.of("bloom", hidden=64, heads=8, layers=1, context=32, vocabulary=96)


def cluster(
    *links: Link, devices: int = 0, seconds: float = 0.0, overlap: bool = True, memory: float = 1e12
) -> Cluster:
    """Devices that compute in no time, except for `seconds` to launch an operation."""
    return Cluster(
        name="test", nodes=1, devices_per_node=devices or links[-1].joins, memory=memory,
        memory_bandwidth=1e300, launch=seconds, overlap=overlap,
        rates=dict.fromkeys(("float32", "bfloat16"), Rate(1e300, 1e300)), links=links,
    )  # fmt: skip


def byte_a_second(bits: int, batch: int = 4, positions: int = 8) -> Training:
    """Devices that only transfer, a byte a second each: the seconds of a step are its bytes."""
    links = ClusterLinks(cluster(Link(1 << max(1, bits), 0.0, 1.0, False)), bits)
    return Training(links, "float32", batch, positions)


@contextmanager
def simulated_once() -> Iterator[None]:
    """Simulate every step once, however often a planner asks; memory changes no simulation."""
    known: dict[bytes, Simulation] = {}

    def once(plan: Plan, batch: int, positions: int, where: Cluster, dtype: str) -> Simulation:
        machine = msgspec.structs.replace(where, memory=1.0)
        key = msgspec.json.encode((plan, batch, positions, machine, dtype))
        if key not in known:
            known[key] = simulate_equal_layers(plan, batch, positions, where, dtype)
        return known[key]

    with patch.object(row, "simulate_equal_layers", once):
        yield


TWO_LEVELS = Cluster(
    name="two levels", nodes=4, devices_per_node=4, memory=1e9, memory_bandwidth=1e10,
    launch=1e-6, overlap=True, rates={"float32": Rate(2e10, 1e10)},
    links=(Link(4, 1e-6, 1e9, False), Link(16, 5e-6, 2e8, True)),
)  # fmt: skip
