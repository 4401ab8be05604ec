"""The plan of a split: the sequences of all its chunks, with their pipeline, as one file."""

from __future__ import annotations

import re

from primepar.errors import PlanError
from primepar.models.config import ModelConfig
from primepar.models.graph import operators
from primepar.plan.pipeline.pipeline_cost import Pipeline
from primepar.plan.pipeline_layout import (
    PipelineLayout,
    layer_of,
    layer_operator,
    layers_by_stage,
)
from primepar.plan.plan import Plan


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
            name = _later(chosen.name, first)
            if name in known:
                sequences[name] = _within(pipeline.split.replicas, chosen.candidate.text)
        first += count
    return sequences


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


def _later(name: str, layers: int) -> str:
    """The name of an operator, `layers` later: `blocks.0.qkv` is `blocks.2.qkv` after 2."""
    layer = layer_of(name)
    if layer is None:
        return name
    return ".".join(("blocks", str(layer + layers), layer_operator(name)))
