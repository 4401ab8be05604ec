"""Time and memory of one chunk of a model in a pipeline, under some options of training.

A stage has one chunk, or several where the schedule is interleaved. Optimizer states, gradients and
parameters may be in shards over the devices that hold the same parameters: ZeRO-1, 2 and 3
(Rajbhandari et al., arXiv 1910.02054). Activations may be computed again (Chen et al., arXiv
1604.06174; Korthikanti et al., arXiv 2205.05198), of all operators of a layer or of some. 1F1B may
be interleaved (Narayanan et al., SC 2021). Sums over the operators are made once, so that each
choice of options takes few additions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import groupby
from typing import Literal, NamedTuple, Self, TypeVar, get_args

import numpy as np
from msgspec import Struct

from primepar.errors import PlanError
from primepar.models.graph import Operator
from primepar.partition.pipeline.actions import ScheduleName, chunks_of
from primepar.plan.cost.candidate import Candidate
from primepar.plan.cost.layouts import Layouts
from primepar.plan.cost.linear import Cost, Training
from primepar.plan.pipeline_layout import layer_of, layer_operator
from primepar.plan.search.options import Vector
from primepar.plan.search.planner import Planner

Shard = Literal["none", "optimizer", "gradients", "parameters"]
"""What is in shards; each includes what is before it."""
Recompute = Literal["none", "selective", "full"] | tuple[str, ...]
"""Which activations are computed again, as `Recomputation` of a plan: names are of operators."""
RecomputeChoice = Literal["none", "selective", "full"]
"""What to choose from."""
MOST_CHUNKS = 8
"""Most chunks of a stage that are considered."""
EXECUTED_SHARDS: tuple[Shard, ...] = ("none", "optimizer")
"""Shards that a step of `primepar train` may have; the others are only priced."""


class TrainingOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One choice of all options.

    Raises `PlanError` for options that contradict one another.
    """

    shard: Shard = "none"
    recompute: Recompute = "none"
    schedule: ScheduleName = "1f1b"
    chunks: int = 1

    def __post_init__(self) -> None:
        fewest, several = chunks_of(self.schedule), self.schedule == "interleaved-1f1b"
        if self.chunks < fewest or (self.chunks > fewest and not several):
            more = " or more" if several else ""
            raise PlanError(
                f"chunks: expected {fewest} chunk{'s' * (fewest > 1)}{more} of a stage under "
                f"{self.schedule}, got {self.chunks}: take interleaved-1f1b for several, 1f1b for "
                "one"
            )

    @classmethod
    def in_chunks(cls, chunks: int, shard: Shard, recompute: Recompute) -> Self:
        """1F1B, or for several chunks of a stage its interleaved form."""
        schedule: ScheduleName = "1f1b" if chunks == 1 else "interleaved-1f1b"
        return cls(shard=shard, recompute=recompute, schedule=schedule, chunks=chunks)

    @property
    def only_priced(self) -> str | None:
        """The option that a step of `primepar train` does not have; None where it has all."""
        return None if self.shard in EXECUTED_SHARDS else f"{self.shard} in shards"


PLAIN = TrainingOptions()
"""No shards, nothing computed again, one chunk of a stage."""


@dataclass(frozen=True)
class OptionChoices:
    """The options to choose from; all combinations are considered."""

    shards: tuple[Shard, ...] = ("none",)
    recomputes: tuple[RecomputeChoice, ...] = ("none",)
    interleaves: bool = False
    """Whether interleaved 1F1B is considered next to 1F1B."""

    @property
    def has_none(self) -> bool:
        """Whether plans without shards and recomputation are considered."""
        return "none" in self.shards and "none" in self.recomputes

    def most_chunks(self, layers: int, stages: int, batches: int) -> int:
        """The most chunks of a stage, for `batches` micro-batches of layers on stages.

        There are at most `MOST_CHUNKS` chunks of a stage, each with a layer or more. Interleaving
        takes a multiple of the stages as number of micro-batches. Example: 126 layers on 16 stages
        of 4 chunks are 64 chunks, of which the first, with the embedding, and the last, with the
        head, have one layer, and all others two.
        """
        several = self.interleaves and stages > 1 and not batches % stages
        return min(MOST_CHUNKS, layers // stages) if several else 1


EVERY_CHOICE = OptionChoices(get_args(Shard), get_args(RecomputeChoice), interleaves=True)
"""All options, also those that are only priced."""


CHEAP = ("norm", "activation")
"""Kinds of operators that selective recomputation runs again."""
KEEP_INPUT = ("linear", "attention", "activation")
"""Kinds of operators that keep their input for backward."""


class Repeated(NamedTuple):
    """Names of the operators of layers that may run again, and of those that do."""

    allowed: frozenset[str]
    again: frozenset[str]
    received: frozenset[str]
    """Operators whose input is redistributed again."""
    sends: bool
    """Whether messages are sent again."""


@lru_cache(maxsize=4096)
def repeated(operators: tuple[Operator, ...], recompute: Recompute) -> Repeated:
    """What runs again of some operators in the order of execution.

    The choice is that of a step's program. A plan allows some operators of a layer to run again:
    with `full` all of them, with `selective` norms and activations. Of these, those run that
    something needs in backward: an operator that keeps its input for backward, or one that runs
    again itself. A norm needs itself, because it keeps the normalized rows. So the last linear
    operator of a layer, whose output is only added, does not run again.
    """
    layers = [operator for operator in operators if layer_of(operator.name) is not None]
    if isinstance(recompute, tuple):
        may = {known.name for known in layers if layer_operator(known.name) in recompute}
    else:
        kinds = {"none": (), "selective": CHEAP}.get(recompute)
        may = {known.name for known in layers if kinds is None or known.kind in kinds}
    allowed = frozenset(may)
    sends = recompute not in ("none", "selective")
    again: set[str] = set()
    needed: set[str] = set()
    for operator in reversed(operators):
        name = operator.name
        if name in allowed and (operator.kind == "norm" or name in needed):
            again.add(name)
        if operator.kind in KEEP_INPUT or name in again:
            layer = layer_of(name)
            needed |= {source for source in operator.inputs if layer_of(source) == layer}
    reads = {operator.name for operator in operators if operator.kind in KEEP_INPUT} | again
    received = allowed & reads if sends else frozenset[str]()
    return Repeated(allowed, frozenset(again), received, sends)


Amount = TypeVar("Amount", float, Vector)


def seconds_for_parameters(terms: Mapping[str, Amount], shard: Shard) -> tuple[Amount, Amount]:
    """Seconds of sums, gathers and updates for every micro-batch, and once in a step.

    An all-reduce of gradients is a reduce-scatter and an all-gather. With states in shards it is a
    reduce-scatter of gradients and an all-gather of new parameters, once in a step. Gradients in
    shards are scattered after every micro-batch, because no device has room for a whole sum.
    Parameters in shards are gathered for forward and again for backward, and scattered: 3/2 of the
    traffic of an all-reduce (Rajbhandari et al., section 7), in every micro-batch. `terms` are
    those of a `Cost`.
    """
    if shard == "none":
        return 0 * terms["update"], terms["reduction"] + terms["update"]
    scatter, gather, update = (terms[name] for name in ("scatter", "gather", "shard_update"))
    if shard == "optimizer":
        return 0 * update, scatter + gather + update
    if shard == "gradients":
        return scatter, gather + update
    return scatter + 2 * gather, update


def kept_for_parameters(terms: Mapping[str, Vector], shard: Shard) -> Vector:
    """Bytes of parameters, gradients and states of every option, by the terms of a `Cost`."""
    parameters, gradients, states = (terms[name] for name in ("parameters", "gradients", "states"))
    if shard != "none":
        has = np.maximum(parameters, 1.0)  # where there are none, there are no states
        states = states * terms["shard"] / has
    if shard in ("gradients", "parameters"):
        gradients = terms["shard"]
    return (terms["shard"] if shard == "parameters" else parameters) + gradients + states


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

    The tables of the search are not kept: there is a search for every size and every option. A step
    of `training` is one micro-batch.
    """

    training: Training
    layouts: Layouts
    chosen: tuple[ChosenOption, ...]

    @classmethod
    def of(cls, planner: Planner, choices: Mapping[str, int]) -> Stage:
        """The plan of a planner's chosen options."""
        chosen, costs = list[ChosenOption](), dict[object, Cost]()
        # All of them live until the end: the identity of one that is gone may be another's.
        by_name = {operator.name: planner.options(operator.name) for operator in planner.operators}
        for operator in planner.operators:
            options, number = by_name[operator.name], choices[operator.name]
            key = id(options), number
            if key not in costs:
                costs[key] = Cost(**{term: float(amounts[number])
                                     for term, amounts in options.terms.items()})  # fmt: skip
            moved = planner.redistribution_seconds(operator.name, choices)
            chosen.append(ChosenOption(operator, options.candidates[number], costs[key],
                                       int(options.leaves[number]), *moved))  # fmt: skip
        return cls(planner.training, planner.catalogue.layouts, tuple(chosen))

    def in_layers(self, operators: tuple[Operator, ...]) -> Stage:
        """The plan of the same chunk with more layers: the second of three is repeated.

        `operators` are those of the chunk, in the order of execution.
        """
        known = {chosen.name: chosen for chosen in self.chosen}
        last = max(layer_of(name) or 0 for name in known)
        most = max(layer_of(operator.name) or 0 for operator in operators)
        chosen = []
        for operator in operators:
            name, layer = operator.name, layer_of(operator.name)
            if layer is not None:
                there = min(layer, 1) if layer < most else last
                name = f"blocks.{there}.{layer_operator(name)}"
            chosen.append(known[name]._replace(operator=operator))
        return Stage(self.training, self.layouts, tuple(chosen))

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


@dataclass(frozen=True)
class LayerActivations:
    """The operators of a layer in the order of execution, and the one `before` the layer.

    Of what an operator keeps, some is its input as it took it. That is made again by the operator
    before. The rest it makes itself: the rows that a norm has normalized, keys from other devices,
    an input that was sent. So is an input that was redistributed. An operator that runs again needs
    its own input: it is made again, too, or it is kept. Example: where `norm1` runs again and
    nothing before it, the input of the layer is kept instead of the rows that the norm keeps
    otherwise. What runs again is made where backward of the layer begins, or later where its input
    is there. So what consecutive operators make again is there at once, at most.
    """

    stage: Stage
    before: ChosenOption
    chosen: tuple[ChosenOption, ...]

    @cached_property
    def operators(self) -> tuple[Operator, ...]:
        """The operators, without what is chosen for them."""
        return tuple(chosen.operator for chosen in self.chosen)

    def seconds(self, recompute: Recompute) -> tuple[float, float]:
        """Seconds of computing again for a micro-batch, and of messages again."""
        runs = repeated(self.operators, recompute)
        compute = messages = 0.0
        for chosen in self.chosen:
            if chosen.name in runs.again:
                compute += chosen.cost.forward
                messages += chosen.cost.forward_communication * runs.sends
            messages += chosen.forward * (chosen.name in runs.received)
        return compute, messages

    def bytes(self, recompute: Recompute) -> tuple[float, float]:
        """Bytes of a device for a micro-batch: kept for backward, and made again at once."""
        runs = repeated(self.operators, recompute)
        kept = sum(dict(self._inputs(runs)).values())
        most = made = 0.0
        for chosen in self.chosen:
            freed = self._freed(chosen, runs)
            kept += chosen.cost.stash - freed
            made += freed
            most = max(most, made)
            if chosen.name not in runs.allowed:
                made = 0.0
        return kept, most

    def _freed(self, chosen: ChosenOption, runs: Repeated) -> float:
        """Bytes of an operator's stash that are made again."""
        cost, freed = chosen.cost, 0.0
        if chosen.name in runs.allowed and runs.sends:
            freed = cost.stash - cost.unmoved
        elif chosen.name in runs.allowed and chosen.operator.kind == "norm":
            freed = self._output(chosen, self.stage.training.wide_item)
        made = (chosen.name in runs.received if chosen.forward
                else not runs.again.isdisjoint(chosen.operator.inputs))  # fmt: skip
        return freed + cost.unmoved * made

    def _inputs(self, runs: Repeated) -> Iterator[tuple[str, float]]:
        """Bytes of inputs of what runs again that are kept for that alone, by their maker."""
        makers = {chosen.name: chosen for chosen in (self.before, *self.chosen)}
        item = self.stage.training.item
        for chosen in self.chosen:
            is_moved = chosen.forward > 0
            needs = chosen.name in runs.again
            if chosen.operator.kind in KEEP_INPUT:
                needs = is_moved and chosen.name in runs.received
            for source in chosen.operator.inputs if needs else ():
                if source not in runs.again:
                    here = is_moved and not runs.sends
                    yield source, self._output(chosen if here else makers[source], item)

    def _output(self, chosen: ChosenOption, item: int) -> float:
        """Bytes on a device of an operator's output, of elements with `item` bytes."""
        share = self.stage.layouts.share(chosen.leaves)
        return share * self.stage.training.rows * chosen.operator.K * item


class ChunkSeconds(NamedTuple):
    """Seconds of a chunk for one micro-batch, and once in a step."""

    compute: float
    communication: float
    """Transfers that no product hides, with those of gradients and parameters in shards."""
    reduction: float
    """Sums of gradients once in a step, and gathers of new parameters."""
    update: float

    @classmethod
    def of_stage(cls, chunks: Iterable[ChunkSeconds]) -> ChunkSeconds:
        """Seconds of a stage that has these chunks."""
        return cls(*map(sum, zip(*chunks, strict=True)))


class ChunkBytes(NamedTuple):
    """Bytes of a device for a chunk."""

    parameters: float
    gradients: float
    states: float
    stash: float
    """What one micro-batch keeps from forward to backward."""
    running: float

    @classmethod
    def of_stage(cls, chunks: Iterable[ChunkBytes], in_flight: int) -> ChunkBytes:
        """Bytes of a stage that has these chunks, with the stashes of all that is `in_flight`."""
        every = tuple(chunks)
        return cls(*map(sum, zip(*every, strict=True)))._replace(
            stash=in_flight * max(chunk.stash for chunk in every),
            running=max(chunk.running for chunk in every),
        )


@dataclass(frozen=True)
class StageCost:
    """Costs of the plan of a chunk."""

    stage: Stage

    @cached_property
    def terms(self) -> Cost:
        """The sum of every term over all operators."""
        return Cost(*map(sum, zip(*(chosen.cost for chosen in self.stage.chosen), strict=True)))

    @property
    def parameters(self) -> float:
        """Elements of parameters of a device, without copies of a tied table."""
        return self.terms.states / self.stage.training.state

    def seconds(self, options: TrainingOptions) -> ChunkSeconds:
        """Seconds under some options, without what runs during computations."""
        terms, again = self.terms, self._again(options.recompute)
        moved = sum(chosen.forward + chosen.backward for chosen in self.stage.chosen)
        often, once = seconds_for_parameters(terms._asdict(), options.shard)
        hidden_often, hidden_once = self.hidden(options.shard)
        update = terms.update if options.shard == "none" else terms.shard_update
        return ChunkSeconds(
            terms.compute + again.compute,
            terms.communication + moved + again.communication + often - hidden_often,
            once - update - hidden_once,
            update,
        )

    def hidden(self, shard: Shard) -> tuple[float, float]:
        """Seconds of sums and gathers during computations, in every micro-batch and once in a step.

        A step's program posts the sum of a gradient once it is there. With parameters in shards the
        one of an operator is gathered while the operator before it runs.
        """
        if not self.stage.training.posted:
            return 0.0, 0.0
        in_backward = {"none": ("reduction",), "parameters": ("scatter", "gather")}
        backward = self._hidden(False, in_backward.get(shard, ("scatter",)))
        if shard == "parameters":
            return backward + self._hidden(True, ("gather",)), 0.0
        return (backward, 0.0) if shard == "gradients" else (0.0, backward)

    def _hidden(self, in_forward: bool, names: tuple[str, ...]) -> float:
        """Seconds of some terms that forward or backward hides, by `cost.step_seconds`.

        Gathers before the operators of forward are sums after those of its reverse.
        """
        clock = links = added = 0.0
        for chosen in reversed(self.stage.chosen):
            cost = chosen.cost
            took = chosen.forward + cost.forward + cost.forward_communication
            if not in_forward:
                took = chosen.forward + chosen.backward + cost.compute + cost.communication - took
            sums = sum(getattr(cost, name) for name in names)
            starting = cost.starting if names == ("reduction",) else 0.0
            clock, added = clock + took, added + took + sums
            if sums:  # the start of a sum is not that of the links: others move their bytes then
                links = max(links, clock + starting) + sums - starting
        return added - max(clock, links)

    @cached_property
    def layers(self) -> tuple[tuple[LayerActivations, int], ...]:
        """The layers of the chunk; of equal ones the first, and how many they are."""
        layers: dict[object, tuple[LayerActivations, int]] = {}
        before = self.stage.chosen[0]
        for number, members in groupby(self.stage.chosen, lambda known: layer_of(known.name)):
            inside = tuple(members)
            if number is not None:
                key = before.leaves, tuple((id(known.cost), known.forward) for known in inside)
                first, count = layers.get(key, (LayerActivations(self.stage, before, inside), 0))
                layers[key] = first, count + 1
            before = inside[-1]
        return tuple(layers.values())

    def _again(self, recompute: Recompute) -> Cost:
        """Seconds of what runs again for a micro-batch."""
        took = [(count, *known.seconds(recompute)) for known, count in self.layers]
        return Cost(
            compute=sum(count * compute for count, compute, _ in took),
            communication=sum(count * messages for count, _, messages in took),
        )

    def bytes(self, options: TrainingOptions) -> ChunkBytes:
        """Bytes of a device under some options."""
        terms, shard = self.terms, options.shard
        stash, running = self._activations(options.recompute, shard)
        return ChunkBytes(
            terms.shard if shard == "parameters" else terms.parameters,
            terms.gradients if shard in ("none", "optimizer") else self.terms.shard,
            terms.states if shard == "none" else self._sharded_states,
            stash,
            running,
        )

    @cached_property
    def _sharded_states(self) -> float:
        return sum(
            cost.states * cost.shard / cost.parameters
            for cost in (chosen.cost for chosen in self.stage.chosen)
            if cost.parameters
        )

    def _activations(self, recompute: Recompute, shard: Shard) -> tuple[float, float]:
        """Bytes of the stash of a micro-batch, and of what runs in addition to all that is kept.

        Whole gradients, and whole parameters, are there for one operator.
        """
        counted = [(count, *known.bytes(recompute)) for known, count in self.layers]
        kept = sum(count * kept for count, kept, _ in counted)
        again = max((again for _, _, again in counted), default=0.0)
        return self._outside + kept, self._running[shard] + again

    @cached_property
    def _outside(self) -> float:
        """Bytes of the stash of operators that are in no layer."""
        inside = sum(count * known.bytes("none")[0] for known, count in self.layers)
        return self.terms.stash - inside

    @cached_property
    def _running(self) -> dict[Shard, float]:
        """Bytes of the operator that holds most in addition, while it runs."""
        costs = [chosen.cost for chosen in self.stage.chosen]
        return {
            shard: max(cost.running + _whole(cost, shard) for cost in costs)
            for shard in get_args(Shard)
        }


def _whole(cost: Cost, shard: Shard) -> float:
    """Bytes of an operator's gradients and parameters that are whole while it runs."""
    whole = {"gradients": cost.gradients, "parameters": cost.gradients + cost.parameters}
    return whole.get(shard, 0.0)
