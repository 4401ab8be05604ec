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
from primepar.plan.cost.layouts import Layouts
from primepar.plan.cost.links import Wires
from primepar.plan.redundancy.graph import Graph
from primepar.plan.search.options import Catalogue, Numbers, kind_of
from primepar.plan.search.planner import Planner
from primepar.plan.search.segments import Matrix, Vector
from primepar.plan.search.space import Space

FINEST: Final = 2.0**-16
"""Bytes; costs are whole multiples of a power of two, of no smaller one."""


class Redundancy:
    """Bytes of a device beyond its share, by the options of a planner.

    An operator holds what it keeps through the step (`Cost.kept`: parameters with their gradients
    and optimizer state, and what forward stashes), and for a while the output that it leaves to
    others and the gradient of an input of others. On an edge a device holds for a while what it
    receives in redistribution, forward and backward.
    """

    def __init__(self, planner: Planner) -> None:
        self.planner = planner
        wires = planner.training.wires
        alone = replace(planner.training, wires=Wires(wires.cluster, 0))
        self.devices = wires.devices
        space = Space.whole("paper", alone.wires.bits)
        self._alone = Catalogue(planner.model, alone, space.of, Layouts(alone.wires))
        self._taken = {each for operator in planner.operators for each in operator.inputs}
        self._known: dict[Hashable, Matrix] = {}

    @property
    def tied(self) -> str | None:
        """The operator that shares the table of the first one, if any does."""
        return "head" if self.planner.tied else None

    @cached_property
    def bytes(self) -> Graph:
        """Redundant bytes of a device."""
        return self._graph(self._held, self._received, self._tie)

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

    def _held(self, name: str) -> Vector:
        operator, options = self.planner.named[name], self.planner.options(name)
        key = kind_of(operator), name in self._taken
        if key not in self._known:
            output, gradient = self._passing(operator)
            held = options.kept + output * self._shares(options.leaves)
            held += gradient * self._shares(options.leaves_gradient)
            self._known[key] = held - self._whole(operator) / self.devices
        return self._known[key]

    def _whole(self, operator: Operator) -> float:
        """Bytes of one copy of what an operator holds: those of a device that is alone."""
        kept = float(self._alone.options(operator).kept[0])
        return kept + sum(self._passing(operator))

    def _passing(self, operator: Operator) -> tuple[float, float]:
        """Bytes of the output, if others take it, and of the gradient of an input of others."""
        column = float(self.planner.training.rows * self.planner.training.item)
        output = operator.K * column if operator.name in self._taken else 0.0
        return output, operator.N * column if operator.inputs else 0.0

    def _shares(self, layouts: Numbers) -> Vector:
        share = self.planner.catalogue.layouts.share
        return np.array([share(each) for each in layouts.tolist()])

    def _received(self, producer: str, consumer: str) -> Matrix:
        key = kind_of(self.planner.named[producer]), kind_of(self.planner.named[consumer])
        if key not in self._known:
            left, taken = self.planner.options(producer), self.planner.options(consumer)
            training, columns = self.planner.training, self.planner.named[producer].K
            size = float(training.rows * columns * training.item)
            forth = self._most(left.leaves, taken.takes)
            back = self._most(taken.leaves_gradient, left.leaves)
            self._known[key] = size * (forth + back.T)
        return self._known[key]

    def _tie(self) -> Matrix:
        """What the table's way to the head takes, and its gradient's back."""
        planner = self.planner
        table, weight = planner.options(planner.first).weights, planner.options("head").weights
        size = float(planner.model.vocabulary * planner.model.hidden * planner.training.item)
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
