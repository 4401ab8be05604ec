"""The Pareto front of cost and memory, by label setting along a chain of operators.

A label is a partial plan up to a node: its cost, its bytes that add up, its largest transient rest,
and the choices that later edges need. Of labels with equal choices only those stay that no other
dominates in all three. A label is also dropped where no completion can reach the box (cost, memory)
in which plans are sought. This is decided by lower bounds: for some weights, the least weighted sum
of cost and bytes over the rest of the chain. Example: labels (cost 3, 5 bytes) and (4, 6) have
equal choices and the same rest, so the second is dropped; (4, 4) would stay. This is ours; the
paper has one objective.

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
"""Maximum number of weights with lower bounds, and so of plans with which a search begins."""
NEAREST = 6
"""How many of the lower bounds are tested for each label: the tightest ones for a box."""
SLACK = 1e-12
"""Relative error of a bound, a sum of floating-point numbers in another order."""


class ChainNode(NamedTuple):
    """A node by its choices: cost, bytes that add up, and a rest of which only the maximum counts.

    `edge` is from the previous node and `first` from the node at which the segment starts. With
    `ends` the next segment starts here. The edge of the first node has one row.
    """

    cost: Vector
    kept: Vector
    rest: Vector
    edge: Matrix
    first: Matrix | None
    ends: bool

    @property
    def free(self) -> ChainNode:
        """The node with all costs 0."""
        return self._replace(cost=0 * self.cost, edge=0 * self.edge, first=None)


class FrontPoint(NamedTuple):
    """Choices of all nodes, with their cost and memory: the sum of `kept` plus the largest rest."""

    cost: float
    kept: float
    memory: float
    choices: Choices


class Box(NamedTuple):
    """Maximum cost and maximum memory of the plans that are sought."""

    cost: float
    memory: float


@dataclass(frozen=True, eq=False)
class _LowerBound:
    """The least cost_weight * cost + kept_weight * kept over the nodes after each node."""

    cost_weight: float
    kept_weight: float
    bounds: list[Matrix]

    @classmethod
    def of(cls, nodes: Several[ChainNode], cost_weight: float, kept_weight: float) -> _LowerBound:
        bound = np.zeros((1, len(nodes[-1].cost)))
        bounds = [bound]
        for index, node in reversed(list(enumerate(nodes))):
            after = bound + cost_weight * node.cost + kept_weight * node.kept
            if node.first is not None:
                after = after + cost_weight * node.first
            bound = (cost_weight * node.edge + after[:, None]).min(axis=2)
            if index == 0 or nodes[index - 1].ends:
                bound = (bound.diagonal() if len(bound) > 1 else bound[0])[None]
            bounds.append(bound)
        return cls(cost_weight, kept_weight, bounds[::-1])

    def slack(self, box: Box) -> float:
        """The weighted sum at the corner of the box, over the least sum of all plans."""
        most = self.cost_weight * box.cost + self.kept_weight * box.memory
        return most / max(float(self.bounds[0].min()), SLACK)

    def may_reach(self, index: int, labels: _Labels, box: Box) -> Bools:
        """Whether a completion of each label at a node may be in the box."""
        bound = self.bounds[index + 1]
        sum_N = bound[labels.first_N if len(bound) > 1 else 0, labels.last_N]
        sum_N = sum_N + self.cost_weight * labels.cost_N + self.kept_weight * labels.kept_N
        kept_N = box.memory - labels.rest_N
        most_N = self.cost_weight * box.cost + self.kept_weight * kept_N
        may_lead: Bools = sum_N <= most_N + SLACK * np.abs(sum_N)
        return may_lead

    def best(self, nodes: Several[ChainNode]) -> Choices:
        """The choices with the least weighted sum."""
        first, last, choices = 0, 0, []
        for index, node in enumerate(nodes):
            cost = node.edge[last] + node.cost
            if node.first is not None:
                cost = cost + node.first[first]
            sums = self.cost_weight * cost + self.kept_weight * node.kept
            bound = self.bounds[index + 1]
            last = int((sums + bound[min(first, len(bound) - 1)]).argmin())
            first = last if node.ends else first
            choices.append(last)
        return tuple(choices)


@dataclass(frozen=True, eq=False)
class _Labels:
    """Partial plans up to a node: choices at the segment's start and here, sums, predecessors."""

    first_N: Choice
    last_N: Choice
    cost_N: Vector
    kept_N: Vector
    rest_N: Vector
    before_N: Choice

    def only(self, which: Bools | Choice) -> _Labels:
        """Some of the labels."""
        return _Labels(*(values[which] for values in vars(self).values()))

    def over(self, node: ChainNode) -> _Labels:
        """Every label extended by every choice of the next node, (N, Q)."""
        cost_NQ = self.cost_N[:, None] + node.edge[self.last_N] + node.cost
        if node.first is not None:
            cost_NQ += node.first[self.first_N]
        kept_NQ = self.kept_N[:, None] + node.kept
        rest_NQ = np.maximum(self.rest_N[:, None], node.rest)
        before_N, last_Q = (np.arange(count) for count in cost_NQ.shape)
        return _Labels(self.first_N[:, None], last_Q[None], cost_NQ, kept_NQ, rest_NQ,
                       before_N[:, None])  # fmt: skip

    def where(self, which: Bools) -> _Labels:
        """Some of the labels made by `over`."""
        before_N, last_N = np.nonzero(which)
        return _Labels(self.first_N[before_N, 0], last_N, self.cost_N[which], self.kept_N[which],
                       self.rest_N[which], before_N)  # fmt: skip

    def undominated(self) -> _Labels:
        """Of labels with equal choices those that no other dominates in cost, bytes and rest.

        Labels are sorted by choices, then bytes, then cost. Within equal choices a label stays if
        its cost is below that of all earlier labels whose rest is no larger. That running minimum
        is taken once for each distinct rest. The offsets `highest_N` put every group below all
        earlier ones, so that one `minimum.accumulate` serves all groups.
        """
        rest_values, rest_N = np.unique(self.rest_N, return_inverse=True)
        order = np.lexsort((rest_N, self.cost_N, self.kept_N, self.last_N, self.first_N))
        ordered, rest_N = self.only(order), rest_N[order]
        new_N = np.diff(ordered.first_N, prepend=-1) != 0
        new_N |= np.diff(ordered.last_N, prepend=-1) != 0
        _, rank_N = np.unique(ordered.cost_N, return_inverse=True)
        highest_N = len(order) - np.cumsum(new_N) * (len(order) + 1)
        falling_N = highest_N - len(order) + rank_N
        better_N = new_N.copy()
        for rest in range(len(rest_values)):
            up_to_rest_N = np.where(rest_N <= rest, falling_N, highest_N)
            least_N = np.minimum.accumulate(up_to_rest_N)[:-1]
            better_N[1:] |= (rest_N[1:] == rest) & (falling_N[1:] < least_N)
        return ordered.only(better_N)


@dataclass(frozen=True, eq=False)
class Chain:
    """A chain of nodes, the last of which ends a segment, with plans of least weighted sums.

    `near` are these plans, `lower_bounds` the bounds of their weights.
    """

    nodes: Several[ChainNode]
    lower_bounds: Several[_LowerBound]
    near: Several[FrontPoint]

    @classmethod
    def of(cls, nodes: Several[ChainNode], bound: Box | None = None) -> Chain:
        """The chain with plans on both sides of `bound`; without a bound, along the whole front.

        Weights are chosen as for a convex hull: between two neighbouring plans the next weights are
        those under which both have the same sum. The pair with the largest area is refined first.
        """
        lower_bounds: list[_LowerBound] = []
        near: list[FrontPoint] = []

        def add(cost_weight: float, kept_weight: float) -> FrontPoint:
            lower_bounds.append(_LowerBound.of(nodes, cost_weight, kept_weight))
            near.append(point(nodes, lower_bounds[-1].best(nodes)))
            return near[-1]

        gaps = [(add(1.0, 0.0), add(0.0, 1.0))]
        while gaps and len(lower_bounds) < WEIGHTS:
            fast, small = gaps.pop(int(np.argmax([_area(*gap) for gap in gaps])))
            if _area(fast, small) <= 0 or not _separates(fast, small, bound):
                continue
            middle = add(fast.kept - small.kept, small.cost - fast.cost)
            if fast.kept > middle.kept > small.kept:
                gaps += [(fast, middle), (middle, small)]
        return cls(nodes, lower_bounds, near)

    def within(self, box: Box) -> list[FrontPoint]:
        """Plans, the fastest first, that include the whole Pareto front inside the box."""
        lower_bounds = sorted(self.lower_bounds, key=lambda bounds: bounds.slack(box))[:NEAREST]
        rest = np.array([max(float(node.rest.min()) for node in self.nodes)])
        start, zero = np.zeros(1, int), np.zeros(1)
        labels, ways = _Labels(start, start, zero, zero, rest, start), []
        for index, node in enumerate(self.nodes):
            extended = labels.over(node)
            labels = extended.where(lower_bounds[0].may_reach(index, extended, box))
            may_reach = (bounds.may_reach(index, labels, box) for bounds in lower_bounds[1:])
            labels = labels.only(
                np.logical_and.reduce([np.ones(len(labels.last_N), bool), *may_reach])
            )
            if node.ends:
                labels = replace(labels, first_N=np.zeros_like(labels.last_N))
            labels = labels.undominated()
            ways.append((labels.last_N, labels.before_N))
            if node.ends:
                labels = replace(labels, first_N=labels.last_N)
        ends = pareto_front(labels.cost_N, labels.kept_N + labels.rest_N)
        return [point(self.nodes, _choices(ways, end)) for end in ends.tolist()]


def point(nodes: Several[ChainNode], choices: Choices) -> FrontPoint:
    """Cost and memory of one choice for every node."""
    cost, kept, rest, first, last = 0.0, 0.0, 0.0, 0, 0
    for node, choice in zip(nodes, choices, strict=True):
        cost += float(node.edge[last, choice] + node.cost[choice])
        if node.first is not None:
            cost += float(node.first[first, choice])
        kept, rest = kept + float(node.kept[choice]), max(rest, float(node.rest[choice]))
        first, last = choice if node.ends else first, choice
    return FrontPoint(cost, kept, kept + rest, choices)


def pareto_front(cost_N: Vector, memory_N: Vector) -> Choice:
    """Indices of the Pareto front of cost and memory, the least cost first."""
    order = np.lexsort((memory_N, cost_N))
    memory_N = memory_N[order]
    better_N = np.ones(len(order), bool)
    better_N[1:] = memory_N[1:] < np.minimum.accumulate(memory_N)[:-1]
    return order[better_N]


def _choices(ways: Several[tuple[Choice, Choice]], end: int) -> Choices:
    """The choices of a label, traced back from its index at the last node."""
    choices = []
    for last_N, before_N in reversed(ways):
        choices.append(int(last_N[end]))
        end = int(before_N[end])
    return tuple(choices[::-1])


def _area(fast: FrontPoint, small: FrontPoint) -> float:
    return (small.cost - fast.cost) * (fast.kept - small.kept)


def _separates(fast: FrontPoint, small: FrontPoint, bound: Box | None) -> bool:
    """Whether the bound separates two points, the first of them faster, the second smaller."""
    if bound is None:
        return True
    parted = (fast.cost <= bound.cost < small.cost, small.memory <= bound.memory < fast.memory)
    return any(parted)
