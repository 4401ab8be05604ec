"""Simulation of local SGD: steps of replicas by themselves, and averages of the replicas."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from primepar.errors import ConfigError
from primepar.operators.averaging import lower_average
from primepar.plan.cluster import Cluster
from primepar.plan.plan import Plan
from primepar.plan.replicas import replicas_of
from primepar.plan.simulator.run import Simulation, simulate
from primepar.plan.simulator.step import AskedChunks, simulate_step


@dataclass(frozen=True)
class PeriodSimulation:
    """A local step of every replica, and an average over all `replicas` after every `period`-th."""

    period: int
    replicas: int
    local: Simulation
    average: Simulation

    @property
    def seconds(self) -> float:
        """Seconds of a step, with its share of an average."""
        return float(self.local.seconds + self.average.seconds / self.period)

    @property
    def sent(self) -> Fraction:
        """Most bytes that a device sends in a step, with its share of an average."""
        return Fraction(max(self.local.sent)) + Fraction(max(self.average.sent)) / self.period


def simulate_period(
    plan: Plan,
    batch: int,
    positions: int,
    cluster: Cluster,
    dtype: str,
    period: int,
    chunks: AskedChunks = None,
) -> PeriodSimulation:
    """Simulate training under a plan whose replicas are averaged after every `period`-th step.

    A step has `batch` sequences of `positions` tokens in all. The replicas step at the same time,
    each on the next devices of the cluster, and share its links. `chunks` are those of
    `simulate_step`. Raises `ConfigError` for a period
    below 1, and `PlanError` for a plan without replicas.
    """
    if period < 1:
        raise ConfigError(f"--average-every: expected 1 or more, got {period}")
    replicas = replicas_of(plan)
    share = replicas.share(batch)
    local = simulate_step(
        replicas.plan, share, positions, cluster, dtype, chunks=chunks, copies=replicas.count
    )
    average = simulate(lower_average(replicas), cluster, dtype)
    return PeriodSimulation(period, replicas.count, local, average)
