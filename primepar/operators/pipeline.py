"""A step in micro-batches, on one stage or several: forward, loss and backward.

Every chunk of the model is lowered once, for one micro-batch and the devices of one stage, as a
step without a pipeline is (`PipelineStep`). Its instructions are then repeated for every
micro-batch (`MicroBatches`), in the order of the stage's schedule (`StageLists`). Rank r of a stage
sends the residual stream, and its gradient, to rank r of the next, in the layout that it has on the
producer's side. A table that embedding and head share is sent to the head's stage before the first
micro-batch, and its gradient back after the last.

Micro-batches are slices of the rows (M) over time: blocks of micro-batch k are further row blocks
of the tensors of the whole step. Where a tensor has two row blocks in a micro-batch, `x[1,0]` of
the first is `x[3,0]` of the second. So dropout, the loss and the sums over rows mean what they mean
in a step without micro-batches, and a weight gradient is the sum over all row blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import msgspec

from primepar.models.graph import Operator
from primepar.operators.builder import Cuts, ProgramBuilder, View
from primepar.operators.recomputation import Layer, recompute
from primepar.operators.step_context import AFTER, BEFORE, OperatorLowering, StepContext
from primepar.operators.sweeps import (
    Gradients,
    Ways,
    backward_sweep,
    fan_in,
    forward_sweep,
    lowerings,
    ways_of,
)
from primepar.partition.pipeline.dependencies import (
    ChunkMessage,
    PipelineOrders,
    PlacedMessage,
    Position,
    placed_messages,
)
from primepar.plan.pipeline_layout import PipelineLayout, by_layer, layer_operator
from primepar.plan.plan import Plan
from primepar.schedule.effects import blocks_renamed
from primepar.schedule.operators import Index, block_name
from primepar.schedule.program import Broadcast, Compute, Instruction, IRecv, ISend, Wait
from primepar.schedule.signature import Tensor


@dataclass(frozen=True)
class MicroBatches:
    """`count` micro-batches; the tables are those of one."""

    count: int
    tensors: Mapping[str, Tensor]
    dims: Mapping[str, tuple[str, ...]]
    grid: Mapping[str, Mapping[str, int]]
    _renamed: dict[tuple[str, int], str] = field(default_factory=dict, repr=False, compare=False)

    def all_tensors(self) -> dict[str, Tensor]:
        """Return the cuts of all tensors in the whole step."""
        return {
            name: msgspec.structs.replace(tensor, cuts=self._cuts(name, tensor.cuts))
            for name, tensor in self.tensors.items()
        }

    def whole_grid(self) -> dict[str, dict[str, int]]:
        """Return the slices of every phase in the whole step."""
        return {
            phase: {dim: slices * (self.count if dim == "M" else 1) for dim, slices in dims.items()}
            for phase, dims in self.grid.items()
        }

    def _row_dim(self, tensor: str) -> int | None:
        """Return the number of the dim of the rows; None for a tensor without rows."""
        dims = self.dims.get(tensor, ())
        return next((place for place, dim in enumerate(dims) if dim.split("/")[0] == "M"), None)

    def _cuts(self, tensor: str, cuts: Cuts) -> Cuts:
        place = self._row_dim(tensor)
        if place is None:
            return cuts
        *starts, rows = cuts[place]
        firsts = range(0, self.count * rows, rows)
        line = (*(first + start for first in firsts for start in starts), self.count * rows)
        return (*cuts[:place], line, *cuts[place + 1 :])

    def index(self, tensor: str, index: Index, number: int) -> Index:
        """Return the index, in the whole step, of a block of micro-batch `number`."""
        place = self._row_dim(tensor)
        if place is None:
            return index
        # With 2 blocks of rows in a micro-batch, block 1 of micro-batch 3 is block 7 of the step.
        row = index[place] + number * (len(self.tensors[tensor].cuts[place]) - 1)
        return (*index[:place], row, *index[place + 1 :])

    def block(self, name: str, number: int) -> str:
        """Return the name, in the whole step, of a block of micro-batch `number`."""
        key = name, number
        if key not in self._renamed:
            tensor, _, rest = name.rpartition("[")
            inside, _, marks = rest.partition("]")
            index = tuple(map(int, inside.split(",")))
            self._renamed[key] = block_name(tensor, self.index(tensor, index, number)) + marks
        return self._renamed[key]

    def blocks(self, names: Iterable[str]) -> list[str]:
        """Return blocks of all micro-batches; one without rows comes once."""
        numbers = range(self.count)
        return list(dict.fromkeys(self.block(name, number) for name in names for number in numbers))

    def view(self, view: View) -> View:
        """Return a view of a tensor in the whole step."""
        held = tuple(
            tuple(dict.fromkeys(
                self.index(view.name, index, number)
                for number in range(self.count) for index in indices
            ))
            for indices in view.held
        )  # fmt: skip
        return replace(view, cuts=self._cuts(view.name, view.cuts), held=held)

    def instruction(self, node: Instruction, number: int, first_rank: int) -> Instruction:
        """Return an instruction for micro-batch `number`, on ranks from `first_rank` on."""
        changes = blocks_renamed(node, lambda name: self.block(name, number))
        changes |= on_ranks(node, lambda rank: rank + first_rank)
        request = getattr(node, "request", None)
        if request is not None:
            # Micro-batches overlap, so each of them needs names of its own for what is in flight.
            changes["request"] = f"{request} of {number}"
        if isinstance(node, Compute) and "M" in (node.sub_operator or {}):
            slices = dict(node.sub_operator or {})
            # Rows are the only dim in which micro-batches differ: so together they cover the grid
            # of the step once.
            slices["M"] += number * self.grid[str(node.phase)]["M"]
            changes["sub_operator"] = slices
        return msgspec.structs.replace(node, **changes)


def on_ranks(node: Instruction, rank: Callable[[int], int]) -> dict[str, Any]:
    """Return the fields of an instruction that name ranks, with other ranks."""
    changes: dict[str, Any] = {
        field: rank(getattr(node, field))
        for field in ("peer", "root")
        if getattr(node, field, None) is not None
    }
    if getattr(node, "group", None) is not None:
        changes["group"] = tuple(map(rank, node.group))  # type: ignore[union-attr]
    return changes


# The lists of all ranks

Post = ISend | IRecv
TABLE = "embedding.token"
"""The parameter that the first and the last chunk share where the head is tied."""


@dataclass
class ModelChunk:
    """One chunk of the model: its context for a micro-batch, and what it gives to its neighbours.

    `output` goes to the next chunk; `gradient`, that of its input, to the one before.
    """

    step: StepContext
    operators: tuple[Operator, ...]
    stage: int
    parts: dict[str, OperatorLowering]
    output: View | None = None
    gradient: View | None = None

    @property
    def builder(self) -> ProgramBuilder:
        """The builder of a micro-batch, with a section for each kind of action."""
        return self.step.builder


@dataclass(frozen=True)
class StageLists:
    """Appends the lists of all stages to a builder of all ranks.

    `tied`: the first chunk sends the token table to the last one.
    """

    builder: ProgramBuilder
    micro_batches: MicroBatches
    chunks: Sequence[ModelChunk]
    tied: bool

    def append(self, pipeline: PipelineOrders) -> None:
        """Append every stage's list: its actions in order, and the sums after them."""
        messages = placed_messages(pipeline)
        for stage, order in enumerate(pipeline.orders):
            self._begin(stage)
            last = {(action.kind, action.chunk): place for place, action in enumerate(order)}
            for place, action in enumerate(order):
                position = Position(stage, place)
                self._exchange(pipeline, position, messages)
                sends = [message for message, _, _ in messages if message.source == position]
                self._act(pipeline, position, sends, last[action.kind, action.chunk] == place)
            self._exchange(pipeline, Position(stage, len(order)), messages)
            self._finish(stage)

    def _begin(self, stage: int) -> None:
        """Append what runs before the first micro-batch."""
        first, last = self.chunks[0], self.chunks[-1]
        if self._sends_table:
            table = first.step.parameters[TABLE]
            if stage == first.stage:
                self._post_view(table, stage, last.stage, ISend)
            elif stage == last.stage:
                self._post_view(table, stage, first.stage, IRecv)
                self._wait_view(table, stage, first.stage, IRecv)
        for chunk in self._of(stage):
            self._section(chunk, BEFORE)

    def _finish(self, stage: int) -> None:
        """Append what runs after the last micro-batch, the last chunk first."""
        first, last = self.chunks[0], self.chunks[-1]
        if self._sends_table and stage == first.stage:
            self._wait_view(first.step.parameters[TABLE], stage, last.stage, ISend)
        sums = last.step.gradients.get(TABLE) if self._sends_table else None
        for chunk in self._of(stage)[::-1]:
            if chunk is first and sums is not None:
                self._post_view(sums, stage, last.stage, IRecv)
                self._wait_view(sums, stage, last.stage, IRecv)
            self._section(chunk, AFTER)
            if chunk is last and sums is not None:
                self._post_view(sums, stage, first.stage, ISend)
                self._wait_view(sums, stage, first.stage, ISend)

    @property
    def _sends_table(self) -> bool:
        return self.tied and self.chunks[0].stage != self.chunks[-1].stage

    def _of(self, stage: int) -> list[ModelChunk]:
        return [chunk for chunk in self.chunks if chunk.stage == stage]

    def _act(
        self,
        pipeline: PipelineOrders,
        position: Position,
        sends: list[ChunkMessage],
        is_last: bool,
    ) -> None:
        """Append an action and its sends; no stage waits for reductions of the last micro-batch."""
        action = pipeline.action(position)
        chunk, number = self.chunks[pipeline.layer(position.stage, action)], action.micro_batch
        # Nothing is sent after the action, so it is appended in one piece.
        if is_last and not sends:
            self._section(chunk, action.kind, number)
            return
        # First what the next stage waits for, then the send, then the reductions that only this
        # stage needs.
        self._section(chunk, action.kind, number, last=False)
        for message in sends:
            self._post_view(*self._sent(pipeline, message, ISend))
        if is_last:
            self._section(chunk, action.kind, number, last=True)

    def _section(
        self, chunk: ModelChunk, name: str, micro_batch: int = 0, last: bool | None = None
    ) -> None:
        """Append a section of a chunk; only, or all but, what runs in the `last` micro-batch."""
        section = chunk.builder.sections.get(name)
        if section is None:
            return
        first = chunk.stage * chunk.builder.ranks
        for rank, nodes in enumerate(section.programs):
            self.builder.programs[first + rank] += [
                self.micro_batches.instruction(node, micro_batch, first)
                for position, node in enumerate(nodes)
                if last is None or last == (position in section.last[rank])
            ]

    def _exchange(
        self, pipeline: PipelineOrders, position: Position, messages: Iterable[PlacedMessage]
    ) -> None:
        """Append posts of receives before an action, and then the waits."""
        for message, posted, _ in messages:
            if (message.destination.stage, posted) == position:
                self._post_view(*self._sent(pipeline, message, IRecv))
        for message, _, ended in messages:
            # What was sent is awaited where its block is next changed, and not where it was sent.
            if (message.source.stage, ended) == position:
                self._wait_view(*self._sent(pipeline, message, ISend))
            if message.destination == position:
                self._wait_view(*self._sent(pipeline, message, IRecv))

    def _sent(
        self, pipeline: PipelineOrders, message: ChunkMessage, kind: type[Post]
    ) -> tuple[View, int, int, type[Post], int]:
        """Return the tensor of a message, the stage of this end, that of the other, and the rest.

        It is the output of a chunk, or the gradient of its input.
        """
        source, receiver = message.source, message.destination.stage
        action = pipeline.action(source)
        chunk = self.chunks[pipeline.layer(source.stage, action)]
        view = chunk.output if action.kind == "F" else chunk.gradient
        assert view is not None
        ends = (source.stage, receiver) if kind is ISend else (receiver, source.stage)
        return view, *ends, kind, action.micro_batch

    def _post_view(
        self, view: View, stage: int, peer: int, kind: type[Post], number: int = 0
    ) -> None:
        """Post the blocks of a view on all ranks of a stage, for the same ranks of another."""
        for rank, local, block in self._blocks(view, stage, number):
            to = peer * len(view.held) + local
            node = kind(to, block, request=_request(kind, to, block))
            self.builder.programs[rank].append(node)

    def _wait_view(
        self, view: View, stage: int, peer: int, kind: type[Post], number: int = 0
    ) -> None:
        for rank, local, block in self._blocks(view, stage, number):
            request = _request(kind, peer * len(view.held) + local, block)
            self.builder.programs[rank].append(Wait(request))

    def _blocks(self, view: View, stage: int, number: int) -> Iterator[tuple[int, int, str]]:
        """Yield (rank, rank in the stage, block) of a micro-batch's blocks of a view."""
        for local in range(len(view.held)):
            for block in view.blocks(local):
                yield stage * len(view.held) + local, local, self.micro_batches.block(block, number)


def _request(kind: type[Post], peer: int, block: str) -> str:
    return f"{'>' if kind is ISend else '<'}{peer} {block}"


# The step


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
