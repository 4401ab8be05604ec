"""One stage of a pipeline: some layers of a model on the devices of one tensor-parallel group."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar, NamedTuple

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
    """What a stage has of a model: so many layers, and whether it is the first and the last one."""

    layers: int
    first: bool
    last: bool


@dataclass(frozen=True)
class _Stashing(Training):
    """Training in which parameters take no memory, to tell what is stashed alone."""

    kept: ClassVar[int] = 0


@dataclass
class StageDevices:
    """The devices of one replica of one stage, and the stages that may be planned for them.

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

    @cached_property
    def stashes(self) -> Catalogue:
        """The same where parameters take no memory."""
        own = self.training
        training = _Stashing(own.wires, own.dtype, own.batch, own.positions)
        return Catalogue.whole(self.model, training, self.space)

    def planner(self, place: StagePart, summing: float = 0.0) -> Planner:
        """The planner of a stage; a parameter on a device costs `summing` seconds on top."""
        model = replace(self.model, layers=place.layers)
        return _Layers(model, self.training, self.space, part=self.part, group=self, place=place,
                       summing=summing)  # fmt: skip

    def searched(self, place: StagePart, summing: float = 0.0) -> Stage:
        """The best plan of a stage, by its time with `summing` and told without."""
        if (place, summing) not in self._stages:
            found = search(self.planner(place, summing))
            self._stages[place, summing] = self.given(place, found.sequences)
        return self._stages[place, summing]

    def given(self, place: StagePart, sequences: Mapping[str, str]) -> Stage:
        """The plan with these sequences. Raises `PlanError` for one that the space has not."""
        return Stage(self, Given.beside(self.planner(place), sequences).found)


@dataclass
class _Layers(Planner):
    """Plans of some layers, the embedding before the first of them, the head after the last."""

    group: StageDevices = field(kw_only=True)
    place: StagePart = field(kw_only=True)
    summing: float = field(kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.catalogue = self.group.catalogue
        self.operators = _operators(self.model, self.part, self.place)
        self.named = {operator.name: operator for operator in self.operators}

    def options(self, name: str) -> Options:
        """Options of an operator, with the time that summing its parameters takes."""
        key = self.key(name)
        if self.summing and key not in self.known:
            every, bare = (each.options(self.named[name])
                           for each in (self.catalogue, self.group.stashes))  # fmt: skip
            parameters = (every.kept - bare.kept) / self.training.kept
            seconds = every.seconds + self.summing * parameters
            self.known[key] = replace(every, seconds=seconds).cheapest(seconds)
        return super().options(name)


def _operators(model: ModelConfig, part: Part, place: StagePart) -> tuple[Operator, ...]:
    whole, blocks = operators(model), stack(model)
    if part == "blocks":
        return blocks
    body = whole[:-3] if place.first else blocks
    return (*body, *whole[-3:]) if place.last else body


@dataclass(frozen=True)
class Stage:
    """A plan of one stage, with what a pipeline needs to know of it."""

    group: StageDevices
    found: SearchResult

    @property
    def seconds(self) -> float:
        """Forward and backward of a microbatch."""
        return self.found.seconds

    @cached_property
    def kept(self) -> float:
        """Bytes of a device at rest, and one stash."""
        planner = self.found.planner
        return sum(float(planner.options(name).kept[at]) for name, at in self.found.choices.items())

    @cached_property
    def stash(self) -> float:
        """Bytes of a device that one microbatch leaves from forward to backward."""
        given = Given.beside(self.found.planner, self.found.sequences)
        given.catalogue = self.group.stashes
        return sum(float(given.options(name).kept[0]) for name in given.named)

    @property
    def parameters(self) -> float:
        """Elements of parameters of a device."""
        return (self.kept - self.stash) / self.group.training.kept

    @property
    def running(self) -> float:
        """Bytes of a device that are there while the operator runs that needs most."""
        return self.found.memory - self.kept

    @property
    def takes(self) -> int:
        """Number of the layout in which it receives."""
        return self._layout(next(iter(self.found.choices)))

    @property
    def leaves(self) -> int:
        """Number of the layout in which it sends."""
        return self._layout([*self.found.choices][-1])

    def _layout(self, name: str) -> int:
        options: Options = self.found.planner.options(name)
        return int(options.leaves[self.found.choices[name]])
