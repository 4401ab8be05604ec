"""The plan of a split: the sequences of all its stages, with their pipeline, as one file."""

from __future__ import annotations

from primepar.models.config import ModelConfig
from primepar.models.graph import operators
from primepar.plan.pipeline.splits import Pipeline
from primepar.plan.pipeline_layout import PipelineLayout, layer_of, layers_by_stage
from primepar.plan.plan import Plan


def split_plan(pipeline: Pipeline, model: ModelConfig) -> Plan:
    """Return the plan of a split under 1F1B, which its price is for.

    Each stage is planned with layers that are counted from 0, after the addition that its input
    comes from; and without its replicas, which are the outermost cut of the rows. A split of one
    stage and one micro-batch needs no pipeline.
    """
    stages, replicas, parts = pipeline.split
    known = {operator.name for operator in operators(model)}
    sequences: dict[str, str] = {}
    first = 0
    layers = layers_by_stage(model.layers, stages)
    for stage, count in zip(pipeline.stages, layers, strict=True):
        for name, text in stage.result.sequences.items():
            if _later(name, first) in known:
                sequences[_later(name, first)] = _within(replicas, text)
        first += count
    layout = PipelineLayout(schedule="1f1b", stages=stages, micro_batches=pipeline.microbatches)
    return Plan(
        model=model,
        ranks=stages * replicas * parts,
        batch=replicas * pipeline.size * pipeline.microbatches,
        pipeline=layout if stages * pipeline.microbatches > 1 else None,
        sequences=sequences,
    )


def _within(replicas: int, text: str) -> str:
    """The sequence of an operator on all replicas; that of one device has no text."""
    if replicas == 1 and text:
        return text
    return ",".join(filter(None, (f"M{replicas}", text)))


def _later(name: str, layers: int) -> str:
    """The name of an operator, `layers` later: `blocks.0.qkv` is `blocks.2.qkv` after 2."""
    layer = layer_of(name)
    if layer is None:
        return name
    return ".".join(("blocks", str(layer + layers), name.split(".", 2)[2]))
