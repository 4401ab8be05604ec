"""Lowers a step in micro-batches, on one stage or several: forward, loss and backward.

Every chunk of the model is lowered once, for one micro-batch and the devices of one stage, as a
step without a pipeline is. Its instructions are then repeated for every micro-batch in the order of
the stage's schedule. Rank r of a stage sends the residual stream, and its gradient, to rank r of
the next, in the layout that it has on the producer's side. A table that embedding and head share is
sent to the head's stage before the first micro-batch, and its gradient back after the last.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from primepar.models.graph import Operator
from primepar.operators.builder import ProgramBuilder, View
from primepar.operators.micro_batches import MicroBatches
from primepar.operators.recomputation import Layer, recompute
from primepar.operators.stage_lists import TABLE, ModelChunk, StageLists
from primepar.operators.step_context import AFTER, StepContext
from primepar.operators.sweeps import (
    Gradients,
    Ways,
    backward_sweep,
    fan_in,
    forward_sweep,
    lowerings,
    ways_of,
)
from primepar.plan.pipeline_layout import PipelineLayout, by_layer, layer_operator
from primepar.plan.plan import Plan
from primepar.schedule.operators import block_name
from primepar.schedule.program import Broadcast


class PipelineStep:
    """A step of a plan with a pipeline, up to the gradients.

    `step` is its context on all ranks. It has the parameters once this is made, and the gradients
    after `lower`.
    """

    def __init__(self, plan: Plan, pipeline: PipelineLayout, step: StepContext,
                 operators: tuple[Operator, ...]) -> None:  # fmt: skip
        self.plan, self.pipeline, self.step = plan, pipeline, step
        tables = self.tables = ProgramBuilder(plan.stage_ranks)
        self.micro_batches = MicroBatches(
            plan.micro_batches, tables.tensors, tables.dims, tables.grid
        )
        chunks = pipeline.chunk_operators(operators, plan.model.layers)
        self.chunks = [
            self._chunk(operators, stage)
            for operators, (stage, _) in zip(chunks, pipeline.stage_chunks, strict=True)
        ]
        for chunk in self.chunks:
            for name, view in chunk.step.parameters.items():
                step.parameters[name] = self._on_stage(view, chunk.stage)

    def _chunk(self, operators: tuple[Operator, ...], stage: int) -> ModelChunk:
        step, tables = self.step, self.tables
        builder = replace(tables)  # lists of its own, the same tables
        context = replace(
            step, builder=builder, batch=step.batch // self.plan.micro_batches, repeats=True,
            splits=step.trains and self.pipeline.splits_backward, parameters={}, gradients={},
        )  # fmt: skip
        builder.sections = {}
        return ModelChunk(context, operators, stage, lowerings(context, operators))

    def _on_stage(self, view: View, stage: int) -> View:
        """Return a view of the whole step on all ranks, from one of a micro-batch on a stage."""
        before = ((),) * (stage * self.plan.stage_ranks)
        after = ((),) * (self.plan.ranks - len(before) - self.plan.stage_ranks)
        whole = self.micro_batches.view(view)
        return replace(whole, held=(*before, *whole.held, *after))

    def lower(self) -> View:
        """Lower all micro-batches; returns the output of the last operator on all ranks."""
        ways, outputs = ways_of(self.plan), dict[str, View]()
        first, last = self.chunks[0], self.chunks[-1]
        if self.plan.model.tied:
            last.step.parameters[TABLE] = first.step.parameters[TABLE]
        for chunk in self.chunks:
            with chunk.builder.section("F"):
                chunk.output = forward_sweep(chunk.step, chunk.parts, ways, outputs)
        if self.step.trains:
            self._backward(ways)
            for chunk in self.chunks:
                self._recompute(chunk)
        lists = StageLists(self.step.builder, self.micro_batches, self.chunks, self.plan.model.tied)
        orders = self.pipeline.pipeline_orders
        lists.append(orders if self.step.trains else orders.forward_only)
        self._take_tables()
        assert last.output is not None
        result = self._on_stage(last.output, last.stage)
        return self._everywhere(result) if last.operators[-1].kind == "loss" else result

    def _backward(self, ways: Ways) -> None:
        gradients: Gradients = {operator.name: [] for operator in self.plan.operators}
        first, last = self.chunks[0], self.chunks[-1]
        for number, chunk in reversed(list(enumerate(self.chunks))):
            if chunk is first is not last and self.plan.model.tied:
                first.step.gradients[TABLE] = last.step.gradients[TABLE]
            with chunk.builder.section("B"):
                backward_sweep(chunk.step, chunk.parts, ways, gradients)
                if number:
                    source = self.chunks[number - 1].operators[-1]
                    chunk.gradient = fan_in(chunk.step, source, gradients[source.name])
                    assert chunk.gradient is not None
                    gradients[source.name] = [chunk.gradient]
        for chunk in self.chunks[::-1]:  # the first chunk has the whole gradient of a shared table
            for name, view in chunk.step.gradients.items():
                self.step.gradients[name] = self._on_stage(view, chunk.stage)

    def _recompute(self, chunk: ModelChunk) -> None:
        """Let the layers of a chunk be computed again in backward, if the plan asks for it."""
        if self.plan.recompute is None:
            return
        assert chunk.output is not None
        sections = chunk.builder.sections
        forward, backward = sections["F"], sections["B"]
        names = [operator.name for operator in chunk.operators]
        following = dict(pairwise(names))
        layers = [
            Layer(
                {layer_operator(name): forward.marks[name] for name in operators},
                forward.marks.get(following.get(operators[-1], ""), forward.end),
                backward.marks[operators[-1]],
            )
            for operators in by_layer(names)
        ]
        output = {
            (rank, block)
            for rank in range(chunk.builder.ranks)
            for block in chunk.output.blocks(rank)
        }
        later = [section for name, section in sections.items() if name in ("W", AFTER)]
        phases = self.tables.phases
        recompute(self.plan.recompute, layers[::-1], forward, backward, later, phases, output)

    def _take_tables(self) -> None:
        """Give the tables of the whole step to its builder, and what begins and ends it."""
        builder, micro_batches = self.step.builder, self.micro_batches
        builder.tensors |= micro_batches.all_tensors()
        builder.dims |= self.tables.dims
        builder.phases |= self.tables.phases
        builder.grid |= micro_batches.whole_grid()
        for chunk in self.chunks:
            for rank, blocks in enumerate(chunk.builder.initial, self._first_rank(chunk)):
                builder.initial[rank] += micro_batches.blocks(blocks)

    def _first_rank(self, chunk: ModelChunk) -> int:
        return chunk.stage * self.plan.stage_ranks

    def _everywhere(self, loss: View) -> View:
        """Broadcast the loss from each rank of its stage to its counterparts."""
        builder, ranks = self.step.builder, self.plan.stage_ranks
        root, (indices, *_) = self._first_rank(self.chunks[-1]), filter(None, loss.held)
        if self.pipeline.stages > 1:
            for rank in range(builder.ranks):
                group = tuple(range(rank % ranks, builder.ranks, ranks))
                builder.programs[rank] += [
                    Broadcast(group, block=block_name(loss.name, index), root=root + rank % ranks)
                    for index in indices
                ]
        return replace(loss, held=(indices,) * builder.ranks)
