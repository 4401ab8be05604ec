"""Where in its list each stage posts and awaits the messages of a pipeline.

Messages match in order per pair of stages. A stage posts its receives from another stage in the
order in which that one sends, one action before the first that needs them or a later one. It waits
for a send as soon as the receiver must have used the message, so that no such wait takes time.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import NamedTuple

from primepar.partition.pipeline.dependencies import ChunkMessage, PipelineOrders, Position


class PlacedMessage(NamedTuple):
    """A message with the places of its two ends; a place is the action before which they are.

    The sender posts after the action of the source. It waits before its action `ended`, which is
    the number of its actions where it never learns that the message was used. The receiver posts
    before its action `posted`, and waits before the action of the destination.
    """

    message: ChunkMessage
    posted: int
    ended: int


def communicator(source: int, destination: int) -> str:
    """Return the communicator of the messages from one stage to another.

    NCCL runs the operations of a communicator in the order of their posts. Each direction of a pair
    of stages has its own: there both ends post in the order of the sends, and none is held up.
    """
    return f"stages.{source}>{destination}"


def placed_messages(pipeline: PipelineOrders) -> tuple[PlacedMessage, ...]:
    """All messages with their places, those of each stage in the order of its sends."""
    posted, clocks = _posted(pipeline), _clocks(pipeline)
    placed = []
    for message in pipeline.messages:
        user, sender = message.destination, message.source.stage
        ended = bisect_left(clocks[sender], user.place + 1, key=lambda clock: clock[user.stage])
        placed.append(PlacedMessage(message, posted[message], ended))
    return tuple(placed)


def _posted(pipeline: PipelineOrders) -> dict[ChunkMessage, int]:
    """The place of every receive: those of a pair of stages are in the order of the sends."""
    latest: dict[tuple[int, int], int] = {}
    places = {}
    for message in reversed(pipeline.messages):
        pair, user = (message.source.stage, message.destination.stage), message.destination
        end = latest.get(pair, len(pipeline.orders[user.stage]))
        places[message] = latest[pair] = min(end, max(user.place - 1, 0))
    return places


def _clocks(pipeline: PipelineOrders) -> list[list[tuple[int, ...]]]:
    """For every stage what it knows of the others before each of its actions."""
    return [
        [pipeline.known[Position(stage, place)] for place in range(len(order))]
        for stage, order in enumerate(pipeline.orders)
    ]
