"""When the stages of a pipeline post and await their messages.

An action that takes its input from another stage waits for it. All actions get a time: each takes
one unit and starts once its stage is free and its input is there. A message is posted by its
sender after the action that makes it, and by its receiver before the first action that starts no
earlier. The sender waits before its first action that starts no earlier than that post.

So the posts of both ends of a pair of stages have one order, that of sending. And no deadlock
arises: before an action a stage first posts, then waits, and waits only for actions that ended by
then and for posts before actions that start no later.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from primepar.partition.pipeline.actions import Kind
from primepar.plan.pipeline_layout import PipelineLayout


class ModelAction(NamedTuple):
    """An action, with the number of its chunk in the model."""

    kind: Kind
    micro_batch: int
    chunk: int


@dataclass(frozen=True)
class StageMessage:
    """What the action `made_by` sends to another stage for one of its actions.

    `made` is the sender's position of the action. The receiver posts at its position `posted` and
    waits at `awaited`; the sender waits at its position `sent`. A position is the number of the
    action before which that happens.
    """

    made_by: ModelAction
    made: int
    sender: int
    receiver: int
    posted: int
    awaited: int
    sent: int


class StageOrders:
    """The actions of every stage in order, without backward ones where nothing is trained."""

    def __init__(self, pipeline: PipelineLayout, trains: bool) -> None:
        self.stages = [stage for stage, _ in pipeline.stage_chunks]
        chunks = {place: chunk for chunk, place in enumerate(pipeline.stage_chunks)}
        self.orders = [
            [
                ModelAction(action.kind, action.micro_batch, chunks[stage, action.chunk])
                for action in order
                if trains or action.kind == "F"
            ]
            for stage, order in enumerate(pipeline.orders)
        ]
        self._starts = self._timed()

    def _source(self, action: ModelAction) -> ModelAction | None:
        """The action that an action takes its input from; None for the first of a micro-batch."""
        kind, micro_batch, chunk = action
        if kind == "F":
            return ModelAction("F", micro_batch, chunk - 1) if chunk else None
        if kind == "W":
            return ModelAction("B", micro_batch, chunk)
        if chunk + 1 < len(self.stages):
            return ModelAction("B", micro_batch, chunk + 1)
        return ModelAction("F", micro_batch, chunk)

    def _timed(self) -> list[list[int]]:
        """Start of every action of every stage."""
        starts: list[list[int]] = [[] for _ in self.orders]
        ends: dict[ModelAction, int] = {}
        grows = True
        while grows:
            grows = False
            for order, times in zip(self.orders, starts, strict=True):
                while len(times) < len(order):
                    action = order[len(times)]
                    source = self._source(action)
                    if source is not None and source not in ends:
                        break
                    free = times[-1] + 1 if times else 0
                    times.append(max(free, ends[source] if source else 0))
                    ends[action], grows = times[-1] + 1, True
        assert [*map(len, starts)] == [*map(len, self.orders)], "the schedule has a deadlock"
        return starts

    def messages(self) -> Iterator[StageMessage]:
        """Every message between two stages."""
        places = {
            action: (stage, position)
            for stage, order in enumerate(self.orders)
            for position, action in enumerate(order)
        }
        for action, (receiver, position) in places.items():
            source = self._source(action)
            if source is None or places[source][0] == receiver:
                continue
            sender, made = places[source]
            posted = bisect_left(self._starts[receiver], self._starts[sender][made] + 1)
            sent = bisect_left(self._starts[sender], self._starts[receiver][posted])
            yield StageMessage(
                source, made, sender, receiver, posted, position, max(sent, made + 1)
            )
