"""What a rank posts, waits for and computes while the runtime of a torch pipeline runs on it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch.distributed
from msgspec.structs import replace
from torch.distributed.fsdp import FSDPModule

from primepar.preflight.importers.pipeline_names import (
    PipelineNames,
)
from primepar.schedule.program import (
    AllGather,
    Free,
    Group,
    Instruction,
    IRecv,
    ISend,
    Recv,
    Send,
    Wait,
)

REPLICAS = "dp"
"""Communicator of the ranks with the same stages."""


class SentBlock(NamedTuple):
    """What stands for the tensor of a message."""

    block: str
    action: str
    """The action of the schedule that sends or receives it, `2SEND_F0`."""


class StageMessage(NamedTuple):
    """What a schedule posts for a stage: the fields of a `P2POp` that the runtime reads."""

    op: Callable[..., StageWork]
    tensor: SentBlock
    peer: int
    group: None = None
    tag: int = 0

    @property
    def group_peer(self) -> int:
        """The peer, by its position in the pipeline."""
        return self.peer


class StageWork:
    """A posted message or all-gather; waiting for it is recorded."""

    def __init__(self, recorder: PipelineRecorder, request: str, action: str) -> None:
        self._recorder, self._request, self._action = recorder, request, action

    def wait(self) -> None:
        """Record that the rank waits for it."""
        self._recorder.add(Wait(self._request), self._action)


class PipelineRecorder:
    """The instructions of one rank, in the order in which its schedule makes them."""

    def __init__(
        self, names: PipelineNames, position: int, replica: int, places: Mapping[str, str]
    ) -> None:
        """Make the recorder of a rank; `places` are those of its actions in a file."""
        self.names, self.position, self.replica, self._places = names, position, replica, places
        self.instructions: list[Instruction] = []
        self._requests = 0
        self._batches: dict[int, int] = {}
        """Index of the first post of a batch -> number of its posts."""

    def add(self, node: Instruction, action: str) -> None:
        """Append an instruction that an action of the schedule makes."""
        changed: Any = node  # `replace` takes one type, and a node is of many
        self.instructions.append(replace(changed, source=self._places.get(action, action)))

    def request(self) -> str:
        """Return a new name of a request."""
        self._requests += 1
        return f"r{self._requests}"

    def _post(self, sends: bool, sent: SentBlock, peer: int) -> StageWork:
        kind, request = (ISend if sends else IRecv), self.request()
        post = kind(self.names.rank(peer, self.replica), sent.block, request=request)
        self.add(post, sent.action)
        return StageWork(self, request, sent.action)

    def isend(self, tensor: SentBlock, group_dst: int, **_: object) -> StageWork:
        """Record a posted send, in place of `torch.distributed.isend`."""
        return self._post(True, tensor, group_dst)

    def irecv(self, tensor: SentBlock, group_src: int, **_: object) -> StageWork:
        """Record a posted receive, in place of `torch.distributed.irecv`."""
        return self._post(False, tensor, group_src)

    def batch(self, messages: Iterable[StageMessage]) -> list[StageWork]:
        """Record messages that start together, in place of `batch_isend_irecv`."""
        first = len(self.instructions)
        works = [
            self._post("SEND" in message.tensor.action, message.tensor, message.peer)
            for message in messages
        ]
        self._batches[first] = len(works)
        return works

    def grouped(self) -> Iterator[Instruction]:
        """Yield the instructions, with each batch that is waited for at once as a `group`."""
        place = 0
        while place < len(self.instructions):
            count = self._batches.get(place, 0)
            posts = self.instructions[place : place + count]
            waits = self.instructions[place + count : place + 2 * count]
            requests = {getattr(node, "request", None) for node in posts}
            if count and {node.request for node in waits if isinstance(node, Wait)} == requests:
                source = " ".join(str(post.source) for post in posts)
                yield Group(tuple(map(_blocking, posts)), source=source)
                place += 2 * count
            else:
                yield self.instructions[place]
                place += 1


def _blocking(node: Instruction) -> Send | Recv:
    assert isinstance(node, ISend | IRecv)
    return (Send if isinstance(node, ISend) else Recv)(node.peer, node.block, source=node.source)


@contextmanager
def communication_by(recorder: PipelineRecorder) -> Iterator[None]:
    """Let torch's messages go to a recorder for the time of the block."""
    stands_in = {
        "isend": recorder.isend,
        "irecv": recorder.irecv,
        "batch_isend_irecv": recorder.batch,
    }
    real = {name: getattr(torch.distributed, name) for name in stands_in}
    try:
        for name, function in stands_in.items():
            setattr(torch.distributed, name, function)
        yield
    finally:
        for name, function in real.items():
            setattr(torch.distributed, name, function)


class ShardedModule(FSDPModule):
    """The module of a stage with sharded weights; the runtime gathers and frees these."""

    def __new__(cls, *_: object) -> ShardedModule:
        """Make it without a class of its own, as `fully_shard` gives to a real module."""
        return object.__new__(cls)

    def __init__(self, recorder: PipelineRecorder, stage: int) -> None:
        self._recorder, self._stage = recorder, stage
        self.is_whole = False

    def modules(self) -> Iterator[ShardedModule]:
        """Yield itself: the stage is one group of parameters."""
        yield self

    def unshard(self, async_op: bool = False) -> StageWork:  # type: ignore[override]
        """Record the all-gather of the weights; it is posted, and the handle waits for it."""
        recorder, names = self._recorder, self._recorder.names
        self.is_whole = True
        request, weights = recorder.request(), names.weights(self._stage)
        group, own_shard = names.replica_ranks(recorder.position), weights[recorder.replica]
        recorder.add(
            AllGather(group, REPLICAS, request, block=own_shard, blocks=weights),
            self._action("UNSHARD"),
        )
        return StageWork(recorder, request, self._action("UNSHARD"))

    def reshard(self) -> None:
        """Record that the other shards are freed."""
        self.is_whole = False
        for shard, block in enumerate(self._recorder.names.weights(self._stage)):
            if shard != self._recorder.replica:
                self._recorder.add(Free(block), self._action("RESHARD"))

    def _action(self, name: str) -> str:
        return f"{self._stage}{name}"
