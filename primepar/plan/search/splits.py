"""Plans on p stages of d replicas of m devices: the best of each split of the devices.

All splits are enumerated, with all micro-batches and options that may be best. The search is exact
for the sequences of a chunk of a stage on the m devices of one replica.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Sequence as Several
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from heapq import heapify, heappop, heappush
from math import ceil, inf, log2, prod
from typing import Any, NamedTuple, get_args

from primepar.errors import ClusterError, PlanError
from primepar.models.config import ModelConfig
from primepar.models.graph import Operator, operators, stack
from primepar.plan.cluster import Cluster
from primepar.plan.cost.layouts import Ways
from primepar.plan.cost.linear import Training
from primepar.plan.cost.links import ClusterLinks
from primepar.plan.kernels import kernels
from primepar.plan.pipeline_layout import layers_by_stage, micro_batches
from primepar.plan.plan import Plan
from primepar.plan.search.options import Candidates, Catalogue, Matrix, Options, Vector
from primepar.plan.search.planner import Part, Planner
from primepar.plan.search.result import Given
from primepar.plan.search.row import PlanRow, Split, name_in_model
from primepar.plan.search.search import EXACT, search
from primepar.plan.search.sequence_space import FREE, Axes, SpaceName
from primepar.plan.search.stage_cost import (
    PLAIN,
    OptionChoices,
    Recompute,
    RecomputeChoice,
    Repeated,
    Shard,
    Stage,
    StageCost,
    TrainingOptions,
    kept_for_parameters,
    repeated,
    seconds_for_parameters,
)

Sequences = Callable[[Planner], Mapping[str, str]]
FEW_LAYERS = 3
"""Layers for which a chunk is planned, if it has more."""
NEAR = 1.1
"""Splits that may take this much of the first one's time are searched whole."""
LARGEST, MOST_WEIGHTS = 8.0, 5
"""The largest weight of memory, and how many others are tried next at most."""


def all_splits(
    model: ModelConfig, cluster: Cluster, devices: int, batch: int, parts_asked: int | None = None
) -> Iterator[Split]:
    """All splits of some devices that the layers and the batch allow.

    The search is exact for the devices of a replica of a stage. They are a power of two, at most
    those of a node or `EXACT`, unless as many are asked. They fill groups of a level of links, or
    are a part of one.
    """
    most = most_parts(cluster, parts_asked)
    for stages in divisors(devices):
        for replicas in divisors(devices // stages):
            parts = devices // (stages * replicas)
            if parts & (parts - 1) or parts > most or not _is_even(cluster, parts):
                continue
            if stages <= model.layers and not batch % replicas:
                yield Split(stages, replicas, parts)


def _is_even(cluster: Cluster, parts: int) -> bool:
    joins = [link.joins for link in cluster.links]
    return all(max(parts, size) % min(parts, size) == 0 for size in joins[:-1])


def most_parts(cluster: Cluster, asked: int | None = None) -> int:
    """Most devices of a replica of a stage: those of a node, or as many as are asked."""
    return min(EXACT, max(1 << cluster.devices_per_node.bit_length() - 1, asked or 1))


def no_split(model: ModelConfig, devices: int, batch: int, most: int) -> PlanError:
    """The error for devices that have no split."""
    power = 1 << devices.bit_length() - 1
    return PlanError(
        f"expected devices that are stages, at most {model.layers}, by replicas that divide the "
        f"batch of {batch}, by at most {most} devices, a power of two, got {devices}: take "
        f"{power}, or another --batch"
    )


def divisors(number: int) -> Iterable[int]:
    """All divisors, the least first."""
    return (factor for factor in range(1, number + 1) if not number % factor)


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
    ways: dict[object, tuple[Ways, Any]]
    """Redistributions between layouts of the catalogue, filled on demand."""
    slices: frozenset[int] | None
    _stages: dict[tuple[StagePart, ChunkAim], Stage] = field(default_factory=dict)

    def planner(self, place: StagePart, objective: ChunkAim) -> Planner:
        """The planner of a chunk."""
        model = replace(self.model, layers=place.layers)
        return _Layers(model, self.training, self.space, part=self.part, slices=self.slices,
                       group=self, place=place, aim=objective)  # fmt: skip

    def chain(self, model: ModelConfig, place: StagePart) -> tuple[Operator, ...]:
        """The operators of a chunk."""
        return _operators(model, self.part, place)

    def searched(self, place: StagePart, objective: ChunkAim) -> Stage:
        """The best plan of a chunk.

        Where it is not the whole model, that of a few layers, whose inner one is repeated.
        """
        key = place, objective
        if key not in self._stages:
            few = place
            if not (place.first and place.last):
                few = place._replace(layers=min(place.layers, FEW_LAYERS))
            if few == place:
                self._stages[key] = search(self.planner(place, objective)).stage.stage
            else:
                chain = self.chain(replace(self.model, layers=place.layers), place)
                self._stages[key] = self.searched(few, objective).in_layers(chain)
        return self._stages[key]

    def given(self, place: StagePart, sequences: Mapping[str, str]) -> Stage:
        """The plan with these sequences. Raises `PlanError` for one that is not in the space."""
        planner = self.planner(place, ChunkAim())
        return Given.with_sequences(planner, sequences).result.stage.stage


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

    @cached_property
    def runs(self) -> Repeated:
        """What runs again in backward."""
        return repeated(self.operators, self.aim.recompute)

    def cost_of(self, name: str, options: Options) -> Vector:
        """Seconds of a micro-batch, and the share of what takes place once, by option."""
        terms, aim = options.terms, self.aim
        often, once = seconds_for_parameters(terms, aim.shard)
        seconds: Vector = terms["compute"] + terms["communication"] + often + aim.once * once
        if name in self.runs.again:
            seconds = seconds + terms["forward"]
            if self.runs.sends:
                seconds = seconds + terms["forward_communication"]
        return seconds + aim.alpha * self.kept_of(name, options) if aim.alpha else seconds

    def kept_of(self, name: str, options: Options) -> Vector:
        """Bytes that a device keeps for an operator, as if nothing were redistributed.

        A norm keeps its input instead, where what it makes again begins with it.
        """
        terms = options.terms
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


@lru_cache(maxsize=256)
def _operators(model: ModelConfig, part: Part, place: StagePart) -> tuple[Operator, ...]:
    whole, blocks = operators(model), stack(model)
    if part == "blocks":
        return blocks
    body = whole[:-3] if place.first else blocks
    return (*body, *whole[-3:]) if place.last else body


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
    posted: bool = False
    """Whether sums and gathers run during computations, as a step's program posts them."""
    axes: Axes = FREE
    candidates: Candidates | None = None
    """Sequences to choose from; None for the whole space."""
    stopped: bool = field(default=False, init=False)
    """Whether Ctrl-C ended an enumeration."""
    _groups: dict[object, StageDevices] = field(default_factory=dict)
    _shared: dict[int, tuple[Catalogue, dict[object, tuple[Ways, Any]]]] = field(
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

    def tried(self, known: Several[PlanRow] = ()) -> list[PlanRow]:
        """Pipelines of every split: those that were tried to find its best.

        For splits that cannot be near the first of them, or of other plans that are `known`, not
        all options are tried. Ctrl-C ends it, once there is a plan. Raises `PlanError` where no
        split has one.
        """
        pipelines: list[PlanRow] = []
        refusal, limit = None, self._fastest(known)
        splits = all_splits(self.model, self.cluster, self.devices, self.batch, self._parts_asked)
        allowed = [split for split in splits if [*self._sizes(split)]]
        # Those with as many stages as devices of a replica are mostly fast, and bound the others.
        for split in sorted(allowed, key=lambda split: abs(log2(split.stages / split.parts))):
            try:
                pipelines += self.of_split(split, NEAR * min(limit, self._fastest(pipelines)))
            except PlanError as error:
                refusal = refusal or error
            except KeyboardInterrupt:
                self.stopped = bool(pipelines or known)
                if not self.stopped:
                    raise
                break
        if not pipelines and not known:
            if not allowed and self.axes != FREE:
                raise self.axes.refusal(self.devices, self.batch)
            most = most_parts(self.cluster, self._parts_asked)
            raise refusal or no_split(self.model, self.devices, self.batch, most)
        return pipelines

    def refuse_what_cannot_fit(self, whose: str = "a device") -> None:
        """Raise `PlanError` where parameters alone exceed the bytes of a device in every plan.

        They are divided over all devices at most, with their gradients and states. A plan that is
        not refused may still not fit.
        """
        bits = ClusterLinks(self.cluster, 0)
        training = Training(bits, self.dtype, 1, self.model.context)
        of_one = training.state + training.item + training.wide_item
        whole, bound = self.model.parameters * of_one, self.cluster.memory
        least, there = ceil(whole / bound), self.cluster.devices
        if whole <= bound * self.devices:
            return
        power = 1 << (least - 1).bit_length()
        instead = f"take --devices {power}, or more"
        if power > there:
            instead = f"no number of the cluster's {there} devices is enough"
        raise PlanError(
            f"expected a plan within the {bound:,.0f} bytes of {whose}, got none: parameters with "
            f"gradients and optimizer states alone take {ceil(whole / self.devices):,} bytes of "
            f"each of {self.devices} devices: {instead}, at least {least:,} are needed"
        )

    @property
    def _parts_asked(self) -> int:
        """Devices of a replica that tensor or expert parallelism ask for."""
        experts = self.model.experts
        return max(self.axes.tp or 1, (experts and experts.spread) or 1)

    def _slices(self, split: Split, size: int) -> frozenset[int] | None:
        return self.axes.slices(split.parts, size, split.replicas)

    def _sizes(self, split: Split) -> Iterator[int]:
        """Sequences of a micro-batch that a split may have."""
        for size in divisors(self.batch // split.replicas):
            if self.axes.pp in (None, split.stages) and self._slices(split, size) != frozenset():
                yield size

    def of_split(self, split: Split, known: float = inf) -> list[PlanRow]:
        """Micro-batches and options of a split, among them the fastest of those that fit.

        Where none fits, there is one that takes little memory. Where no plan can take less than
        `known` seconds, the first that fits is enough.
        """
        possible = [shard for shard in self._shards(split) if self._may_fit(split, shard)]
        tried = self._tried(split, possible, known) if possible else []
        if self._fastest(tried) == inf:
            tried += self._least(split)
        if possible:
            tried = [*self._allowed(tried)]
            tried += self._lighter(tried, known)
        return tried

    def _tried(self, split: Split, shards: Several[Shard], known: float) -> list[PlanRow]:
        """Micro-batches and options, from the lowest bound on, until none may be faster.

        One that is tried leads to more: in several chunks it has a smaller bubble, and what is
        computed again only takes time. So do gradients in shards, next to states. So the bounds of
        these are known.
        """
        tried, best = list[PlanRow](), inf
        first = [shard for shard in shards if shard != "gradients" or "optimizer" not in shards]
        ahead: list[tuple[float, int, Shard, RecomputeChoice, int]] = [
            (self._ideal(split, size), size, shard, "none", 1)
            for size in self._sizes(split) for shard in first
        ]  # fmt: skip
        heapify(ahead)
        again = set[tuple[int, Shard]]()
        while ahead and ahead[0][0] < min(best, known):
            _, size, shard, recompute, chunks = heappop(ahead)
            options = TrainingOptions.in_chunks(chunks, shard, recompute)
            pipeline = self.pipeline(split, size, None, options)
            tried.append(pipeline)
            best, fits = self._fastest(tried), any(self._fitting([pipeline]))
            if chunks == 1:
                several = self._several(split, pipeline.microbatches)
                # Several chunks take no less memory: then the most even ones are enough.
                for more in several if fits else several[:1]:
                    heappush(ahead, (pipeline.in_chunks(more), size, shard, recompute, more))
            if recompute == "none" and not fits and (size, shard) not in again:
                again.add((size, shard))
                for kind in self.choices.recomputes:
                    if kind != "none":
                        heappush(ahead, (pipeline.seconds, size, shard, kind, 1))
                if shard == "optimizer" and shard in first and "gradients" in shards:
                    heappush(ahead, (pipeline.seconds, size, "gradients", "none", 1))
        return tried

    def _shards(self, split: Split) -> Several[Shard]:
        """What may be in shards: where a device has no equal one, all choices are the first."""
        shards = self.choices.shards
        return shards if split.replicas * split.parts > 1 else shards[:1]

    def _several(self, split: Split, batches: int) -> list[int]:
        """Numbers of chunks above one: those that divide the layers first, then the largest."""
        stages, layers = split.stages, self.model.layers
        most = self.choices.most_chunks(layers, stages, batches)
        return sorted(range(2, most + 1), key=lambda n: (layers % (stages * n) > 0, -n))

    def _ideal(self, split: Split, size: int) -> float:
        """Seconds of a step of which the products of the layers alone take no less."""
        model, stages = self.model, split.stages
        rate = self.cluster.rate(self.dtype).product()
        fastest: float = rate.rate if rate.measured is None else rate.measured.best
        weights = sum(active for _, active in model.layer_weights.values())
        layer = 6 * weights * model.context * size / split.parts / fastest
        batches = self.batch // split.replicas // size
        chunks = self.choices.most_chunks(model.layers, stages, batches)
        return layer * (ceil(model.layers / stages) * batches
                        + model.layers // stages * (stages - 1) / chunks)  # fmt: skip

    def _fastest(self, pipelines: Iterable[PlanRow]) -> float:
        """Seconds of the fastest that fits."""
        return min((known.seconds for known in self._fitting(pipelines)), default=inf)

    def _fitting(self, pipelines: Iterable[PlanRow]) -> Iterator[PlanRow]:
        return (known for known in self._allowed(pipelines) if self._fits(known))

    def _lighter(self, pipelines: Several[PlanRow], known: float) -> Iterator[PlanRow]:
        """Yield pipelines whose sequences are chosen for less memory, where that may be faster.

        Each byte that a device keeps counts as alpha seconds, for several values of alpha. Of
        options that differ in shards or chunks alone, those of the fastest are taken. Where none
        in less than `known` seconds fits, those with the least memory are, until one fits.
        """
        best, done = self._fastest(pipelines), set()
        too_large = [pipeline for pipeline in pipelines if not self._fits(pipeline)]
        for pipeline in sorted(too_large, key=lambda pipeline: pipeline.seconds):
            key = pipeline.size, pipeline.options.recompute
            if pipeline.seconds >= min(best, known):
                break
            if key not in done:
                done.add(key)
                for lighter in self._weighed(pipeline, min(best, known)):
                    yield lighter
                    best = min(best, lighter.seconds if self._fits(lighter) else inf)
        for pipeline in sorted(too_large, key=lambda pipeline: pipeline.memory):
            if best == inf:
                for lighter in self._weighed(pipeline):
                    yield lighter
                    best = min(best, lighter.seconds if self._fits(lighter) else inf)

    def _weighed(self, pipeline: PlanRow, known: float = inf) -> Iterator[PlanRow]:
        """Yield plans for several weights of memory, if that for the largest one fits.

        A weight of 1 is that with which the memory of a device counts as the time of a step. As in
        `within`, the next weight is that under which a faster and a smaller plan have the same sum,
        until no plan is below the line through them, or none that fits takes less than `known`.
        """
        fast, most = pipeline, self.cluster.memory
        small = self._with_weight(pipeline, LARGEST)
        yield small
        for _ in range(MOST_WEIGHTS if self._fits(small) else 0):
            if fast.memory <= small.memory or small.seconds <= fast.seconds:
                break
            slope = (small.seconds - fast.seconds) / (fast.memory - small.memory)
            between = self._with_weight(pipeline, slope * most / pipeline.seconds)
            yield between
            least = between.seconds + slope * between.memory
            if least >= min(small.seconds + slope * small.memory, known + slope * most):
                break
            fast, small = (fast, between) if self._fits(between) else (between, small)

    def _with_weight(self, pipeline: PlanRow, weight: float) -> PlanRow:
        return self.pipeline(pipeline.split, pipeline.size, None, pipeline.options, weight)

    def _allowed(self, pipelines: Iterable[PlanRow]) -> Iterator[PlanRow]:
        choices = self.choices.recomputes
        return (known for known in pipelines if known.options.recompute in choices)

    def _fits(self, pipeline: PlanRow) -> bool:
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

    def _least(self, split: Split) -> Iterator[PlanRow]:
        """Yield micro-batches of a split with all that saves memory, as long as these fit."""
        shard, recompute = self._shards(split)[-1], self.choices.recomputes[-1]
        for size in self._sizes(split):
            several = self._several(split, self.batch // split.replicas // size)
            options = (TrainingOptions.in_chunks(chunks, shard, recompute)
                       for chunks in (1, *several[:1]))  # fmt: skip
            some = [self.pipeline(split, size, None, choice) for choice in options]
            yield from some
            if not any(map(self._fits, some)):
                break

    def pipeline(
        self, split: Split, size: int, sequences: Sequences | None = None,
        options: TrainingOptions = PLAIN, weight: float = 0.0,
    ) -> PlanRow:  # fmt: skip
        """A split with micro-batches of `size` sequences; plans are searched or given.

        In a search with a `weight` memory counts too, as `_weighed` defines.
        """
        self.tick(f"{split}, micro-batches of {size}")
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
        planner = group.planner(places[0], aim) if count == 1 else None
        return PlanRow(self.model, self.cluster, split, size, microbatches, options, every,
                       self.space, planner=planner)  # fmt: skip

    def group(self, split: Split, size: int) -> StageDevices:
        """The devices of a replica of a stage, for micro-batches of `size` sequences."""
        tied = self.model.tied and split.stages == 1
        bits = split.parts.bit_length() - 1
        sums = ClusterLinks(self.cluster, bits, split.replicas, split.stages)
        key = split.parts, size, tied, split.replicas, sums.between_replicas
        if key not in self._groups:
            model = self.model if tied == self.model.tied else replace(self.model, tied=tied)
            runs = not (model.priced and model.priced.what)
            known = kernels(model, model.context, self.dtype) if self.posted and runs else None
            links = ClusterLinks(self.cluster, bits)
            training = Training(links, self.dtype, size, model.context, sums, known)
            if split.parts not in self._shared:
                whole = Catalogue.whole(model, training, self.space, self.candidates)
                self._shared[split.parts] = whole, {}
            catalogue, ways = self._shared[split.parts]
            self._groups[key] = StageDevices(model, training, catalogue.like(model, training),
                                             self.space, self.part, ways,
                                             self._slices(split, size))  # fmt: skip
        return self._groups[key]

    def given(self, plan: Plan) -> PlanRow:
        """A plan as chunks of its model. Raises `PlanError` where a cut has no price."""
        layout = plan.schedule or micro_batches(1)
        replicas = plan.stage_ranks // (plan.stage_ranks & -plan.stage_ranks)
        split = Split(layout.stages, replicas, plan.stage_ranks // replicas)
        count, first, chunks = len(layout.stage_chunks), 0, []
        options = TrainingOptions(
            shard="optimizer" if plan.sharded_optimizer else "none",
            recompute=plan.recompute or "none",
            schedule=layout.schedule,
            chunks=count // layout.stages,
        )
        size = self.batch // layout.micro_batches // replicas
        group = self.group(split, size)
        for number, layers in enumerate(layers_by_stage(plan.model.layers, count)):
            place = StagePart(layers, number == 0, number == count - 1)
            chain = group.chain(replace(plan.model, layers=layers), place)
            names = {operator.name: name_in_model(operator.name, first) for operator in chain}
            if first:  # the addition before the chunk is that at the end of the layer before
                names["stream"] = f"blocks.{first - 1}.add2"
            sequences = {
                name: _inside(plan.sequences[whole], replicas) for name, whole in names.items()
            }
            chunks.append(StageCost(group.given(place, sequences)))
            first += layers
        every = tuple(chunks)
        return PlanRow(self.model, self.cluster, split, size, layout.micro_batches, options, every,
                       self.space)  # fmt: skip


def _inside(text: str, replicas: int) -> str:
    """A sequence inside one of some replicas, which are the outermost cut of its rows."""
    if replicas == 1:
        return text
    first, _, others = text.partition(",")
    cut = re.fullmatch(r"M(\d+)", first)
    if cut is None or int(cut[1]) % replicas:
        raise PlanError(
            f"plan: expected a first cut of the rows, by a multiple of {replicas}, in every "
            f"sequence, as devices of a replica are a power of two, got {text}: write "
            f"M{replicas},... or price it with primepar simulate"
        )
    rest = int(cut[1]) // replicas
    return ",".join(filter(None, (f"M{rest}" if rest > 1 or not others else "", others)))
