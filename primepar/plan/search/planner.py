"""Costs of the plans of a model on a cluster: options of operators, edges, and segments.

The graph of a model is a chain in which additions also read from one node further back. A segment
is the chain from such a node to the next. Layers are equal, and their tables are joined by
doubling. Where the head shares the embedding's table, its redistribution is an edge from the first
node to the head.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Several
from copy import copy
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, Literal, Self, TypeVar

import numpy as np

from primepar.errors import PlanError
from primepar.models.config import ModelConfig
from primepar.models.graph import Operator, operators, stack
from primepar.plan.cluster import Cluster
from primepar.plan.cost.layouts import Layouts, Ways
from primepar.plan.cost.linear import Training
from primepar.plan.cost.links import ClusterLinks
from primepar.plan.cost.step_seconds import weighed
from primepar.plan.kernels import kernels
from primepar.plan.search.options import (
    Candidates,
    Catalogue,
    Matrix,
    Numbers,
    Options,
    Vector,
    kind_of,
)
from primepar.plan.search.sequence_space import FREE, Axes, SequenceSpace, SpaceName, allows

Part = Literal["model", "blocks"]
"""What is planned: the whole model, or its blocks alone, as in the paper's evaluation."""


ChainPart = TypeVar("ChainPart", Operator, list[Operator])


@dataclass(frozen=True)
class FoldedGraph:
    """The operators of a model with at most two layers; the second stands for all but the first.

    Example: of embedding, blocks 0 to 95, norm, head and loss it has the embedding, blocks 0 and 1,
    norm, head and loss. Block 1 is there for 95 layers.

    `second` are the places of the operators of the second layer.
    """

    operators: tuple[Operator, ...]
    layers: int
    second: range

    @classmethod
    def of(cls, operators: Several[Operator]) -> FoldedGraph:
        """The folded graph of the operators of a model, in the order of execution."""
        names = [operator.name for operator in operators]
        begin = next(place for place, name in enumerate(names) if name.startswith("blocks."))
        size = sum(name.startswith("blocks.0.") for name in names)
        layers = sum(name.startswith("blocks.") for name in names) // size
        end = begin + layers * size
        second = range(begin + size, min(end, begin + 2 * size))
        last, now_last = f"blocks.{layers - 1}.", f"blocks.{min(layers, 2) - 1}."
        after = (
            replace(
                operator, inputs=tuple(name.replace(last, now_last) for name in operator.inputs)
            )
            for operator in operators[end:]
        )
        return cls((*operators[: second.stop], *after), layers, second)

    def split(
        self, parts: Several[ChainPart]
    ) -> tuple[list[ChainPart], list[ChainPart], list[ChainPart]]:
        """Operators, or segments by their last one: to the first layer, the second, the rest."""
        place_of = {operator.name: place for place, operator in enumerate(self.operators)}
        split: tuple[list[ChainPart], list[ChainPart], list[ChainPart]] = [], [], []
        for part in parts:
            place = place_of[part.name if isinstance(part, Operator) else part[-1].name]
            split[(place >= self.second.start) + (place >= self.second.stop)].append(part)
        return split


@dataclass
class Planner:
    """Plans of a model on a number of devices of a cluster.

    The cost of a plan is the seconds of a training step (PrimePar, equation 7, with an alpha of 0).
    With `tradeoffs` it keeps, in addition to the cheapest options, those that take less memory.
    With a share `hidden` the cost is that of `cost.step_seconds`: a lower bound of a step whose
    sums of gradients run during backward.
    """

    model: ModelConfig
    training: Training
    space: SpaceName = "all"
    tradeoffs: bool = False
    part: Part = "model"
    candidates: Candidates | None = None
    """Sequences to choose from; None for the whole space."""
    hidden: float | None = None
    slices: frozenset[int] | None = None
    """Slices of the rows of linear operators in layers; None for any (`axes`)."""
    tick: Callable[[str], object] = field(default=str, repr=False)
    """Called with the name of the next stage of the work, for a progress bar."""
    known: dict[object, Options] = field(default_factory=dict, init=False)
    """Options by kind of operator, filled on demand."""
    _ways: dict[object, tuple[Ways, Any]] = field(default_factory=dict, init=False)
    _edges: dict[object, Matrix] = field(default_factory=dict, init=False)
    _both_ways: dict[object, tuple[Matrix, Matrix]] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.operators = (operators if self.part == "model" else stack)(self.model)
        self.named = {operator.name: operator for operator in self.operators}
        links = self.training.links
        candidates = self.candidates or SequenceSpace.whole(self.space, links.bits).of
        self.catalogue = Catalogue(self.model, self.training, candidates, Layouts(links))

    @classmethod
    def of(
        cls, model: ModelConfig, cluster: Cluster, devices: int, batch: int, dtype: str | None,
        space: SpaceName = "all", tradeoffs: bool = False,
        part: Part = "model", tick: Callable[[str], object] = str, posted: bool = False,
        axes: Axes = FREE,
    ) -> Self:  # fmt: skip
        """A planner for steps of `batch` sequences of the model's context on `devices` devices.

        `dtype` None is the first data type of the cluster. Raises `ClusterError` for a number of
        devices or a data type that the cluster does not have, and `ConfigError` for `axes` that do
        not multiply to the devices.
        """
        cluster.check_devices(devices)
        dtype = dtype or next(iter(cluster.rates))
        cluster.rate(dtype)
        links = ClusterLinks(cluster, devices.bit_length() - 1)
        runs = not (model.priced and model.priced.what)
        program = kernels(model, model.context, dtype) if posted and runs else None
        training = Training(links, dtype, batch, model.context, kernels=program)
        slices = axes.slices(devices, batch)
        if slices == frozenset():
            raise axes.refusal(devices, batch)
        return cls(model, training, space, tradeoffs, part, slices=slices, tick=tick)

    @classmethod
    def like(cls, other: Planner, **settings: object) -> Self:
        """A planner with the settings of another one but these; it shares what sequences cost."""
        others = {setting.name: getattr(other, setting.name)
                  for setting in fields(cls)
                  if setting.init and hasattr(other, setting.name)}  # fmt: skip
        planner = cls(**others | settings)
        planner.operators, planner.named = other.operators, other.named
        if "candidates" not in settings:
            planner.catalogue, planner._ways = other.catalogue, other._ways
        return planner

    @cached_property
    def graph(self) -> FoldedGraph:
        """The operators, with equal layers folded."""
        return FoldedGraph.of(self.operators)

    @property
    def first(self) -> str:
        """The first operator: the embedding, or the addition before the blocks."""
        return self.operators[0].name

    @property
    def tied(self) -> bool:
        """Whether the head shares the embedding's table, and both are planned."""
        return self.model.tied and self.part == "model"

    def key(self, name: str) -> tuple[object, ...]:
        """The key under which operators share their options."""
        return kind_of(self.named[name])

    def options(self, name: str) -> Options:
        """Options of an operator; of those with equal layouts, the cheapest.

        With `tradeoffs`, also those that take less memory. Raises `PlanError` where no sequence
        fits.
        """
        key = self.key(name)
        if key not in self.known:
            self.tick(f"sequences of {name}")
            all_options = self.allowed(name)
            if not len(all_options):
                raise PlanError(
                    f"expected a sequence of {name} on {self.training.links.devices} devices for "
                    f"{self.training.batch} sequences of {self.training.positions} tokens, got "
                    "none that divides its sizes: take fewer devices, or a larger --batch"
                )
            least = all_options.undominated if self.tradeoffs else all_options.cheapest
            self.known[key] = least(self.cost_of(name, all_options))
        return self.known[key]

    def allowed(self, name: str) -> Options:
        """All options of an operator that the axes allow."""
        options, operator = self.catalogue.options(self.named[name]), self.named[name]
        if self.slices is None:
            return options
        return options.only(number for number, candidate in enumerate(options.candidates)
                            if allows(self.slices, operator, candidate))  # fmt: skip

    def cost_of(self, name: str, options: Options) -> Vector:
        """Cost of some options: of their operator alone."""
        return options.seconds if self.hidden is None else weighed(options.terms, self.hidden)

    def kept_of(self, name: str, options: Options) -> Vector:
        """Bytes that a device keeps through a step for some options of an operator."""
        return options.kept

    def objective(self, name: str) -> Matrix:
        """Cost of every option of an operator."""
        return self.cost_of(name, self.options(name))

    def edge(self, producer: str, consumer: str) -> Matrix:
        """Seconds of redistribution, forward plus backward, by the options of both ends."""
        forward, backward = self.both_ways(producer, consumer)
        key = self.key(producer), self.key(consumer)
        if key not in self._edges:
            self._edges[key] = self._of_step(forward, backward)
        return self._edges[key]

    def _of_step(self, forward: Matrix, backward: Matrix) -> Matrix:
        return forward + (backward if self.hidden is None else (1 - self.hidden) * backward)

    def both_ways(self, producer: str, consumer: str) -> tuple[Matrix, Matrix]:
        """Seconds of redistribution, forward and backward, by the options of both ends."""
        key = self.key(producer), self.key(consumer)
        if key not in self._both_ways:
            self.tick(f"from {producer} to {consumer}")
            producers, consumers = self.options(producer), self.options(consumer)
            columns = self.named[producer].K
            size = float(self.training.rows * columns * self.training.item)
            forward = self._moved(producers.leaves, consumers.takes, size)
            backward = self._moved(consumers.leaves_gradient, producers.leaves, size)
            self._both_ways[key] = forward, backward.T
        return self._both_ways[key]

    def tie(self) -> Matrix:
        """Seconds to redistribute the table to the head, and its gradient back."""
        if "tie" not in self._edges:
            self._edges["tie"] = self._of_step(*self._tie_ways())
        return self._edges["tie"]

    def _tie_ways(self) -> tuple[Matrix, Matrix]:
        """Seconds to redistribute the table to the head, and its gradient back."""
        table, weight = self.options("embedding").weights, self.options("head").weights
        size = float(self.model.vocabulary * self.model.hidden * self.training.item)
        return self._moved(table, weight, size), self._moved(weight, table, size).T

    def _moved(self, sources: Numbers, targets: Numbers, size: float) -> Matrix:
        """Seconds from each source layout to each target layout; distinct layouts priced once."""
        key = sources.tobytes(), targets.tobytes()
        if key not in self._ways:
            (first, first_of), (last, last_of) = (
                np.unique(ends, return_inverse=True) for ends in (sources, targets)
            )
            ways = self.catalogue.layouts.ways(first.tolist(), last.tolist())
            self._ways[key] = ways, np.ix_(first_of, last_of)
        ways, places = self._ways[key]
        seconds: Matrix = ways.seconds(size)[places]
        return seconds

    def cost(self, choices: Mapping[str, int]) -> float:
        """Cost of a choice of one option for every operator."""
        operators = sum(float(self.objective(name)[number]) for name, number in choices.items())
        return operators + sum(
            float(edge[choices[producer], choices[operator.name]])
            for operator in self.operators
            for producer, edge in self.edges_into(operator.name)
        )

    def all_counted(self) -> Planner:
        """The planner with all options that the axes allow, each at all of its seconds."""
        other = copy(self)
        other.hidden, other._edges, other._both_ways = None, {}, {}
        other.known = {self.key(name): self.allowed(name) for name in self.named}
        return other

    def edges_into(self, name: str) -> list[tuple[str, Matrix]]:
        """The edges that end at an operator, each with the name of its first end."""
        edges = [(producer, self.edge(producer, name)) for producer in self.named[name].inputs]
        if name == "head" and self.tied:
            edges.append(("embedding", self.tie()))
        return edges

    def redistribution_seconds(self, name: str, choices: Mapping[str, int]) -> tuple[float, float]:
        """Seconds to redistribute the inputs of an operator, and their gradients back."""
        ways = [(producer, self.both_ways(producer, name)) for producer in self.named[name].inputs]
        if name == "head" and self.tied:
            ways.append(("embedding", self._tie_ways()))
        forward, backward = (
            sum(float(way[number][choices[producer], choices[name]]) for producer, way in ways)
            for number in (0, 1)
        )
        return forward, backward

    def costs_around(self, name: str, choices: Mapping[str, int]) -> Vector:
        """Cost of every option of an operator and its edges, with all other choices fixed."""
        costs = self.objective(name).copy()
        for consumer in self.operators:
            for producer in consumer.inputs:
                ends = (producer, consumer.name)
                if name in ends:
                    fixed = choices[ends[name == producer]]
                    costs += self._one_end(self.edge(*ends), name == producer, fixed)
        if self.tied and name in ("embedding", "head"):
            fixed = choices["head" if name == "embedding" else "embedding"]
            costs += self._one_end(self.tie(), name == "embedding", fixed)
        return costs

    @staticmethod
    def _one_end(edge: Matrix, first: bool, other: int) -> Vector:
        """Costs of an edge by the options of its first or last end, with the other end fixed."""
        costs: Vector = edge[:, other] if first else edge[other]
        return costs
