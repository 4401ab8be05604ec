"""A model on p stages of d replicas of m devices: the best split, micro-batches and options.

Stages are outermost among the devices, then replicas; the devices of tensor parallelism are
neighbours. Every replica takes its share of the batch in micro-batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Sequence as Several
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf, prod
from typing import get_args

from msgspec.structs import replace as changed

from primepar.errors import ClusterError, PlanError
from primepar.models.config import ModelConfig
from primepar.plan.cluster import Cluster
from primepar.plan.cost.layouts import Ways
from primepar.plan.cost.linear import Training
from primepar.plan.cost.links import ClusterLinks
from primepar.plan.cost.lower_bounds import LeastWays
from primepar.plan.pipeline.all_splits import all_splits, divisors, no_split
from primepar.plan.pipeline.boundaries import Split
from primepar.plan.pipeline.operator_choice import fastest_choice
from primepar.plan.pipeline.pipeline_cost import Pipeline
from primepar.plan.pipeline.stage import ChunkAim, StageDevices, StagePart
from primepar.plan.pipeline.stage_cost import StageCost
from primepar.plan.pipeline.training_options import (
    OptionChoices,
    Recompute,
    Shard,
    TrainingOptions,
)
from primepar.plan.pipeline_layout import layers_by_stage
from primepar.plan.search.options import Catalogue
from primepar.plan.search.planner import Part, Planner
from primepar.plan.search.sequence_space import SpaceName

Sequences = Callable[[Planner], Mapping[str, str]]
PLAIN = TrainingOptions()
LARGEST, BISECTIONS = 8.0, 5
"""The largest weight of memory, and how many others are tried next."""


@dataclass
class Splits:
    """Splits of `devices` devices of a cluster, for steps of `batch` sequences of a model."""

    model: ModelConfig
    cluster: Cluster
    devices: int
    batch: int
    dtype: str
    space: SpaceName = "all"
    part: Part = "model"
    choices: OptionChoices = field(default_factory=OptionChoices)
    tick: Callable[[str], object] = field(default=str, repr=False)
    """Called with the name of what is planned next, for a progress bar."""
    _groups: dict[object, StageDevices] = field(default_factory=dict)
    _shared: dict[int, tuple[Catalogue, dict[object, Ways | LeastWays]]] = field(
        default_factory=dict
    )
    """By devices of a replica what does not depend on the size of a step."""

    def __post_init__(self) -> None:
        if not 1 <= self.devices <= self.cluster.devices:
            raise ClusterError(
                f"--devices: expected 1 to {self.cluster.devices}, the devices of the cluster "
                f"{self.cluster.name}, got {self.devices}: take {self.cluster.devices}"
            )
        self.cluster.rate(self.dtype)

    def ranked(self) -> list[Pipeline]:
        """The best pipeline of every split: those that fit the memory first, the fastest first.

        For splits that cannot be the first of them, not all plans with less memory are tried.
        Raises `PlanError` where no split has a plan.
        """
        pipelines: list[Pipeline] = []
        refusal = None
        for split in reversed([*all_splits(self.model, self.cluster, self.devices, self.batch)]):
            try:
                pipelines.append(self.best(split, known=self._fastest(pipelines)))
            except PlanError as error:
                refusal = refusal or error
        if not pipelines:
            raise refusal or no_split(self.model, self.devices, self.batch)
        return sorted(pipelines, key=self._rank)

    def _no_interleaving(self) -> PlanError:
        devices = f"{self.devices} device{'s' * (self.devices != 1)}"
        return PlanError(
            "expected layers for 2 stages of 2 chunks or more, and micro-batches in a multiple of "
            "the stages, for interleaved-1f1b, got "
            f"{self.model.layers} layers, a batch of {self.batch} and {devices}: take "
            "--schedule 1f1b"
        )

    def _rank(self, pipeline: Pipeline) -> tuple[bool, float]:
        return not self._fits(pipeline), pipeline.seconds

    def best(
        self, split: Split, sequences: Sequences | None = None, known: float = inf
    ) -> Pipeline:
        """A split with the fastest micro-batches and options of those that fit the memory.

        Where none fits, it is one that takes little memory. What is computed again only takes time.
        So it is tried where that may be the fastest that fits, and no earlier. Where no plan can
        take less than `known` seconds, the first with less memory that fits is taken. Raises
        `PlanError` where the split has no micro-batches for the schedules.
        """
        possible = [shard for shard in self.choices.shards if self._may_fit(split, shard)]
        if not possible:
            return self._least(split, sequences)
        plain = sorted(self._plain(split, possible, sequences), key=lambda known: known.seconds)
        if not plain:
            raise self._no_interleaving()
        tried = [*plain]
        for pipeline in plain:
            if pipeline.seconds >= self._fastest(tried):
                break
            if not self._fits(pipeline) or not {"none", "operators"} & {*self.choices.recomputes}:
                tried += self._with_recompute(pipeline, sequences)
        tried = [*self._allowed(tried)]
        fastest = min(tried, key=self._worth)
        if isinstance(fastest.options.recompute, tuple):
            tried.append(self._searched(fastest, fastest.options.recompute, sequences))
        if sequences is None:
            tried += self._lighter(tried, any_fits=plain[0].seconds >= known)
        return min(tried, key=self._worth)

    def _fastest(self, pipelines: Iterable[Pipeline]) -> float:
        """Seconds of the fastest that fits."""
        fitting = (known.seconds for known in self._allowed(pipelines) if self._fits(known))
        return min(fitting, default=inf)

    def _lighter(self, pipelines: Several[Pipeline], any_fits: bool) -> Iterator[Pipeline]:
        """Yield pipelines whose sequences are chosen for less memory, where that may be faster.

        Each byte that a device keeps counts as alpha seconds, for several values of alpha. Of
        options that differ in shards or chunks alone, those of the fastest are taken. With
        `any_fits` they end with the first that fits.
        """
        best = self._fastest(pipelines)
        too_large = (known for known in pipelines if not self._fits(known))
        done = set()
        for pipeline in sorted(too_large, key=lambda known: known.seconds):
            key = pipeline.size, pipeline.options.recompute
            if pipeline.seconds >= best or (any_fits and best < inf):
                break
            if key not in done:
                done.add(key)
                for lighter in self._weighed(pipeline, 0 if any_fits else BISECTIONS):
                    yield lighter
                    best = min(best, lighter.seconds if self._fits(lighter) else inf)

    def _weighed(self, pipeline: Pipeline, bisections: int) -> Iterator[Pipeline]:
        """Yield plans for several weights of memory, if that for the largest one fits.

        A weight of 1 is that with which the memory of a device counts as the time of a step. The
        least that fits is sought by bisection.
        """

        def lighter(weight: float) -> Pipeline:
            return self.pipeline(pipeline.split, pipeline.size, None, pipeline.options, weight)

        fitting = lighter(LARGEST)
        yield fitting
        low, high = LARGEST / 1024, LARGEST
        for _ in range(bisections if self._fits(fitting) else 0):
            middle = (low * high) ** 0.5
            between = lighter(middle)
            yield between
            low, high = (low, middle) if self._fits(between) else (middle, high)

    def _allowed(self, pipelines: Iterable[Pipeline]) -> Iterator[Pipeline]:
        choices = self.choices.recomputes
        return (known for known in pipelines
                if "operators" in choices or known.options.recompute in choices)  # fmt: skip

    def _fits(self, pipeline: Pipeline) -> bool:
        return pipeline.memory <= self.cluster.memory

    def _may_fit(self, split: Split, shard: Shard) -> bool:
        """Whether parameters, gradients and states of the longest stage can fit a device."""
        layers = max(layers_by_stage(self.model.layers, split.stages))
        bits = split.parts.bit_length() - 1
        training = Training(ClusterLinks(self.cluster, bits), self.dtype, 1, self.model.context)
        shards = {name: number for number, name in enumerate(get_args(Shard))}
        level, item = shards[shard], training.item
        sizes = (training.state, item, item)  # of what the levels divide: states, gradients, ...
        whole = sum(size / (split.replicas if level > number else 1)
                    for number, size in enumerate(sizes))  # fmt: skip
        return layers * self._layer_parameters / split.parts * whole <= self.cluster.memory

    @cached_property
    def _layer_parameters(self) -> int:
        """Parameters of a layer."""
        shapes = self.model.parameter_shapes
        return sum(prod(shape) for name, shape in shapes.items() if name.startswith("blocks.0."))

    def _least(self, split: Split, sequences: Sequences | None) -> Pipeline:
        """The smallest micro-batches of a split, with all that saves memory."""
        choices = self.choices
        (options, *_) = [*self._options(split, 1, choices.shards[-1:])] or [PLAIN]
        most = choices.recomputes[-1]
        options = changed(options, recompute="full" if most == "operators" else most)
        return self.pipeline(split, 1, sequences, options)

    def _worth(self, pipeline: Pipeline) -> tuple[bool, float]:
        fits = self._fits(pipeline)
        return not fits, pipeline.seconds if fits else pipeline.memory

    def _options(self, split: Split, size: int, shards: Several[Shard]
                 ) -> Iterator[TrainingOptions]:  # fmt: skip
        batches = self.batch // split.replicas // size
        choices = replace(self.choices, shards=tuple(shards))
        return choices.without_recompute(self.model.layers, split.stages, batches)

    def _plain(
        self, split: Split, shards: Several[Shard], sequences: Sequences | None
    ) -> Iterator[Pipeline]:
        """Yield all micro-batches and options that keep all activations."""
        for size in divisors(self.batch // split.replicas):
            for options in self._options(split, size, shards):
                yield self.pipeline(split, size, sequences, options)

    def _with_recompute(
        self, pipeline: Pipeline, sequences: Sequences | None
    ) -> Iterator[Pipeline]:
        """Yield what is computed again by each choice, with sequences for it.

        Operators are chosen one by one for each of these sequences, and those of the pipeline.
        """
        by_operator = "operators" in self.choices.recomputes
        known = [
            self._searched(pipeline, kind, sequences) for kind in ("selective", "full")
            if by_operator or kind in self.choices.recomputes
        ]  # fmt: skip
        yield from known
        if by_operator:
            yield from filter(None, map(fastest_choice, (pipeline, *known)))

    def _searched(
        self, pipeline: Pipeline, recompute: Recompute, sequences: Sequences | None
    ) -> Pipeline:
        options = changed(pipeline.options, recompute=recompute)
        return self.pipeline(pipeline.split, pipeline.size, sequences, options)

    def pipeline(
        self, split: Split, size: int, sequences: Sequences | None = None,
        options: TrainingOptions = PLAIN, weight: float = 0.0,
    ) -> Pipeline:  # fmt: skip
        """A split with micro-batches of `size` sequences; plans are searched or given.

        In a search with a `weight` memory counts too, as `_weighed` defines.
        """
        self.tick(f"{split.stages} x {split.replicas} x {split.parts}, micro-batches of {size}")
        group, chunks = self.group(split, size), options.chunks
        microbatches = self.batch // split.replicas // size
        passes = microbatches + split.stages - 1  # without chunks: one search for any number
        aim = ChunkAim(1 / passes, options.shard, options.recompute)
        if weight:
            plain = self.pipeline(split, size, None, options)
            alpha = weight * plain.seconds / passes / self.cluster.memory
            aim = aim._replace(alpha=alpha, flights=plain.most_in_flight)
        count, costs = split.stages * chunks, dict[StagePart, StageCost]()
        places = []
        for number, layers in enumerate(layers_by_stage(self.model.layers, count)):
            place = StagePart(layers, number == 0, number == count - 1)
            places.append(place)
            if place not in costs:
                stage = (group.searched(place, aim) if sequences is None
                         else group.given(place, sequences(group.planner(place, aim))))  # fmt: skip
                costs[place] = StageCost(stage)
        every = tuple(costs[place] for place in places)
        return Pipeline(self.cluster, split, size, microbatches, options, every)

    def group(self, split: Split, size: int) -> StageDevices:
        """The devices of a replica of a stage, for micro-batches of `size` sequences."""
        tied = self.model.tied and split.stages == 1
        bits = split.parts.bit_length() - 1
        sums = ClusterLinks(self.cluster, bits, split.replicas, split.stages)
        key = split.parts, size, tied, split.replicas, sums.between_replicas
        if key not in self._groups:
            model = replace(self.model, tied=tied)
            training = Training(ClusterLinks(self.cluster, bits), self.dtype, size,
                                self.model.context, sums)  # fmt: skip
            if split.parts not in self._shared:
                whole = Catalogue.whole(model, training, self.space)
                self._shared[split.parts] = whole, {}
            catalogue, ways = self._shared[split.parts]
            self._groups[key] = StageDevices(model, training, catalogue.like(model, training),
                                             self.space, self.part, ways)  # fmt: skip
        return self._groups[key]
