"""Layouts over all devices of a plan, those of its stages put together."""

from __future__ import annotations

from primepar.plan.layouts import ends, padded_vocabulary, parameter_place
from primepar.plan.plan import Plan
from primepar.schedule.layout import Layout


def parameter_layout(plan: Plan, parameter: str) -> Layout:
    """The resident layout of a parameter; devices of other stages hold none of it."""
    operator = parameter.rpartition(".")[0]
    return _on_stage(plan, parameter_place(plan, parameter).layout, operator)


def padded_shape(plan: Plan, parameter: str) -> tuple[int, ...]:
    """The shape of a parameter with the padding of the vocabulary."""
    shape = plan.model.parameter_shapes[parameter]
    padded = {"embedding.token": 0, "head.weight": 1}.get(parameter)
    vocabulary = padded_vocabulary(plan)
    return tuple(vocabulary if dim == padded else size for dim, size in enumerate(shape))


def logits_layout(plan: Plan) -> Layout:
    """The layout of the logits of a step; the row slices of a micro-batch follow one another."""
    layout, count = ends(plan, "head").output, plan.micro_batches
    rows, columns = layout.grid
    held = tuple(
        tuple((number * rows + row, column) for number in range(count) for row, column in blocks)
        for blocks in layout.held
    )
    return _on_stage(plan, Layout((count * rows, columns), held), "head")


def _on_stage(plan: Plan, layout: Layout, operator: str) -> Layout:
    """The layout of a tensor that the devices of one stage hold, that of an operator."""
    if plan.pipeline is None:
        return layout
    chunks = plan.pipeline.chunk_operators(plan.operators, plan.model.layers)
    stage = next(
        stage
        for (stage, _), operators in zip(plan.pipeline.stage_chunks, chunks, strict=True)
        if any(known.name == operator for known in operators)
    )
    before = ((),) * (stage * plan.stage_ranks)
    after = ((),) * (plan.ranks - len(before) - plan.stage_ranks)
    return Layout(layout.grid, (*before, *layout.held, *after))
