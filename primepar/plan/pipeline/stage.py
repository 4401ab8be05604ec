"""One chunk of a model in a pipeline: some layers on the devices of one tensor-parallel group.

A stage has one chunk, or several where the schedule is interleaved.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

from primepar.models.config import ModelConfig
from primepar.models.graph import Operator, operators, stack
from primepar.plan.cost.candidate import Candidate
from primepar.plan.cost.layouts import Ways
from primepar.plan.cost.linear import Cost, Training
from primepar.plan.cost.lower_bounds import LeastWays
from primepar.plan.pipeline.computed_again import Repeated, repeated
from primepar.plan.pipeline.sharded_seconds import kept_for_parameters, seconds_for_parameters
from primepar.plan.pipeline.training_options import Recompute, Shard
from primepar.plan.search.given_plan import Given
from primepar.plan.search.options import Catalogue, Options
from primepar.plan.search.planner import Part, Planner
from primepar.plan.search.result import SearchResult
from primepar.plan.search.search import search
from primepar.plan.search.segments import Matrix, Vector
from primepar.plan.search.sequence_space import SpaceName


class StagePart(NamedTuple):
    """The part of a model in a chunk: its number of layers, and whether it is first or last."""

    layers: int
    first: bool
    last: bool


class ChunkAim(NamedTuple):
    """What the search of a chunk minimises: the seconds of a micro-batch, and a share of others.

    `once` is the share of what takes place once in a step. Each byte that a device keeps counts as
    `alpha` seconds, with the stashes of `flights` micro-batches.
    """

    once: float = 1.0
    shard: Shard = "none"
    recompute: Recompute = "none"
    alpha: float = 0.0
    flights: int = 1


@dataclass
class StageDevices:
    """The devices of one replica of one stage, and the chunks planned for them.

    A step of `training` is one micro-batch.
    """

    model: ModelConfig
    training: Training
    catalogue: Catalogue
    space: SpaceName
    part: Part
    ways: dict[object, Ways | LeastWays]
    """Redistributions between layouts of the catalogue, filled on demand."""
    _stages: dict[tuple[StagePart, ChunkAim], Stage] = field(default_factory=dict)
    _chains: dict[StagePart, tuple[Operator, ...]] = field(default_factory=dict)

    def planner(self, place: StagePart, objective: ChunkAim) -> Planner:
        """The planner of a chunk."""
        model = replace(self.model, layers=place.layers)
        return _Layers(model, self.training, self.space, part=self.part, group=self, place=place,
                       aim=objective)  # fmt: skip

    def chain(self, model: ModelConfig, place: StagePart) -> tuple[Operator, ...]:
        """The operators of a chunk."""
        if place not in self._chains:
            self._chains[place] = _operators(model, self.part, place)
        return self._chains[place]

    def searched(self, place: StagePart, objective: ChunkAim) -> Stage:
        """The best plan of a chunk."""
        key = place, objective
        if key not in self._stages:
            self._stages[key] = Stage.of(self, search(self.planner(place, objective)))
        return self._stages[key]

    def given(self, place: StagePart, sequences: Mapping[str, str]) -> Stage:
        """The plan with these sequences. Raises `PlanError` for one that is not in the space."""
        planner = self.planner(place, ChunkAim())
        return Stage.of(self, Given.with_sequences(planner, sequences).result)


@dataclass
class _Layers(Planner):
    """Plans of the layers of a chunk, with the embedding in the first, the head in the last."""

    group: StageDevices = field(kw_only=True)
    place: StagePart = field(kw_only=True)
    aim: ChunkAim = field(kw_only=True)

    def __post_init__(self) -> None:
        self.catalogue = self.group.catalogue
        self.operators = self.group.chain(self.model, self.place)
        self.named = {operator.name: operator for operator in self.operators}
        self._ways = self.group.ways
        self._seconds: dict[object, Vector] = {}

    @cached_property
    def runs(self) -> Repeated:
        """What runs again in backward."""
        return repeated(self.operators, self.aim.recompute)

    def options(self, name: str) -> Options:
        """Options of an operator; of those with equal layouts, the cheapest."""
        key = self.key(name)
        if key not in self.known:
            options = self.catalogue.options(self.named[name])
            if len(options):
                self.known[key] = options.cheapest(self._aimed(name, options))
        return super().options(name)

    def objective(self, name: str) -> Vector:
        """Seconds of a micro-batch, and the share of what takes place once, by option."""
        key = self.key(name)
        if key not in self._seconds:
            self._seconds[key] = self._aimed(name, self.options(name))
        return self._seconds[key]

    def _aimed(self, name: str, options: Options) -> Vector:
        terms, aim = options.terms, self.aim
        often, once = seconds_for_parameters(terms, aim.shard)
        seconds: Vector = terms["compute"] + terms["communication"] + often + aim.once * once
        if name in self.runs.again:
            seconds = seconds + terms["forward"]
            if self.runs.sends:
                seconds = seconds + terms["forward_communication"]
        return seconds + aim.alpha * self._kept(name, terms) if aim.alpha else seconds

    def _kept(self, name: str, terms: Mapping[str, Vector]) -> Vector:
        """Bytes that a device keeps for an operator, as if nothing were redistributed.

        A norm keeps its input instead, where what it makes again begins with it.
        """
        kept: Vector = kept_for_parameters(terms, self.aim.shard)
        allowed, operator = self.runs.allowed, self.named[name]
        stash = terms["stash"]
        if not allowed.isdisjoint(operator.inputs):
            stash = stash - terms["unmoved"]
        if name in allowed and (operator.kind != "norm" or not allowed.isdisjoint(operator.inputs)):
            stash = stash - (terms["stash"] - terms["unmoved"])
        return kept + self.aim.flights * stash

    def edge(self, producer: str, consumer: str) -> Matrix:
        """Seconds of redistribution, with that of forward again where the consumer runs again."""
        if consumer not in self.runs.received:
            return super().edge(producer, consumer)
        key = self.key(producer), self.key(consumer)
        if key not in self._edges:
            forward, backward = self.both_ways(producer, consumer)
            self._edges[key] = 2 * forward + backward
        return self._edges[key]


def _operators(model: ModelConfig, part: Part, place: StagePart) -> tuple[Operator, ...]:
    whole, blocks = operators(model), stack(model)
    if part == "blocks":
        return blocks
    body = whole[:-3] if place.first else blocks
    return (*body, *whole[-3:]) if place.last else body


class ChosenOption(NamedTuple):
    """An operator of a chunk with its sequence: the terms of its cost, and its redistributions."""

    operator: Operator
    candidate: Candidate
    cost: Cost
    leaves: int
    """Number of the layout of the operator's output."""
    forward: float
    """Seconds of the redistribution of its inputs."""
    backward: float

    @property
    def name(self) -> str:
        """The name of the operator."""
        return self.operator.name


@dataclass(frozen=True)
class Stage:
    """A plan of one chunk: its operators in order of execution, with what is chosen for them.

    The tables of the search are not kept: there is a search for every size and every option.
    """

    group: StageDevices
    chosen: tuple[ChosenOption, ...]

    @classmethod
    def of(cls, group: StageDevices, result: SearchResult) -> Stage:
        """The plan that a search chose."""
        return cls(group, tuple(_chosen(result)))

    @cached_property
    def operators(self) -> tuple[Operator, ...]:
        """The operators."""
        return tuple(chosen.operator for chosen in self.chosen)

    @property
    def takes(self) -> int:
        """Number of the layout in which the chunk receives."""
        return self.chosen[0].leaves

    @property
    def leaves(self) -> int:
        """Number of the layout in which the chunk sends."""
        return self.chosen[-1].leaves


def _chosen(result: SearchResult) -> Iterator[ChosenOption]:
    planner, choices = result.planner, result.choices
    costs: dict[object, Cost] = {}
    for operator in planner.operators:
        options, number = planner.options(operator.name), choices[operator.name]
        key = id(options), number
        if key not in costs:
            costs[key] = Cost(**{term: float(amounts[number])
                                 for term, amounts in options.terms.items()})  # fmt: skip
        ways = [tuple(float(way[choices[producer], number])
                      for way in planner.both_ways(producer, operator.name))
                for producer in operator.inputs]  # fmt: skip
        forward, backward = (sum(way) for way in zip(*ways, strict=True)) if ways else (0, 0)
        if operator.name == "head" and planner.tied:
            backward += float(planner.tie()[choices["embedding"], number])
        yield ChosenOption(operator, options.candidates[number], costs[key],
                           int(options.leaves[number]), forward, backward)  # fmt: skip
