"""Lower bounds of the cost of plans with each choice: edges that skip nodes are left out.

No edge has a negative cost. So the cheapest path through a choice, along the chain alone, costs no
more than any plan with that choice. A choice whose bound is above the cost of a known plan is in no
better plan. This is ours.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from collections.abc import Sequence as Several
from typing import NamedTuple

import numpy as np

from primepar.plan.search.segments import Choices, Matrix, Vector

TICK = 1e-12
"""Seconds to which partial sums are rounded down, so that equal layers have equal costs."""


class ChainLink(NamedTuple):
    """The next node of a chain: its cost, and the edge from the previous node.

    Links with equal keys are equal.
    """

    key: Hashable
    edge: Matrix
    node: Vector


def bounds(start: Vector, chain: Several[ChainLink]) -> list[Vector]:
    """For each node, a lower bound of the cost of all paths through each of its choices."""
    before = _along(start, chain, _reached)
    after = _along(0 * before[-1][1], chain[::-1], _ahead)
    return [
        reached + ahead + (low + high)
        for (low, reached), (high, ahead) in zip(before, reversed(after), strict=True)
    ]


def cheapest_way(start: Vector, chain: Several[ChainLink]) -> Choices:
    """The choices of the cheapest path along the chain."""
    *before, (_, last) = _along(start, chain, _reached)
    choices = [int(last.argmin())]
    for (_, cost), link in zip(reversed(before), reversed(chain), strict=True):
        choices.append(int((cost + link.edge[:, choices[-1]]).argmin()))
    return tuple(reversed(choices))


def _along(
    cost: Vector, chain: Iterable[ChainLink], step: Callable[[Vector, ChainLink], Vector]
) -> list[tuple[float, Vector]]:
    """After each link, the least cost of all its choices, and what each choice costs above that.

    After a few layers the differences repeat from layer to layer; repeated steps are looked up.
    """
    stepped: dict[object, Vector] = {}
    common, costs = 0.0, [(0.0, cost)]
    for link in chain:
        least = float(cost.min())
        common += least
        excess = np.floor((cost - least) / TICK) * TICK
        key = link.key, excess.tobytes()
        if key not in stepped:
            stepped[key] = step(excess, link)
        cost = stepped[key]
        costs.append((common, cost))
    return costs


def _reached(cost: Vector, link: ChainLink) -> Vector:
    reached: Vector = (cost[:, None] + link.edge).min(axis=0) + link.node
    return reached


def _ahead(cost: Vector, link: ChainLink) -> Vector:
    ahead: Vector = (link.edge + (link.node + cost)).min(axis=1)
    return ahead
