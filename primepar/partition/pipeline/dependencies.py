"""What every action of a pipeline waits for, and the messages between stages that follow from it.

    F(i, k)  after F(i - 1, k)              the input of model chunk i comes from chunk i - 1
    B(i, k)  after F(i, k) and B(i + 1, k)  the gradient of its output comes from chunk i + 1
    W(i, k)  after B(i, k)

A schedule that does not separate the two gradients sends the gradient of its input after W.
Between stages each of these dependencies is one message.

Where in its list each stage posts and awaits them: messages match in order per pair of stages. A
stage posts its receives from another stage in the order in which that one sends, one action before
the first that needs them or a later one. It waits for a send as soon as the receiver must have used
the message, so that no such wait takes time.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from operator import attrgetter
from typing import NamedTuple

from primepar.partition.pipeline.actions import (
    Action,
    Order,
    ScheduleName,
    actions,
    chunks_of,
    model_chunk_of,
    stage_of,
)
from primepar.schedule.operators import block_name

SEPARATE: frozenset[ScheduleName] = frozenset({"zb-h1", "zbv"})
"""Schedules that separate the gradients of input and weights."""


ActionKey = tuple[str, int, int]
"""An action by its kind, its chunk of the model and its micro-batch."""


class Position(NamedTuple):
    """An action by its stage and its place in the order of that stage."""

    stage: int
    place: int


class ChunkMessage(NamedTuple):
    """A block that leaves its stage after one action, and that another action needs."""

    block: str
    source: Position
    destination: Position


@dataclass(frozen=True)
class PipelineOrders:
    """The orders of all stages, with the dependencies between their actions."""

    stages: int
    micro_batches: int
    chunks: int
    orders: tuple[Order, ...]
    schedule: ScheduleName
    sends_early: bool = False
    """Whether the gradient of the input leaves after B, whatever the schedule publishes."""

    @classmethod
    def of(
        cls, schedule: ScheduleName, stages: int, micro_batches: int, chunks: int | None = None
    ) -> PipelineOrders:
        """The pipeline of a published schedule. Raises `MethodError` for sizes that do not fit."""
        orders = actions(schedule, stages, micro_batches, chunks)
        return cls(stages, micro_batches, chunks_of(schedule, chunks), orders, schedule)

    def action(self, position: Position) -> Action:
        """The action at a place of a stage."""
        return self.orders[position.stage][position.place]

    @property
    def forward_only(self) -> PipelineOrders:
        """The same without gradients: what an evaluation does."""
        orders = tuple(
            tuple(action for action in order if action.kind == "F") for order in self.orders
        )
        return replace(self, orders=orders)

    @property
    def layers(self) -> int:
        """Chunks of the model; the program has one linear layer in each."""
        return self.stages * self.chunks

    def layer(self, stage: int, action: Action) -> int:
        """The chunk of the model that an action works on."""
        return model_chunk_of(self.schedule, self.stages, stage, action.chunk)

    def stage(self, layer: int) -> int:
        """The stage of a chunk of the model."""
        return stage_of(self.schedule, self.stages, self.chunks, layer)[0]

    @cached_property
    def positions(self) -> dict[ActionKey, Position]:
        """The position of every action."""
        return {
            (action.kind, self.layer(stage, action), action.micro_batch): Position(stage, place)
            for stage, order in enumerate(self.orders)
            for place, action in enumerate(order)
        }

    def needed(self, key: ActionKey) -> Iterator[ActionKey]:
        """The actions after whose end an action can start, wherever they are."""
        kind, layer, micro_batch = key
        if kind == "W":
            yield "B", layer, micro_batch
        elif kind == "B":
            yield "F", layer, micro_batch
            if layer + 1 < self.layers:
                sends = "B" if self.sends_early or self.schedule in SEPARATE else "W"
                yield sends, layer + 1, micro_batch
        elif layer:
            yield "F", layer - 1, micro_batch

    @cached_property
    def messages(self) -> tuple[ChunkMessage, ...]:
        """All messages, those of each stage in the order of its sends."""
        sent = []
        for key, position in self.positions.items():
            kind, layer, micro_batch = key
            tensor = f"x.{layer}" if kind == "F" else f"dx.{layer + 1}"
            block = block_name(tensor, (micro_batch, 0))
            sources = map(self.positions.__getitem__, self.needed(key))
            sent += [
                ChunkMessage(block, source, position)
                for source in sources
                if source.stage != position.stage
            ]
        return tuple(sorted(sent, key=attrgetter("source")))

    @cached_property
    def known(self) -> dict[Position, tuple[int, ...]]:
        """Position -> for each stage how many of its actions are done before that action starts.

        These are vector clocks (Mattern, 1989). An action of a deadlock has none. Example: where
        action 3 of stage 0 receives what stage 1 sent after its action 4, stage 1 has done 5.
        """
        arriving: dict[Position, list[Position]] = {}
        for message in self.messages:
            arriving.setdefault(message.destination, []).append(message.source)
        clocks: dict[Position, tuple[int, ...]] = {}
        places, moved = [0] * self.stages, True
        while moved:
            moved = False
            for stage, order in enumerate(self.orders):
                while places[stage] < len(order):
                    position = Position(stage, places[stage])
                    sources = arriving.get(position, [])
                    if not all(source in clocks for source in sources):
                        break
                    # A stage knows what it knew before its last action, that this one is done,
                    # and what the senders knew, with their action.
                    before = Position(stage, position.place - 1)
                    rows = [list(clocks[source]) for source in sources]
                    for row, source in zip(rows, sources, strict=True):
                        row[source.stage] = source.place + 1
                    rows.append(list(clocks.get(before, [0] * self.stages)))
                    rows[-1][stage] = position.place
                    clocks[position] = tuple(map(max, zip(*rows, strict=True)))
                    places[stage] += 1
                    moved = True
        return clocks


class PlacedMessage(NamedTuple):
    """A message with the places of its two ends; a place is the action before which they are.

    The sender posts after the action of the source. It waits before its action `ended`, which is
    the number of its actions where it never learns that the message was used. The receiver posts
    before its action `posted`, and waits before the action of the destination.
    """

    message: ChunkMessage
    posted: int
    ended: int


def placed_messages(pipeline: PipelineOrders) -> tuple[PlacedMessage, ...]:
    """All messages with their places, those of each stage in the order of its sends."""
    posted, placed = _posted(pipeline), []
    clocks = [
        [pipeline.known[Position(stage, place)] for place in range(len(order))]
        for stage, order in enumerate(pipeline.orders)
    ]
    for message in pipeline.messages:
        user, sender = message.destination, message.source.stage
        # The first action of the sender before which it knows that the message was used. What a
        # stage knows of another one only grows, so it is found by bisection.
        ended = bisect_left(clocks[sender], user.place + 1, key=lambda clock: clock[user.stage])
        placed.append(PlacedMessage(message, posted[message], ended))
    return tuple(placed)


def _posted(pipeline: PipelineOrders) -> dict[ChunkMessage, int]:
    """The place of every receive: those of a pair of stages are in the order of the sends."""
    latest: dict[tuple[int, int], int] = {}
    places = {}
    for message in reversed(pipeline.messages):
        # From the last message to the first: a receive may be earlier than it needs to be, so that
        # it is not behind that of a later send.
        pair, user = (message.source.stage, message.destination.stage), message.destination
        end = latest.get(pair, len(pipeline.orders[user.stage]))
        places[message] = latest[pair] = min(end, max(user.place - 1, 0))
    return places
