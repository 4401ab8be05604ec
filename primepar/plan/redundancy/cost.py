"""Redundant memory: what devices hold beyond one copy of every tensor, and what moving them takes.

The formulas are ours. Of a tensor of |T| bytes each of p devices holds |T| / shards: |T| / p is its
share, the rest is redundant. Shards are read off layouts, so that no method has a formula.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import replace
from functools import cached_property
from typing import Final

import numpy as np

from primepar.models.graph import Operator
from primepar.plan.cost.linear import alike, linear_working
from primepar.plan.cost.links import ClusterLinks
from primepar.plan.redundancy.option_graph import Choices, Graph
from primepar.plan.search.options import Catalogue, Numbers, Options
from primepar.plan.search.planner import Planner
from primepar.plan.search.segments import Matrix, Vector
from primepar.schedule.operators import Linear

FINEST: Final = 2.0**-16
"""Bytes; costs are whole multiples of a power of two, of no smaller one."""


class Redundancy:
    """Bytes of a device beyond its share, by the options of a planner.

    An operator holds what it keeps through the step (`Cost.kept`: parameters with their gradients
    and optimizer state, and what forward stashes), and at its busiest step the rest of what it
    works on. Its share is what it would hold if it were alone, over the number of devices. Blocks
    in flight between two steps of a primitive are not counted. On an edge a device holds for a
    while what it receives in redistribution, forward and backward.
    """

    def __init__(self, planner: Planner) -> None:
        self.planner = planner
        wires = planner.training.wires
        alone = replace(planner.training, wires=ClusterLinks(wires.cluster, 0))
        self.devices = wires.devices
        self._alone = Catalogue.whole(planner.model, alone, "paper")
        self._known: dict[Hashable, Matrix] = {}

    @property
    def tied(self) -> str | None:
        """The operator that shares the table of the first one, if any does."""
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
        """Seconds of a step: of operators, and of what moves between them."""
        planner = self.planner
        return self._graph(lambda name: planner.options(name).seconds, planner.edge, planner.tie)

    @cached_property
    def kept(self) -> Graph:
        """Bytes of a device that are kept through a step."""
        return Graph({name: self.planner.options(name).kept for name in self.planner.named}, {})

    @property
    def running(self) -> dict[str, Vector]:
        """Bytes of a device that are there besides while an operator runs."""
        return {name: self.planner.options(name).running for name in self.planner.named}

    @cached_property
    def one_copy(self) -> float:
        """Bytes of one copy of every tensor."""
        return sum(map(self._whole, self.planner.operators))

    def copies(self, redundant: float) -> float:
        """Bytes on all devices for each byte of one copy, with so many redundant on each."""
        return 1 + self.devices * redundant / self.one_copy

    def kept_by(self, choices: Choices) -> float:
        """Redundant bytes of those alone that are kept through a step."""
        alone = sum(float(self._alone.options(each).kept[0]) for each in self.planner.operators)
        return self.kept.cost(choices) - alone / self.devices

    def by(self, choices: Choices) -> float:
        """Redundant bytes of a device, looked up for these options alone."""
        named = self.planner.named
        own = {name: self.planner.options(name).only([at]) for name, at in choices.items()}
        found = sum(float(self._held(named[name], each)[0]) for name, each in own.items())
        for name, operator in named.items():
            found += sum(float(self._received(each, own[each], own[name])[0, 0])
                         for each in operator.inputs)  # fmt: skip
        if self.tied is not None:
            found += float(self._tie(own[self.planner.first], own[self.tied])[0, 0])
        return found

    def _graph(
        self,
        node: Callable[[str], Vector],
        edge: Callable[[str, str], Matrix],
        tie: Callable[[], Matrix],
    ) -> Graph:
        edges = {(producer, each.name): edge(producer, each.name)
                 for each in self.planner.operators for producer in each.inputs}  # fmt: skip
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
        found: Vector = held - self._whole(operator) / self.devices
        return found

    def _whole(self, operator: Operator) -> float:
        """Bytes of one copy of what an operator holds: those of a device that is alone."""
        options = self._alone.options(operator)
        return float((options.kept + self._working(operator, options))[0])

    def _working(self, operator: Operator, options: Options) -> Vector:
        """Bytes of a device besides what is kept, at the busiest step of every option."""
        if operator.kind != "linear":
            return options.running
        training = self.planner.training
        shape = Linear(M=training.rows, N=operator.N, K=operator.K)
        keys = [alike(training.wires, each) for each in options.candidates]
        one_of = dict(zip(keys, options.candidates, strict=True))
        known = {key: linear_working(training, shape, each) for key, each in one_of.items()}
        return np.array([known[key] for key in keys])

    def _edge(self, producer: str, consumer: str) -> Matrix:
        key = self.planner.key(producer), self.planner.key(consumer)
        if key not in self._known:
            ends = self.planner.options(producer), self.planner.options(consumer)
            self._known[key] = self._received(producer, *ends)
        return self._known[key]

    def _received(self, producer: str, left: Options, taken: Options) -> Matrix:
        training, columns = self.planner.training, self.planner.named[producer].K
        forth = self._most(left.leaves, taken.takes)
        back = self._most(taken.leaves_gradient, left.leaves)
        found: Matrix = float(training.rows * columns * training.item) * (forth + back.T)
        return found

    def _tie(self, first: Options, head: Options) -> Matrix:
        """What the table's way to the head takes, and its gradient's back."""
        model, table, weight = self.planner.model, first.weights, head.weights
        size = float(model.vocabulary * model.hidden * self.planner.training.item)
        found: Matrix = size * (self._most(table, weight) + self._most(weight, table).T)
        return found

    def _most(self, sources: Numbers, targets: Numbers) -> Matrix:
        """Shares that the device which receives most does; distinct layouts are looked at once."""
        (here, at), (there, to) = (np.unique(each, return_inverse=True)
                                   for each in (sources, targets))  # fmt: skip
        key = here.tobytes(), there.tobytes()
        if key not in self._known:
            layouts = self.planner.catalogue.layouts
            self._known[key] = layouts.received(here.tolist(), there.tolist()).astype(float)
        found: Matrix = self._known[key][np.ix_(at, to)]
        return found


def tick(graph: Graph) -> float:
    """The largest power of two of which all costs are multiples, or `FINEST`."""
    parts = np.concatenate([np.ravel(each) for each in graph.arrays()]) / FINEST
    whole = np.unique(np.rint(parts).astype(np.int64))
    lowest = int(np.bitwise_or.reduce(whole & -whole))
    return FINEST * (lowest & -lowest or 1)
