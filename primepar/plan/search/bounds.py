"""What every choice of a chain costs at least: edges that pass over nodes are left out.

No edge costs less than nothing, so that the cheapest way through a choice along the chain alone
costs no more than any plan with it. A choice whose bound is above the cost of a plan that is known
is part of no better one. This is ours.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from collections.abc import Sequence as Several
from typing import NamedTuple

import numpy as np

from primepar.plan.search.segments import Choices, Matrix, Vector

TICK = 1e-12
"""Seconds to which sums are rounded down on their way, so that like layers come to cost alike."""


class ChainLink(NamedTuple):
    """The next node of a chain: its cost, and the edge from the node before.

    Links with one key are the same.
    """

    key: Hashable
    edge: Matrix
    node: Vector


def bounds(start: Vector, chain: Several[ChainLink]) -> list[Vector]:
    """For each node a cost that no way through each of its choices goes below."""
    before = _along(start, chain, _reached)
    after = _along(0 * before[-1][1], chain[::-1], _ahead)
    return [one + other + (low + high)
            for (low, one), (high, other) in zip(before, reversed(after), strict=True)]  # fmt: skip


def cheapest_way(start: Vector, chain: Several[ChainLink]) -> Choices:
    """The choices of the cheapest way along the chain."""
    *before, (_, last) = _along(start, chain, _reached)
    choices = [int(last.argmin())]
    for (_, cost), link in zip(reversed(before), reversed(chain), strict=True):
        choices.append(int((cost + link.edge[:, choices[-1]]).argmin()))
    return tuple(reversed(choices))


def _along(
    cost: Vector, chain: Iterable[ChainLink], step: Callable[[Vector, ChainLink], Vector]
) -> list[tuple[float, Vector]]:
    """After each link, what all of its choices cost, and each beyond that.

    Layers soon add the same to all choices, and are then taken from what is known.
    """
    known: dict[object, Vector] = {}
    common, found = 0.0, [(0.0, cost)]
    for link in chain:
        least = float(cost.min())
        common += least
        beyond = np.floor((cost - least) / TICK) * TICK
        key = link.key, beyond.tobytes()
        if key not in known:
            known[key] = step(beyond, link)
        cost = known[key]
        found.append((common, cost))
    return found


def _reached(cost: Vector, link: ChainLink) -> Vector:
    found: Vector = (cost[:, None] + link.edge).min(axis=0) + link.node
    return found


def _ahead(cost: Vector, link: ChainLink) -> Vector:
    found: Vector = (link.edge + (link.node + cost)).min(axis=1)
    return found
