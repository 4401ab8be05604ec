"""The plan with the least redundant memory, by either solver; the fastest of equal ones."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, inf

from primepar.errors import PlanError
from primepar.models.config import ModelConfig
from primepar.plan.cluster import Cluster
from primepar.plan.redundancy.cost import Redundancy, tick
from primepar.plan.redundancy.dynamic_program import cheapest_choices
from primepar.plan.redundancy.integer_program import CostBound, solve
from primepar.plan.redundancy.option_graph import Graph, undominated
from primepar.plan.search.planner import Planner
from primepar.plan.search.result import SearchResult

MOST_DEVICES = 64
"""Maximum number of devices for which all pairs of sequences are compared."""


@dataclass(frozen=True)
class Least:
    """What a solver found: a plan, and a lower bound for all plans.

    `redundant` is bytes of a device beyond its share; no plan within the bounds has less than
    `bound`. With `proved` the two are equal, or, where `result` is None, no plan is within the
    bounds. `columns` is the number of variables of the integer program, 0 for the dynamic program.
    """

    result: SearchResult | None
    redundant: float
    bound: float
    proved: bool
    columns: int = 0

    @property
    def gap(self) -> float:
        """The largest part of the redundant bytes that a better plan could save."""
        return max(0.0, 1 - self.bound / self.redundant) if self.redundant else 0.0


@dataclass(frozen=True)
class Within:
    """Bounds: the longest step in seconds, and the bytes of a device."""

    seconds: float = inf
    memory: float = inf


def least(planner: Planner, within: Within | None = None, timeout: float = inf) -> Least:
    """The least redundancy within the bounds by the integer program, in `timeout` seconds at most.

    The planner must be made with `tradeoffs`. Dominated options are left out first. Raises
    `PlanError` for too many devices.
    """
    redundancy, within = _of(planner), within or Within()
    graph, unit = _with_time(redundancy)
    graphs, bounds, peaks = [graph], list[CostBound](), None
    if within.seconds < inf:
        bounds.append(CostBound(redundancy.seconds, within.seconds))
    if within.memory < inf:
        peaks = redundancy.running
        bounds.append(CostBound(redundancy.kept, within.memory, peaks))
    planner.tick("dominated options")
    kept = undominated([*graphs, *(bound.graph for bound in bounds)], peaks)
    few = [bound.only(kept) for bound in bounds]
    planner.tick("integer program")
    answer = solve(graph.only(kept), few, timeout, unit)
    if answer.choices is None:
        return Least(None, inf, max(0.0, answer.bound), answer.proved, answer.columns)
    choices = {name: int(kept[name][number]) for name, number in answer.choices.items()}
    redundant = redundancy.bytes.cost(choices)
    bound = max(0.0, unit * ceil(answer.bound / unit - 0.5)) if answer.bound > -inf else 0.0
    proved = answer.proved and bound >= redundant
    return Least(
        SearchResult(planner, redundant, choices), redundant, bound, proved, answer.columns
    )


def least_by_search(planner: Planner) -> Least:
    """The least redundancy by the segmented dynamic program; needs `tradeoffs` too."""
    redundancy = _of(planner)
    graph, _ = _with_time(redundancy)
    choices = cheapest_choices(graph, redundancy.tied)
    redundant = redundancy.bytes.cost(choices)
    return Least(SearchResult(planner, redundant, choices), redundant, redundant, proved=True)


def least_of_block(
    model: ModelConfig, cluster: Cluster, devices: int, batch: int, dtype: str | None = None
) -> Least:
    """The least redundancy of one block of a model in the paper's space."""
    block = replace(model, layers=1)
    planner = Planner.of(block, cluster, devices, batch, dtype, "paper", tradeoffs=True,
                         part="blocks")  # fmt: skip
    return least(planner)


def _of(planner: Planner) -> Redundancy:
    devices = planner.training.links.devices
    if devices > MOST_DEVICES:
        raise PlanError(
            f"expected at most {MOST_DEVICES} devices for a plan with the least redundancy, got "
            f"{devices}: plan fewer, or for the least time"
        )
    return Redundancy(planner)


def _with_time(redundancy: Redundancy) -> tuple[Graph, float]:
    """Redundant bytes with time as a tie-break, and the unit of bytes.

    The longest possible step weighs half a unit, so that time never outweighs bytes.
    """
    unit, seconds = tick(redundancy.bytes), redundancy.seconds
    slowest = sum(float(costs.max()) for costs in (*seconds.nodes.values(),
                                                   *seconds.edges.values()))  # fmt: skip
    weight = unit / (2 * slowest) if slowest else 0.0
    return redundancy.bytes.plus(weight, seconds), unit
