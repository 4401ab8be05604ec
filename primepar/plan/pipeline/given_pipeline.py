"""A given plan with stages, micro-batches, shards or recomputation, as a pipeline with a price."""

from __future__ import annotations

import re
from dataclasses import replace

from primepar.errors import PlanError
from primepar.plan.pipeline.boundaries import Split
from primepar.plan.pipeline.pipeline_cost import Pipeline
from primepar.plan.pipeline.splits import Splits
from primepar.plan.pipeline.stage import StagePart
from primepar.plan.pipeline.stage_cost import StageCost
from primepar.plan.pipeline.training_options import TrainingOptions
from primepar.plan.pipeline_layout import layers_by_stage, micro_batches
from primepar.plan.plan import Plan


def given_pipeline(splits: Splits, plan: Plan, batch: int) -> Pipeline:
    """A plan as chunks of its model on a cluster. Raises `PlanError` where a cut has no price."""
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
    size = batch // layout.micro_batches // replicas
    group = splits.group(split, size)
    for number, layers in enumerate(layers_by_stage(plan.model.layers, count)):
        place = StagePart(layers, number == 0, number == count - 1)
        chain = group.chain(replace(plan.model, layers=layers), place)
        sequences = {
            operator.name: _inside(plan.sequences[_whole_name(operator.name, first)], replicas)
            for operator in chain
        }
        chunks.append(StageCost(group.given(place, sequences)))
        first += layers
    return Pipeline(splits.cluster, split, size, layout.micro_batches, options, tuple(chunks))


def _whole_name(name: str, first: int) -> str:
    """The name in the whole model of an operator of a chunk after `first` layers.

    The addition before the chunk is that at the end of the layer before.
    """
    if name == "stream":
        return f"blocks.{first - 1}.add2"
    block, _, rest = name.partition(".")
    if block != "blocks":
        return name
    number, _, operator = rest.partition(".")
    return f"blocks.{first + int(number)}.{operator}"


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
