"""The search for the best plan of a model on a cluster: options, edges and segments put together.

The graph of a model is a chain whose additions take from one node further back too; a segment is
the chain from such a node to the next. Layers are alike, and are joined by doubling. Where the head
shares the table, the table's way is an edge from the first node to the head.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Literal, Self

import numpy as np

from primepar.errors import PlanError
from primepar.models.config import ModelConfig
from primepar.models.graph import Operator, operators, stack
from primepar.plan.cluster import Cluster
from primepar.plan.cost.layouts import Layouts, Ways
from primepar.plan.cost.linear import Training
from primepar.plan.cost.links import ClusterLinks
from primepar.plan.cost.lower_bounds import LeastWays
from primepar.plan.search.options import Candidates, Catalogue, Numbers, Options, kind_of
from primepar.plan.search.segments import Matrix, Vector
from primepar.plan.search.sequence_space import SequenceSpace, SpaceName

Part = Literal["model", "blocks"]
"""What is planned: all of a model, or its blocks alone, as in the paper's evaluation."""


@dataclass
class Planner:
    """Plans of a model on a number of devices of a cluster.

    Its cost of a plan is seconds of a training step, plus `alpha` seconds for each byte that a
    device keeps through it (PrimePar, equation 7). With `tradeoffs` it keeps options that take less
    memory too, not the cheapest alone.
    """

    model: ModelConfig
    training: Training
    space: SpaceName = "all"
    alpha: float = 0.0
    tradeoffs: bool = False
    part: Part = "model"
    candidates: Candidates | None = None
    """Sequences to choose from; all of the space where it is None."""
    tick: Callable[[str], object] = field(default=str, repr=False)
    """Called with what is found out next; does nothing unless given."""
    known: dict[object, Options] = field(default_factory=dict, init=False)
    """Options by kind of operator, of the operators that were asked for."""
    _ways: dict[object, Ways | LeastWays] = field(default_factory=dict, init=False)
    _edges: dict[object, Matrix] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.operators = (operators if self.part == "model" else stack)(self.model)
        self.named = {operator.name: operator for operator in self.operators}
        wires = self.training.wires
        candidates = self.candidates or SequenceSpace.whole(self.space, wires.bits).of
        self.catalogue = Catalogue(self.model, self.training, candidates, Layouts(wires))

    @classmethod
    def of(
        cls, model: ModelConfig, cluster: Cluster, devices: int, batch: int, dtype: str | None,
        space: SpaceName = "all", alpha: float = 0.0, tradeoffs: bool = False,
        part: Part = "model", tick: Callable[[str], object] = str,
    ) -> Self:  # fmt: skip
        """A planner for steps of `batch` sequences of the model's context.

        The data type is the cluster's first where none is given. Raises `ClusterError`.
        """
        cluster.check_devices(devices)
        dtype = dtype or next(iter(cluster.rates))
        cluster.rate(dtype)
        wires = ClusterLinks(cluster, devices.bit_length() - 1)
        training = Training(wires, dtype, batch, model.context)
        return cls(model, training, space, alpha, tradeoffs, part, tick=tick)

    @classmethod
    def like(cls, other: Planner, candidates: Candidates) -> Self:
        """A planner of the same plans, out of these sequences."""
        given = {each.name: getattr(other, each.name) for each in fields(Planner) if each.init}
        return cls(**given | {"candidates": candidates})

    @property
    def first(self) -> str:
        """The first operator: the embedding, or the addition before the blocks."""
        return self.operators[0].name

    @property
    def tied(self) -> bool:
        """Whether the head shares the embedding's table, and both are planned."""
        return self.model.tied and self.part == "model"

    def key(self, name: str) -> tuple[object, ...]:
        """What operators have in common that share their options."""
        return kind_of(self.named[name])

    def options(self, name: str) -> Options:
        """Options of an operator, of those with the same layouts the cheapest ones."""
        key = self.key(name)
        if key not in self.known:
            self.tick(f"sequences of {name}")
            found = self.catalogue.options(self.named[name])
            if not len(found):
                raise PlanError(
                    f"expected a sequence of {name} on {self.training.wires.devices} devices for "
                    f"{self.training.batch} sequences of {self.training.positions} tokens, got "
                    "none that divides its sizes: take fewer devices, or a larger --batch"
                )
            least = found.undominated if self.tradeoffs else found.cheapest
            self.known[key] = least(found.seconds + self.alpha * found.kept)
        return self.known[key]

    def objective(self, name: str) -> Matrix:
        """Cost of every option of an operator."""
        options = self.options(name)
        found: Matrix = options.seconds + self.alpha * options.kept
        return found

    def edge(self, producer: str, consumer: str) -> Matrix:
        """Seconds of redistribution, forward and backward, by the options of both ends."""
        key = self.key(producer), self.key(consumer)
        if key not in self._edges:
            self.tick(f"from {producer} to {consumer}")
            left, taken = self.options(producer), self.options(consumer)
            columns = self.named[producer].K
            size = float(self.training.rows * columns * self.training.item)
            forth = self._moved(left.leaves, taken.takes, size)
            back = self._moved(taken.leaves_gradient, left.leaves, size)
            self._edges[key] = forth + back.T
        return self._edges[key]

    def tie(self) -> Matrix:
        """Seconds of the table's way to the head, and of its gradient back."""
        table, weight = self.options("embedding").weights, self.options("head").weights
        size = float(self.model.vocabulary * self.model.hidden * self.training.item)
        found: Matrix = self._moved(table, weight, size) + self._moved(weight, table, size).T
        return found

    def _moved(self, sources: Numbers, targets: Numbers, size: float) -> Matrix:
        """Seconds from each of some layouts to each of others; distinct ones are looked at once."""
        (here, at), (there, to) = (np.unique(each, return_inverse=True)
                                   for each in (sources, targets))  # fmt: skip
        key = here.tobytes(), there.tobytes()
        if key not in self._ways:
            self._ways[key] = self.ways(here.tolist(), there.tolist())
        found: Matrix = self._ways[key].seconds(size)[np.ix_(at, to)]
        return found

    def ways(self, sources: list[int], targets: list[int]) -> Ways | LeastWays:
        """What moves from each of some layouts to each of others."""
        return self.catalogue.layouts.ways(sources, targets)

    def segments(self) -> list[list[Operator]]:
        """The chain of operators, cut where no edge passes by; segments share their ends."""
        at = {operator.name: place for place, operator in enumerate(self.operators)}
        first = len(at)
        found: list[list[Operator]] = []
        for operator in reversed(self.operators):
            if at[operator.name] <= first and at[operator.name] < len(at) - 1:
                found[-1].append(operator)
                found.append([operator])
            elif found:
                found[-1].append(operator)
            else:
                found.append([operator])
            first = min([first, *(at[each] for each in operator.inputs)])
        return [segment[::-1] for segment in found[:-1]][::-1]

    def cost(self, choices: Mapping[str, int]) -> float:
        """Cost of a choice of one option for every operator."""
        own = sum(float(self.objective(name)[at]) for name, at in choices.items())
        return own + sum(self.between(each.name, choices) for each in self.operators)

    def between(self, name: str, choices: Mapping[str, int]) -> float:
        """Seconds that bringing an operator's inputs and taking their gradients back takes."""
        edges = [(each, self.edge(each, name)) for each in self.named[name].inputs]
        if name == "head" and self.tied:
            edges.append(("embedding", self.tie()))
        return sum(float(edge[choices[each], choices[name]]) for each, edge in edges)

    def around(self, name: str, choices: Mapping[str, int]) -> Vector:
        """Cost of every option of an operator and of all its edges, the others keeping theirs."""
        found = self.objective(name).copy()
        for consumer in self.operators:
            for producer in consumer.inputs:
                ends = (producer, consumer.name)
                if name in ends:
                    other = choices[ends[name == producer]]
                    found += self._one_end(self.edge(*ends), name == producer, other)
        if self.tied and name in ("embedding", "head"):
            other = choices["head" if name == "embedding" else "embedding"]
            found += self._one_end(self.tie(), name == "embedding", other)
        return found

    @staticmethod
    def _one_end(edge: Matrix, first: bool, other: int) -> Vector:
        """Costs of an edge by the options of its first or last end, the other end being chosen."""
        found: Vector = edge[:, other] if first else edge[other]
        return found
