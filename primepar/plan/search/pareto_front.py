"""Plans that none beats both in cost and in memory, of a chain whose segments have edges that pass.

Labels go along the chain: cost and bytes so far, the largest rest, and the choices that later edges
need. Of labels with the same choices only those stay that no other beats in all three. A label is
dropped too where no way on leads into the box (cost, memory) that is looked for: for some weights,
the least weighed sum of what lies ahead says so. This is ours; the paper has one objective.

Legend: N labels, P choices at the start of a segment, Q choices of a node.
"""

from __future__ import annotations

from collections.abc import Sequence as Several
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from primepar.plan.search.segments import Choice, Choices, Matrix, Vector

Bools: TypeAlias = NDArray[np.bool_]
WEIGHTS = 64
"""Most weights for which what lies ahead is bounded, and so plans with which a search begins."""
NEAREST = 6
"""Of these so many are asked of a label, those that say the most of a box."""
SLACK = 1e-12
"""Relative error of a bound, a sum of floating-point numbers in another order."""


class ChainNode(NamedTuple):
    """A node by its choices: cost, bytes that add up, the rest of which only the largest counts.

    `edge` is from the node before and `first` from the one at which the segment starts; `ends` says
    that the next segment starts here. The edge of the first node has one row.
    """

    cost: Vector
    kept: Vector
    rest: Vector
    edge: Matrix
    first: Matrix | None
    ends: bool

    @property
    def free(self) -> ChainNode:
        """The node where nothing costs."""
        return self._replace(cost=0 * self.cost, edge=0 * self.edge, first=None)


class FrontPoint(NamedTuple):
    """Choices of all nodes, with their cost and memory: what adds up and the largest rest."""

    cost: float
    kept: float
    memory: float
    choices: Choices


class Box(NamedTuple):
    """Most cost and most memory of the plans that are looked for."""

    cost: float
    memory: float


@dataclass(frozen=True, eq=False)
class _Ahead:
    """The least of cost_weight * cost + kept_weight * kept of what follows each node."""

    cost_weight: float
    kept_weight: float
    bounds: list[Matrix]

    @classmethod
    def of(cls, nodes: Several[ChainNode], cost_weight: float, kept_weight: float) -> _Ahead:
        own = np.zeros((1, len(nodes[-1].cost)))
        found = [own]
        for at, node in reversed(list(enumerate(nodes))):
            after = own + cost_weight * node.cost + kept_weight * node.kept
            if node.first is not None:
                after = after + cost_weight * node.first
            own = (cost_weight * node.edge + after[:, None]).min(axis=2)
            if at == 0 or nodes[at - 1].ends:
                own = (own.diagonal() if len(own) > 1 else own[0])[None]
            found.append(own)
        return cls(cost_weight, kept_weight, found[::-1])

    def room(self, box: Box) -> float:
        """By how much the box lies above the least sum of all, as a share."""
        most = self.cost_weight * box.cost + self.kept_weight * box.memory
        return most / max(float(self.bounds[0].min()), SLACK)

    def leads(self, at: int, labels: _Labels, box: Box) -> Bools:
        """Whether some way on from each label at a node may lead into the box."""
        bound = self.bounds[at + 1]
        sum_N = bound[labels.first_N if len(bound) > 1 else 0, labels.last_N]
        sum_N = sum_N + self.cost_weight * labels.cost_N + self.kept_weight * labels.kept_N
        kept_N = box.memory - labels.rest_N
        most_N = self.cost_weight * box.cost + self.kept_weight * kept_N
        found: Bools = sum_N <= most_N + SLACK * np.abs(sum_N)
        return found

    def best(self, nodes: Several[ChainNode]) -> Choices:
        """The choices with the least sum."""
        first, last, found = 0, 0, []
        for at, node in enumerate(nodes):
            cost = node.edge[last] + node.cost
            if node.first is not None:
                cost = cost + node.first[first]
            sums = self.cost_weight * cost + self.kept_weight * node.kept
            bound = self.bounds[at + 1]
            last = int((sums + bound[min(first, len(bound) - 1)]).argmin())
            first = last if node.ends else first
            found.append(last)
        return tuple(found)


@dataclass(frozen=True, eq=False)
class _Labels:
    """Ways to a node: choices at the segment's start and at the node, sums, and the way before."""

    first_N: Choice
    last_N: Choice
    cost_N: Vector
    kept_N: Vector
    rest_N: Vector
    before_N: Choice

    def only(self, which: Bools | Choice) -> _Labels:
        """Some of the labels."""
        return _Labels(*(each[which] for each in vars(self).values()))

    def over(self, node: ChainNode) -> _Labels:
        """Every label with every choice of the next node, (N, Q)."""
        cost_NQ = self.cost_N[:, None] + node.edge[self.last_N] + node.cost
        if node.first is not None:
            cost_NQ += node.first[self.first_N]
        kept_NQ = self.kept_N[:, None] + node.kept
        rest_NQ = np.maximum(self.rest_N[:, None], node.rest)
        before_N, last_Q = (np.arange(count) for count in cost_NQ.shape)
        return _Labels(self.first_N[:, None], last_Q[None], cost_NQ, kept_NQ, rest_NQ,
                       before_N[:, None])  # fmt: skip

    def where(self, which: Bools) -> _Labels:
        """Some of the labels that `over` has made."""
        before_N, last_N = np.nonzero(which)
        return _Labels(self.first_N[before_N, 0], last_N, self.cost_N[which], self.kept_N[which],
                       self.rest_N[which], before_N)  # fmt: skip

    def undominated(self) -> _Labels:
        """Of labels with the same choices those that no other beats in cost, sum and rest."""
        rests, rest_N = np.unique(self.rest_N, return_inverse=True)
        order = np.lexsort((rest_N, self.cost_N, self.kept_N, self.last_N, self.first_N))
        found, rest_N = self.only(order), rest_N[order]
        new_N = np.diff(found.first_N, prepend=-1) != 0
        new_N |= np.diff(found.last_N, prepend=-1) != 0
        _, rank_N = np.unique(found.cost_N, return_inverse=True)
        highest_N = len(order) - np.cumsum(new_N) * (len(order) + 1)
        falling_N = highest_N - len(order) + rank_N
        better_N = new_N.copy()
        for rest in range(len(rests)):
            own_N = np.where(rest_N <= rest, falling_N, highest_N)
            least_N = np.minimum.accumulate(own_N)[:-1]
            better_N[1:] |= (rest_N[1:] == rest) & (falling_N[1:] < least_N)
        return found.only(better_N)


@dataclass(frozen=True, eq=False)
class Chain:
    """A chain of nodes, the last of which ends a segment, with some plans of least weighed sums.

    With the weights of these plans what lies ahead is bounded.
    """

    nodes: Several[ChainNode]
    ahead: Several[_Ahead]
    near: Several[FrontPoint]

    @classmethod
    def of(cls, nodes: Several[ChainNode], bound: Box | None = None) -> Chain:
        """The chain, its plans on both sides of a bound, or without one all along the front."""
        ahead: list[_Ahead] = []
        near: list[FrontPoint] = []

        def add(cost_weight: float, kept_weight: float) -> FrontPoint:
            ahead.append(_Ahead.of(nodes, cost_weight, kept_weight))
            near.append(point(nodes, ahead[-1].best(nodes)))
            return near[-1]

        gaps = [(add(1.0, 0.0), add(0.0, 1.0))]
        while gaps and len(ahead) < WEIGHTS:
            fast, small = gaps.pop(int(np.argmax([_area(*gap) for gap in gaps])))
            if _area(fast, small) <= 0 or not _between(fast, small, bound):
                continue
            middle = add(fast.kept - small.kept, small.cost - fast.cost)
            if fast.kept > middle.kept > small.kept:
                gaps += [(fast, middle), (middle, small)]
        return cls(nodes, ahead, near)

    def within(self, box: Box) -> list[FrontPoint]:
        """Plans of which those in the box are all that no other there beats, the fastest first."""
        ahead = sorted(self.ahead, key=lambda each: each.room(box))[:NEAREST]
        rest = np.array([max(float(node.rest.min()) for node in self.nodes)])
        none, nothing = np.zeros(1, int), np.zeros(1)
        labels, ways = _Labels(none, none, nothing, nothing, rest, none), []
        for at, node in enumerate(self.nodes):
            every = labels.over(node)
            labels = every.where(ahead[0].leads(at, every, box))
            leads = (each.leads(at, labels, box) for each in ahead[1:])
            labels = labels.only(np.logical_and.reduce([np.ones(len(labels.last_N), bool), *leads]))
            if node.ends:
                labels = replace(labels, first_N=np.zeros_like(labels.last_N))
            labels = labels.undominated()
            ways.append((labels.last_N, labels.before_N))
            if node.ends:
                labels = replace(labels, first_N=labels.last_N)
        ends = unbeaten(labels.cost_N, labels.kept_N + labels.rest_N)
        return [point(self.nodes, _choices(ways, end)) for end in ends.tolist()]


def point(nodes: Several[ChainNode], choices: Choices) -> FrontPoint:
    """The sums of a choice for every node."""
    cost, kept, rest, first, last = 0.0, 0.0, 0.0, 0, 0
    for node, own in zip(nodes, choices, strict=True):
        cost += float(node.edge[last, own] + node.cost[own])
        if node.first is not None:
            cost += float(node.first[first, own])
        kept, rest = kept + float(node.kept[own]), max(rest, float(node.rest[own]))
        first, last = own if node.ends else first, own
    return FrontPoint(cost, kept, kept + rest, choices)


def unbeaten(cost_N: Vector, memory_N: Vector) -> Choice:
    """Places of what nothing beats in cost and in memory, the least cost first."""
    order = np.lexsort((memory_N, cost_N))
    memory_N = memory_N[order]
    better_N = np.ones(len(order), bool)
    better_N[1:] = memory_N[1:] < np.minimum.accumulate(memory_N)[:-1]
    return order[better_N]


def _choices(ways: Several[tuple[Choice, Choice]], end: int) -> Choices:
    """The choices along a label's way, from its place at the end."""
    found = []
    for last_N, before_N in reversed(ways):
        found.append(int(last_N[end]))
        end = int(before_N[end])
    return tuple(found[::-1])


def _area(fast: FrontPoint, small: FrontPoint) -> float:
    return (small.cost - fast.cost) * (fast.kept - small.kept)


def _between(fast: FrontPoint, small: FrontPoint, bound: Box | None) -> bool:
    """Whether the bound parts two points, of which the first is faster and the second smaller."""
    if bound is None:
        return True
    parted = (fast.cost <= bound.cost < small.cost, small.memory <= bound.memory < fast.memory)
    return any(parted)
