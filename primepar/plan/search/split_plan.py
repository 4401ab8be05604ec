"""Plans with stages, micro-batches, shards or recomputation: a split as a plan, and a plan as one.

Each chunk of a split is planned with layers that are counted from 0, after the addition that its
input comes from; and without its replicas, which are the outermost cut of the rows.
"""

from __future__ import annotations

import re
from dataclasses import replace

from primepar.errors import PlanError
from primepar.models.config import ModelConfig
from primepar.models.graph import operators
from primepar.plan.pipeline_layout import (
    PipelineLayout,
    layer_of,
    layer_operator,
    layers_by_stage,
    micro_batches,
)
from primepar.plan.plan import Plan
from primepar.plan.search.splits import Pipeline, Split, Splits, StagePart
from primepar.plan.search.stage_cost import StageCost, TrainingOptions


def split_plan(pipeline: Pipeline, model: ModelConfig) -> Plan:
    """Return the plan of a split under the schedule and the options that its price is for.

    Each chunk is planned with layers that are counted from 0, after the addition that its input
    comes from; and without its replicas, which are the outermost cut of the rows. A split of one
    stage and one micro-batch needs no pipeline. Raises `PlanError` for options that are only
    priced.
    """
    options, (stages, replicas, parts) = pipeline.options, pipeline.split
    if options.only_priced is not None:
        raise PlanError(
            f"expected options that a training step has, to write a plan, got "
            f"{options.only_priced}, which are only priced: leave out -o, or that option"
        )
    layout = PipelineLayout(
        schedule=options.schedule,
        stages=stages,
        micro_batches=pipeline.microbatches,
        chunks=options.chunks if options.chunks > 1 else None,
    )
    return Plan(
        model=model,
        ranks=stages * replicas * parts,
        batch=replicas * pipeline.size * pipeline.microbatches,
        pipeline=layout if stages * pipeline.microbatches > 1 else None,
        sharded_optimizer=options.shard == "optimizer",
        recompute=None if options.recompute == "none" else options.recompute,
        sequences=_sequences(pipeline, model),
    )


def _sequences(pipeline: Pipeline, model: ModelConfig) -> dict[str, str]:
    """The sequences of all operators over the devices of a stage."""
    known = {operator.name for operator in operators(model)}
    sequences: dict[str, str] = {}
    first = 0
    layers = layers_by_stage(model.layers, len(pipeline.stages))
    for stage, count in zip(pipeline.stages, layers, strict=True):
        for chosen in stage.chosen:
            name = name_in_model(chosen.name, first)
            if name in known:
                sequences[name] = _within(pipeline.split.replicas, chosen.candidate.text)
        first += count
    return sequences


def name_in_model(name: str, first: int) -> str:
    """The name in the whole model; what a chunk receives is the `input` of its first layer."""
    if name == "stream":
        return f"blocks.{first}.input"
    layer = layer_of(name)
    return name if layer is None else f"blocks.{first + layer}.{layer_operator(name)}"


def _within(replicas: int, text: str) -> str:
    """The sequence of an operator on all replicas; that of one device has no text.

    Replicas and a first cut of the rows are one cut: `M6,K2` of 3 replicas of `M2,K2`.
    """
    if replicas == 1 and text:
        return text
    first, _, others = text.partition(",")
    if re.fullmatch(r"M\d+", first):
        replicas, text = replicas * int(first[1:]), others
    return ",".join(filter(None, (f"M{replicas}", text)))


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
        names = {operator.name: name_in_model(operator.name, first) for operator in chain}
        if first:  # the addition before the chunk is that at the end of the layer before
            names["stream"] = f"blocks.{first - 1}.add2"
        sequences = {
            name: _inside(plan.sequences[whole], replicas) for name, whole in names.items()
        }
        chunks.append(StageCost(group.given(place, sequences)))
        first += layers
    return Pipeline(splits.cluster, split, size, layout.micro_batches, options, tuple(chunks))


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
