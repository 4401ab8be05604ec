"""The lists of all ranks of a pipeline, from what each chunk of the model does in a micro-batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from primepar.models.graph import Operator
from primepar.operators.builder import ProgramBuilder, View
from primepar.operators.micro_batches import MicroBatches
from primepar.operators.step_context import AFTER, BEFORE, OperatorLowering, StepContext
from primepar.partition.pipeline.dependencies import (
    ChunkMessage,
    PipelineOrders,
    PlacedMessage,
    Position,
    placed_messages,
)
from primepar.schedule.program import IRecv, ISend, Wait

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
        if is_last and not sends:
            self._section(chunk, action.kind, number)
            return
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
