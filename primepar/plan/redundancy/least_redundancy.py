"""The plan with the least redundant memory, by either solver; of several, the fastest."""

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
"""Most devices for which all sequences of the operators are looked at, pair by pair."""


@dataclass(frozen=True)
class Least:
    """What a solver found: a plan, and what none goes below.

    `redundant` is bytes of a device beyond its share, and no plan within the bounds has less than
    `bound` of them. With `proved` the two are equal, or without a plan there is none. `columns` is
    the number of variables of the integer program, 0 for the dynamic program.
    """

    found: SearchResult | None
    redundant: float
    bound: float
    proved: bool
    columns: int = 0

    @property
    def gap(self) -> float:
        """How much of the redundant bytes may be saved at most, as a share of them."""
        return max(0.0, 1 - self.bound / self.redundant) if self.redundant else 0.0


@dataclass(frozen=True)
class Within:
    """Bounds: the longest step in seconds, and the most bytes of a device."""

    seconds: float = inf
    memory: float = inf


def least(planner: Planner, within: Within | None = None, timeout: float = inf) -> Least:
    """The least redundancy within the bounds by the integer program, in `timeout` seconds at most.

    The planner is made with `tradeoffs`. Options that others make needless are left out first.
    Raises `PlanError` for too many devices.
    """
    redundancy, within = _of(planner), within or Within()
    graph, unit = _with_time(redundancy)
    graphs, bounds, peaks = [graph], list[CostBound](), None
    if within.seconds < inf:
        bounds.append(CostBound(redundancy.seconds, within.seconds))
    if within.memory < inf:
        peaks = redundancy.running
        bounds.append(CostBound(redundancy.kept, within.memory, peaks))
    planner.tick("options that others make needless")
    kept = undominated([*graphs, *(each.graph for each in bounds)], peaks)
    few = [each.only(kept) for each in bounds]
    planner.tick("integer program")
    answer = solve(graph.only(kept), few, timeout, unit)
    if answer.choices is None:
        return Least(None, inf, max(0.0, answer.bound), answer.proved, answer.columns)
    choices = {name: int(kept[name][at]) for name, at in answer.choices.items()}
    redundant = redundancy.bytes.cost(choices)
    bound = max(0.0, unit * ceil(answer.bound / unit - 0.5)) if answer.bound > -inf else 0.0
    proved = answer.proved and bound >= redundant
    return Least(
        SearchResult(planner, redundant, choices), redundant, bound, proved, answer.columns
    )


def least_by_search(planner: Planner) -> Least:
    """The least redundancy by the segmented dynamic program; the planner is made so too."""
    redundancy = _of(planner)
    graph, _ = _with_time(redundancy)
    choices = cheapest_choices(graph, redundancy.tied)
    redundant = redundancy.bytes.cost(choices)
    return Least(SearchResult(planner, redundant, choices), redundant, redundant, proved=True)


def least_of_block(
    model: ModelConfig, cluster: Cluster, devices: int, batch: int, dtype: str | None = None
) -> Least:
    """The least redundancy of one block of a model, out of the paper's space, from nothing."""
    block = replace(model, layers=1)
    planner = Planner.of(block, cluster, devices, batch, dtype, "paper", tradeoffs=True,
                         part="blocks")  # fmt: skip
    return least(planner)


def _of(planner: Planner) -> Redundancy:
    devices = planner.training.wires.devices
    if devices > MOST_DEVICES:
        raise PlanError(
            f"expected at most {MOST_DEVICES} devices for a plan with the least redundancy, got "
            f"{devices}: plan fewer, or for the least time"
        )
    return Redundancy(planner)


def _with_time(redundancy: Redundancy) -> tuple[Graph, float]:
    """Redundant bytes with time as a tie-break, and the unit of bytes.

    The longest step there could be weighs half a unit, so that it never counts for a byte.
    """
    unit, seconds = tick(redundancy.bytes), redundancy.seconds
    slowest = sum(float(costs.max()) for costs in (*seconds.nodes.values(),
                                                   *seconds.edges.values()))  # fmt: skip
    weight = unit / (2 * slowest) if slowest else 0.0
    return redundancy.bytes.plus(weight, seconds), unit
