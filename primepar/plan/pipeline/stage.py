"""One stage of a pipeline: some layers of a model on the devices of one tensor-parallel group."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

from primepar.models.config import ModelConfig
from primepar.models.graph import Operator, operators, stack
from primepar.plan.cost.linear import Training
from primepar.plan.search.given_plan import Given
from primepar.plan.search.options import Catalogue, Options
from primepar.plan.search.planner import Part, Planner
from primepar.plan.search.result import SearchResult
from primepar.plan.search.search import search
from primepar.plan.search.sequence_space import SpaceName


class StagePart(NamedTuple):
    """The part of a model in a stage: its number of layers, and whether it is first or last."""

    layers: int
    first: bool
    last: bool


@dataclass
class StageDevices:
    """The devices of one replica of one stage, and the stages planned for them.

    A step of `training` is one microbatch.
    """

    model: ModelConfig
    training: Training
    space: SpaceName
    part: Part
    _stages: dict[tuple[StagePart, float], Stage] = field(default_factory=dict)

    @cached_property
    def catalogue(self) -> Catalogue:
        """Options of the operators."""
        return Catalogue.whole(self.model, self.training, self.space)

    def planner(self, place: StagePart, summing: float = 0.0) -> Planner:
        """The planner of a stage; each parameter of a device adds `summing` seconds."""
        model = replace(self.model, layers=place.layers)
        return _Layers(model, self.training, self.space, part=self.part, group=self, place=place,
                       summing=summing)  # fmt: skip

    def searched(self, place: StagePart, summing: float = 0.0) -> Stage:
        """The best plan of a stage; `summing` counts in the search, not in the result."""
        if (place, summing) not in self._stages:
            result = search(self.planner(place, summing))
            self._stages[place, summing] = self.given(place, result.sequences)
        return self._stages[place, summing]

    def given(self, place: StagePart, sequences: Mapping[str, str]) -> Stage:
        """The plan with these sequences. Raises `PlanError` for one that is not in the space."""
        return Stage(self, Given.with_sequences(self.planner(place), sequences).result)


@dataclass
class _Layers(Planner):
    """Plans of the layers of a stage, with the embedding in the first, the head in the last."""

    group: StageDevices = field(kw_only=True)
    place: StagePart = field(kw_only=True)
    summing: float = field(kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.catalogue = self.group.catalogue
        self.operators = _operators(self.model, self.part, self.place)
        self.named = {operator.name: operator for operator in self.operators}

    def options(self, name: str) -> Options:
        """Options of an operator, with the time to all-reduce its gradients."""
        key = self.key(name)
        if self.summing and key not in self.known:
            whole = self.catalogue.options(self.named[name])
            parameters = whole.terms["states"] / self.training.state
            reduction = whole.terms["reduction"] + self.summing * parameters
            options = replace(whole, terms={**whole.terms, "reduction": reduction})
            self.known[key] = options.cheapest(options.seconds)
        return super().options(name)


def _operators(model: ModelConfig, part: Part, place: StagePart) -> tuple[Operator, ...]:
    whole, blocks = operators(model), stack(model)
    if part == "blocks":
        return blocks
    body = whole[:-3] if place.first else blocks
    return (*body, *whole[-3:]) if place.last else body


@dataclass(frozen=True)
class Stage:
    """A plan of one stage, with its time, memory and layouts at both ends."""

    group: StageDevices
    result: SearchResult

    @property
    def seconds(self) -> float:
        """Seconds of forward and backward of a microbatch."""
        return self.result.seconds

    @cached_property
    def kept(self) -> float:
        """Bytes that a device keeps between microbatches, plus one stash."""
        return sum(float(options.kept[number]) for options, number in self._chosen)

    @cached_property
    def stash(self) -> float:
        """Bytes of a device that one microbatch stashes from forward to backward."""
        return sum(float(options.terms["stash"][number]) for options, number in self._chosen)

    @property
    def parameters(self) -> float:
        """Elements of parameters of a device, without copies of a tied table."""
        states = sum(float(options.terms["states"][number]) for options, number in self._chosen)
        return states / self.group.training.state

    @property
    def _chosen(self) -> Iterator[tuple[Options, int]]:
        planner = self.result.planner
        return ((planner.options(name), number) for name, number in self.result.choices.items())

    @property
    def running(self) -> float:
        """Transient bytes of a device at its largest operator."""
        return self.result.memory - self.kept

    @property
    def takes(self) -> int:
        """Number of the layout in which the stage receives."""
        return self._layout(next(iter(self.result.choices)))

    @property
    def leaves(self) -> int:
        """Number of the layout in which the stage sends."""
        return self._layout([*self.result.choices][-1])

    def _layout(self, name: str) -> int:
        options: Options = self.result.planner.options(name)
        return int(options.leaves[self.result.choices[name]])
