"""Redundant memory: what devices hold beyond one copy of every tensor, and in redistributions.

The formulas are ours. Of a tensor of |T| bytes each of p devices holds |T| / shards. Its share is
|T| / p, and the rest is redundant. The number of shards is taken from layouts, so that no method
needs a formula of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import replace
from functools import cached_property
from typing import Final

import numpy as np

from primepar.models.graph import Operator
from primepar.plan.cost.linear import cost_key, linear_working
from primepar.plan.cost.links import ClusterLinks
from primepar.plan.redundancy.option_graph import Choices, Graph
from primepar.plan.search.options import Catalogue, Numbers, Options
from primepar.plan.search.planner import Planner
from primepar.plan.search.segments import Matrix, Vector
from primepar.schedule.operators import Linear

FINEST: Final = 2.0**-16
"""Bytes: the smallest power of two that `tick` returns."""


class Redundancy:
    """Bytes of a device beyond its share, by the options of a planner.

    An operator holds what it keeps through the training step (`Cost.kept`: parameters with their
    gradients and optimizer state, and what forward stashes). At its busiest step it also holds its
    other operands and results. Its share is what one device alone would hold, over the number of
    devices. Blocks in flight between two steps of a primitive are not counted. On an edge a device
    holds for a while what it receives in the redistribution, forward and backward.
    """

    def __init__(self, planner: Planner) -> None:
        self.planner = planner
        links = planner.training.links
        alone = replace(planner.training, links=ClusterLinks(links.cluster, 0))
        self.devices = links.devices
        self._alone = Catalogue.whole(planner.model, alone, "paper")
        self._known: dict[Hashable, Matrix] = {}

    @property
    def tied(self) -> str | None:
        """The operator that shares the table of the first one; None without such a one."""
        return "head" if self.planner.tied else None

    @cached_property
    def bytes(self) -> Graph:
        """Redundant bytes of a device."""
        options = self.planner.options

        def tie() -> Matrix:
            return self._tie(options(self.planner.first), options("head"))

        return self._graph(self._node, self._edge, tie)

    @cached_property
    def seconds(self) -> Graph:
        """Seconds of a training step: of operators, and of the redistributions between them."""
        planner = self.planner
        return self._graph(lambda name: planner.options(name).seconds, planner.edge, planner.tie)

    @cached_property
    def kept(self) -> Graph:
        """Bytes of a device that are kept through a step."""
        return Graph({name: self.planner.options(name).kept for name in self.planner.named}, {})

    @property
    def running(self) -> dict[str, Vector]:
        """Transient bytes of a device while an operator runs."""
        return {name: self.planner.options(name).running for name in self.planner.named}

    @cached_property
    def one_copy(self) -> float:
        """Bytes of one copy of every tensor."""
        return sum(map(self._whole, self.planner.operators))

    def copies(self, redundant: float) -> float:
        """Bytes on all devices for each byte of one copy, with `redundant` bytes on each device."""
        return 1 + self.devices * redundant / self.one_copy

    def kept_bytes_of(self, choices: Choices) -> float:
        """Redundant bytes of a device, counting only what is kept through a step."""
        alone = sum(
            float(self._alone.options(operator).kept[0]) for operator in self.planner.operators
        )
        return self.kept.cost(choices) - alone / self.devices

    def bytes_of(self, choices: Choices) -> float:
        """Redundant bytes of a device, computed for these options alone."""
        named = self.planner.named
        options = {
            name: self.planner.options(name).only([number]) for name, number in choices.items()
        }
        redundant = sum(
            float(self._held(named[name], operand)[0]) for name, operand in options.items()
        )
        for name, operator in named.items():
            redundant += sum(float(self._received(operand, options[operand], options[name])[0, 0])
                         for operand in operator.inputs)  # fmt: skip
        if self.tied is not None:
            redundant += float(self._tie(options[self.planner.first], options[self.tied])[0, 0])
        return redundant

    def _graph(
        self,
        node: Callable[[str], Vector],
        edge: Callable[[str, str], Matrix],
        tie: Callable[[], Matrix],
    ) -> Graph:
        edges = {
            (producer, operator.name): edge(producer, operator.name)
            for operator in self.planner.operators
            for producer in operator.inputs
        }
        if self.tied is not None:
            edges[self.planner.first, self.tied] = tie()
        return Graph({name: node(name) for name in self.planner.named}, edges)

    def _node(self, name: str) -> Vector:
        operator = self.planner.named[name]
        key = self.planner.key(name)
        if key not in self._known:
            self._known[key] = self._held(operator, self.planner.options(name))
        return self._known[key]

    def _held(self, operator: Operator, options: Options) -> Vector:
        held = options.kept + self._working(operator, options)
        redundant: Vector = held - self._whole(operator) / self.devices
        return redundant

    def _whole(self, operator: Operator) -> float:
        """Bytes of one copy of what an operator holds: those of one device alone."""
        options = self._alone.options(operator)
        return float((options.kept + self._working(operator, options))[0])

    def _working(self, operator: Operator, options: Options) -> Vector:
        """Transient bytes of a device at the busiest step of every option."""
        if operator.kind != "linear":
            return options.running
        training = self.planner.training
        shape = Linear(M=training.rows, N=operator.N, K=operator.K)
        keys = [cost_key(training.links, candidate) for candidate in options.candidates]
        one_of = dict(zip(keys, options.candidates, strict=True))
        known = {
            key: linear_working(training, shape, candidate) for key, candidate in one_of.items()
        }
        return np.array([known[key] for key in keys])

    def _edge(self, producer: str, consumer: str) -> Matrix:
        key = self.planner.key(producer), self.planner.key(consumer)
        if key not in self._known:
            ends = self.planner.options(producer), self.planner.options(consumer)
            self._known[key] = self._received(producer, *ends)
        return self._known[key]

    def _received(self, producer: str, producers: Options, consumers: Options) -> Matrix:
        training, columns = self.planner.training, self.planner.named[producer].K
        forward = self._most(producers.leaves, consumers.takes)
        backward = self._most(consumers.leaves_gradient, producers.leaves)
        received: Matrix = float(training.rows * columns * training.item) * (forward + backward.T)
        return received

    def _tie(self, first: Options, head: Options) -> Matrix:
        """Bytes received in the redistribution of the table to the head, and of its gradient."""
        model, table, weight = self.planner.model, first.weights, head.weights
        size = float(model.vocabulary * model.hidden * self.planner.training.item)
        received: Matrix = size * (self._most(table, weight) + self._most(weight, table).T)
        return received

    def _most(self, sources: Numbers, targets: Numbers) -> Matrix:
        """Shares of the tensor that the busiest device receives; distinct layouts computed once."""
        distinct_sources, source_index = np.unique(sources, return_inverse=True)
        distinct_targets, target_index = np.unique(targets, return_inverse=True)
        key = distinct_sources.tobytes(), distinct_targets.tobytes()
        if key not in self._known:
            layouts = self.planner.catalogue.layouts
            self._known[key] = layouts.received(
                distinct_sources.tolist(), distinct_targets.tolist()
            ).astype(float)
        most: Matrix = self._known[key][np.ix_(source_index, target_index)]
        return most


def tick(graph: Graph) -> float:
    """The largest power of two that divides all costs, at least `FINEST`."""
    parts = np.concatenate([np.ravel(costs) for costs in graph.arrays()]) / FINEST
    whole = np.unique(np.rint(parts).astype(np.int64))
    lowest = int(np.bitwise_or.reduce(whole & -whole))
    return FINEST * (lowest & -lowest or 1)
