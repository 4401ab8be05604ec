"""Lower bounds of the cost of plans with each choice: edges that skip nodes are left out.

No edge has a negative cost. So the cheapest path through a choice, along the chain alone, costs no
more than any plan with that choice. A choice whose bound is above the cost of a known plan is in no
better plan. Equal layers are one run of links: after a few rounds the differences between choices
repeat, and all later rounds are known. This is ours.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from collections.abc import Sequence as Several
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from primepar.plan.search.segments import Matrix, Vector

TICK = 1e-12
"""Seconds to which partial sums are rounded down, so that equal layers have equal costs."""


class ChainLink(NamedTuple):
    """The next node of a chain: its cost, and the edge from the previous node."""

    edge: Matrix
    node: Vector


Step = Callable[[Vector, ChainLink], Vector]
"""Costs after a link, from those before it."""


class LinkRun(NamedTuple):
    """Links that follow one another `times` times."""

    links: Several[ChainLink]
    times: int


@dataclass
class _Walk:
    """The costs along one run: those of the first rounds, of which the last `period` repeat.

    A round has the costs of all choices before its first link and after each link, less `common`.
    In each period `common` grows by `growth`.
    """

    common: list[float] = field(default_factory=list)
    rounds: list[list[Vector]] = field(default_factory=list)
    period: int = 1
    growth: float = 0.0

    def at(self, number: int) -> tuple[int, float]:
        """Which of `rounds` a round equals, and its common cost."""
        excess = max(0, number - len(self.rounds) + 1)
        periods = -(-excess // self.period)
        place = number - periods * self.period
        return place, self.common[place] + periods * self.growth


def bounds(start: Vector, chain: Several[LinkRun]) -> list[Vector]:
    """Lower bounds of all paths through each choice: of the start, then by link of every run.

    For a run that repeats, the bound of a link is the least over its rounds.
    """
    before, _ = _walks(0.0, start, chain, _reached)
    end = chain[-1].links[-1].node
    backwards = [LinkRun(run.links[::-1], run.times) for run in reversed(chain)]
    after, (common, ahead) = _walks(0.0, np.zeros_like(end), backwards, _ahead)
    least = [start + ahead + common]
    for run, reached, left in zip(chain, before, reversed(after), strict=True):
        least += _through(run, reached, left)
    return least


def _through(run: LinkRun, reached: _Walk, left: _Walk) -> list[Vector]:
    """The least over all rounds of what is before plus what is ahead, for each link."""
    pairs: dict[tuple[int, int], float] = {}
    for number in range(run.times):
        (first, low), (second, high) = reached.at(number), left.at(run.times - 1 - number)
        pairs[first, second] = min(low + high, pairs.get((first, second), np.inf))
    return [
        np.min([before + after + common for (first, second), common in pairs.items()
                for before, after in [(reached.rounds[first][link + 1],
                                       left.rounds[second][len(run.links) - 1 - link])]], axis=0)
        for link in range(len(run.links))
    ]  # fmt: skip


def _walks(
    common: float,
    cost: Vector,
    chain: Several[LinkRun],
    step: Callable[[Vector, ChainLink], Vector],
) -> tuple[list[_Walk], tuple[float, Vector]]:
    """The walk along every run, and the common and further cost at the end."""
    walks = []
    for run in chain:
        walk, common, cost = _walk(common, cost, run, step)
        walks.append(walk)
    return walks, (common, cost)


def _walk(common: float, cost: Vector, run: LinkRun, step: Step) -> tuple[_Walk, float, Vector]:
    walk, known = _Walk(), dict[Hashable, int]()
    for number in range(run.times):
        least = float(cost.min())
        common, cost = common + least, np.floor((cost - least) / TICK) * TICK
        key = cost.tobytes()
        if key in known:
            walk.period, walk.growth = number - known[key], common - walk.common[known[key]]
            place, common = walk.at(run.times)
            return walk, common, walk.rounds[place][0]
        known[key] = number
        costs = [cost]
        for link in run.links:
            costs.append(step(costs[-1], link))
        walk.common.append(common)
        walk.rounds.append(costs)
        cost = costs[-1]
    return walk, common, cost


def _reached(cost: Vector, link: ChainLink) -> Vector:
    reached: Vector = (cost[:, None] + link.edge).min(axis=0) + link.node
    return reached


def _ahead(cost: Vector, link: ChainLink) -> Vector:
    ahead: Vector = (link.edge + (link.node + cost)).min(axis=1)
    return ahead
