"""Time and memory of one chunk of a stage under some training options, from the terms of its plan.

Sums over the operators are made once, so that each choice of options takes few additions.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from heapq import nlargest
from itertools import groupby
from typing import NamedTuple, get_args

from primepar.plan.cost.linear import Cost
from primepar.plan.pipeline.computed_again import repeated
from primepar.plan.pipeline.hidden_transfers import hidden_seconds
from primepar.plan.pipeline.layer_activations import LayerActivations
from primepar.plan.pipeline.sharded_seconds import Buckets, bucket_count, seconds_for_parameters
from primepar.plan.pipeline.stage import Stage
from primepar.plan.pipeline.training_options import Recompute, Shard, TrainingOptions
from primepar.plan.pipeline_layout import layer_of


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
        return self.terms.states / self.stage.group.training.state

    def seconds(self, options: TrainingOptions) -> ChunkSeconds:
        """Seconds under some options."""
        terms, again = self.terms, self._again(options.recompute)
        moved = sum(chosen.forward + chosen.backward for chosen in self.stage.chosen)
        often, once = self._for_parameters(options)
        update = terms.update if options.shard == "none" else terms.shard_update
        return ChunkSeconds(
            terms.compute + again.compute,
            terms.communication + moved + again.communication + often - self._hidden(options),
            once - update,
            update,
        )

    def _hidden(self, options: TrainingOptions) -> float:
        """Seconds of gathers and scatters of a micro-batch that products hide, in buckets."""
        group, hidden = self.stage.group, 0.0
        if options.bucket is None or not group.training.cluster.overlap:
            return hidden
        runs = repeated(self.stage.operators, options.recompute)
        for chosen in self.stage.chosen:
            forward, backward = hidden_seconds(group, chosen, options.bucket)
            times = 2 if chosen.name in runs.again and runs.sends else 1
            hidden += times * forward + backward
        return hidden

    def _for_parameters(self, options: TrainingOptions) -> tuple[float, float]:
        """Seconds that are not hidden, for every micro-batch and once in a step."""
        terms, shard = self.terms._asdict(), options.shard
        if options.bucket is None or not self.stage.group.training.cluster.overlap:
            return seconds_for_parameters(terms, shard)
        count = bucket_count(terms["gradients"], options.bucket, self._with_parameters)
        forward, backward = self._hiding
        hiding = backward + self._again(options.recompute).compute
        behind = Buckets(count, hiding, self._small_sums)
        if shard == "parameters":
            before = Buckets(count, forward).exposed(terms["gather"], *self._longest("gather"))
            both = self._longest("scatter", "gather")
            after = behind.exposed(terms["scatter"] + terms["gather"], *both)
            return before + after, terms["shard_update"]
        summed = "reduction" if shard == "none" else "scatter"
        exposed = behind.exposed(terms[summed], *self._longest(summed))
        return seconds_for_parameters(terms | {summed: exposed}, shard)

    def _longest(self, *names: str) -> list[float]:
        """The most seconds of some terms that an operator has, and those of the next one."""
        return nlargest(2, (sum(getattr(chosen.cost, name) for name in names)
                            for chosen in self.stage.chosen))  # fmt: skip

    @property
    def _small_sums(self) -> float:
        """Seconds of two sums of a few numbers over all devices of a stage."""
        training = self.stage.group.training
        everywhere = range(len(training.links.levels))
        return 2 * training.sums.all_reduce(everywhere, training.wide_item)

    @cached_property
    def _with_parameters(self) -> int:
        """Number of operators that have parameters."""
        return sum(chosen.cost.parameters > 0 for chosen in self.stage.chosen)

    @cached_property
    def _hiding(self) -> tuple[float, float]:
        """Seconds of forward and backward of operators without hops, so that links are idle."""
        still = [chosen.cost for chosen in self.stage.chosen
                 if chosen.candidate.mover is None]  # fmt: skip
        forward = sum(cost.forward for cost in still)
        return forward, sum(cost.compute for cost in still) - forward

    @cached_property
    def layers(self) -> tuple[tuple[LayerActivations, int], ...]:
        """The layers of the chunk; of equal ones the first, and how many they are."""
        layers: dict[object, tuple[LayerActivations, int]] = {}
        group, before = self.stage.group, self.stage.chosen[0]
        for number, members in groupby(self.stage.chosen, lambda known: layer_of(known.name)):
            inside = tuple(members)
            if number is not None:
                key = before.leaves, tuple((id(known.cost), known.forward) for known in inside)
                first, count = layers.get(key, (LayerActivations(group, before, inside), 0))
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
        inside = sum(count * known.bytes("none").kept for known, count in self.layers)
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
