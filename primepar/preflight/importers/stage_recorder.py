"""Stages of torch's pipeline schedules that compute nothing, and write down what they are told.

A schedule of `torch.distributed.pipelining` drives its stages: it asks them for the operations of a
message, posts these, waits for them, and tells the stage to compute. Its runtime never looks into a
tensor. So the runtime of the installed version runs as it is, one rank at a time, with stages that
record, and with `isend`, `irecv` and `batch_isend_irecv` that record instead of communicating. What
results is the order that the runtime really has, with its batches and waits.

A stage that computes micro-batch m reads the blocks of that micro-batch, wherever they came from.
So where messages arrive in another order than the schedule expects, a block has the data of another
micro-batch than its name says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch.distributed
from torch.distributed.fsdp import FSDPModule

from primepar.preflight.importers.pipeline_names import (
    LOSS,
    PipelineNames,
    activation,
    activation_gradient,
)
from primepar.schedule.program import (
    AllGather,
    AllReduce,
    Compute,
    Free,
    Group,
    Instruction,
    IRecv,
    ISend,
    Recv,
    ReduceScatter,
    Send,
    Wait,
)

REPLICAS = "dp"
"""Communicator of the ranks with the same stages."""


class StageMessage(NamedTuple):
    """What a schedule posts for a stage: the fields of a `P2POp` that the runtime reads."""

    op: Callable[..., RecordedWork]
    tensor: str
    peer: int
    group: None = None
    tag: int = 0

    @property
    def group_peer(self) -> int:
        """The peer, by its position in the pipeline."""
        return self.peer


class RecordedWork:
    """A posted message or all-gather; waiting for it is recorded."""

    def __init__(self, recorder: RankRecorder, request: str) -> None:
        self._recorder, self._request = recorder, request

    def wait(self) -> None:
        """Record that the rank waits for it."""
        self._recorder.add(Wait(self._request))


class RankRecorder:
    """The instructions of one rank, in the order in which its schedule makes them."""

    def __init__(self, names: PipelineNames, position: int, replica: int) -> None:
        self.names, self.position, self.replica = names, position, replica
        self.instructions: list[Instruction] = []
        self._requests = 0
        self._batches: dict[int, int] = {}
        """Index of the first post of a batch -> number of its posts."""

    def add(self, node: Instruction) -> None:
        """Append an instruction."""
        self.instructions.append(node)

    def request(self) -> str:
        """Return a new name of a request."""
        self._requests += 1
        return f"r{self._requests}"

    def _post(self, sends: bool, block: str, peer: int) -> RecordedWork:
        kind, request = (ISend if sends else IRecv), self.request()
        self.add(kind(self.names.rank(peer, self.replica), block, request=request))
        return RecordedWork(self, request)

    def isend(self, tensor: str, group_dst: int, **_: object) -> RecordedWork:
        """Record a posted send, in place of `torch.distributed.isend`."""
        return self._post(True, tensor, group_dst)

    def irecv(self, tensor: str, group_src: int, **_: object) -> RecordedWork:
        """Record a posted receive, in place of `torch.distributed.irecv`."""
        return self._post(False, tensor, group_src)

    def batch(self, messages: Iterable[StageMessage]) -> list[RecordedWork]:
        """Record messages that start together, in place of `batch_isend_irecv`."""
        first = len(self.instructions)
        works = [
            self._post(message.op is torch.distributed.isend, message.tensor, message.peer)
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
                yield Group(tuple(map(_blocking, posts)))
                place += 2 * count
            else:
                yield self.instructions[place]
                place += 1


def _blocking(node: Instruction) -> Send | Recv:
    assert isinstance(node, ISend | IRecv)
    return (Send if isinstance(node, ISend) else Recv)(node.peer, node.block)


@contextmanager
def communication_by(recorder: RankRecorder) -> Iterator[None]:
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

    def __init__(self, recorder: RankRecorder, stage: int) -> None:
        self._recorder, self._stage = recorder, stage
        self.is_whole = False

    def modules(self) -> Iterator[ShardedModule]:
        """Yield itself: the stage is one group of parameters."""
        yield self

    def unshard(self, async_op: bool = False) -> RecordedWork:  # type: ignore[override]
        """Record the all-gather of the weights; it is posted, and the handle waits for it."""
        recorder, names = self._recorder, self._recorder.names
        self.is_whole = True
        request, weights = recorder.request(), names.weights(self._stage)
        group, own_shard = names.replica_ranks(recorder.position), weights[recorder.replica]
        recorder.add(AllGather(group, REPLICAS, request, block=own_shard, blocks=weights))
        return RecordedWork(recorder, request)

    def reshard(self) -> None:
        """Record that the other shards are freed."""
        self.is_whole = False
        for shard, block in enumerate(self._recorder.names.weights(self._stage)):
            if shard != self._recorder.replica:
                self._recorder.add(Free(block))


class RecordedStage:
    """One stage on one rank; the names are those that the runtime of torch calls."""

    def __init__(self, recorder: RankRecorder, stage: int, gathers: bool) -> None:
        """Make a stage; it `gathers` its weights itself where the schedule has no action for it."""
        names, self._gathers = recorder.names, gathers
        self.stage_index, self.num_stages = stage, names.stages
        self.group_rank, self.group_size = recorder.position, names.positions
        self.is_first, self.is_last = stage == 0, stage == names.stages - 1
        self.has_backward = names.trains
        self.stage_index_to_group_rank = dict(enumerate(names.stage_ranks))
        sharded = names.sharded and names.replicas > 1
        self.submod = ShardedModule(recorder, stage) if sharded else None
        self.output_chunks: list[str] = []
        self._recorder, self._names = recorder, names

    def _global(self, micro_batch: int) -> int:
        return self._recorder.replica * self._names.micro_batches + micro_batch

    def _blocks(self, micro_batch: int) -> tuple[str, str, str, str]:
        """Input and output of a micro-batch, and their gradients."""
        m, stage = self._global(micro_batch), self.stage_index
        x, y = (activation(number, m) for number in (stage, stage + 1))
        dx, dy = (activation_gradient(number, m) for number in (stage, stage + 1))
        return x, y, dx, dy

    def _message(self, sends: bool, block: str, peer_stage: int) -> list[StageMessage]:
        if not 0 <= peer_stage < self.num_stages:
            return []
        op = torch.distributed.isend if sends else torch.distributed.irecv
        return [StageMessage(op, block, self.stage_index_to_group_rank[peer_stage])]  # type: ignore[arg-type]

    def get_fwd_recv_ops(self, micro_batch: int) -> list[StageMessage]:
        """The receive of a micro-batch's input."""
        return self._message(False, self._blocks(micro_batch)[0], self.stage_index - 1)

    def get_fwd_send_ops(self, micro_batch: int) -> list[StageMessage]:
        """The send of a micro-batch's output."""
        return self._message(True, self._blocks(micro_batch)[1], self.stage_index + 1)

    def get_bwd_recv_ops(self, micro_batch: int) -> list[StageMessage]:
        """The receive of the gradient of the output."""
        if not self.has_backward:
            return []
        return self._message(False, self._blocks(micro_batch)[3], self.stage_index + 1)

    def get_bwd_send_ops(self, micro_batch: int) -> list[StageMessage]:
        """The send of the gradient of the input."""
        if not self.has_backward:
            return []
        return self._message(True, self._blocks(micro_batch)[2], self.stage_index - 1)

    def _compute(self, phase: str, reads: Iterable[str], writes: str, **cell: int) -> None:
        name = phase if phase == LOSS else f"stage{self.stage_index}.{phase}"
        self._recorder.add(Compute(tuple(reads), writes, name, cell))

    def forward_one_chunk(self, micro_batch: int, *_: object, **__: object) -> str:
        """Record a forward pass; returns the name of its output."""
        if self.submod is not None and self._gathers and not self.submod.is_whole:
            self.submod.unshard().wait()
        x, y, _, _ = self._blocks(micro_batch)
        weights = self._names.weights(self.stage_index)
        self._compute("forward", (x, *weights), y, M=self._global(micro_batch))
        return y

    def loss(self, output: str, target: str) -> str:
        """Record the loss of an output; returns the name of its gradient."""
        _, micro_batch = output[:-1].split("[")
        gradient = activation_gradient(self.num_stages, int(micro_batch))
        self._compute(LOSS, (output, target), gradient, M=int(micro_batch))
        return gradient

    def backward_one_chunk(
        self, micro_batch: int, loss: str | None = None, full_backward: bool = True,
        last_backward: bool = False,
    ) -> None:  # fmt: skip
        """Record a backward pass, with the gradient of the weights where it is full."""
        if not self.has_backward:
            return
        _, y, dx, dy = self._blocks(micro_batch)
        weights = self._names.weights(self.stage_index)
        self._compute("backward", (loss or dy, y, *weights), dx, M=self._global(micro_batch))
        if full_backward:
            self._gradient(micro_batch, loss or dy, last_backward)

    def backward_weight_one_chunk(self, micro_batch: int, last_backward: bool = False) -> None:
        """Record the gradient of the weights."""
        if self.has_backward:
            self._gradient(micro_batch, self._blocks(micro_batch)[3], last_backward)

    def _gradient(self, micro_batch: int, dy: str, last_backward: bool) -> None:
        x, _, dx, _ = self._blocks(micro_batch)
        for shard, block in enumerate(self._names.gradients(self.stage_index)):
            self._compute("gradient", (x, dy, dx), block, M=self._global(micro_batch), R=shard)
        if last_backward and not self._names.sharded:
            self._all_reduce()

    def _all_reduce(self) -> None:
        """Record the sum over replicas that DDP makes in the last backward pass."""
        replicas = self._names.replicas
        if replicas > 1:
            (block,) = self._names.gradients(self.stage_index)
            group = self._names.replica_ranks(self.group_rank)
            self._recorder.add(AllReduce(group, REPLICAS, block=block, scale=f"1/{replicas}"))

    def perform_reduce_grad(self, _: int) -> None:
        """Record the reduce-scatter of sharded gradients (FSDP)."""
        replicas, recorder = self._names.replicas, self._recorder
        if self.submod is None or not self.has_backward:
            return
        blocks = self._names.gradients(self.stage_index)
        group, own_block = self._names.replica_ranks(self.group_rank), blocks[recorder.replica]
        recorder.add(
            ReduceScatter(group, REPLICAS, blocks=blocks, block=own_block, scale=f"1/{replicas}")
        )
        for block in blocks:
            if block != own_block:
                recorder.add(Free(block))
        if self._gathers and self.submod.is_whole:
            self.submod.reshard()

    def scale_grads(self, _: int) -> None:
        """Do nothing: the mean over micro-batches is local, and sums are followed without it."""

    def clear_runtime_states(self) -> None:
        """Do nothing: there is one step."""

    def set_local_fwd_input(self, output: str, micro_batch: int) -> None:
        """Check that the next stage, on this rank, is given its own micro-batch."""
        assert output == self._blocks(micro_batch)[0], output

    def get_local_bwd_output(self, micro_batch: int) -> str:
        """Return the gradient of the input, for the stage before, on this rank."""
        return self._blocks(micro_batch)[2]

    def set_local_bwd_input(self, gradient: str, micro_batch: int) -> None:
        """Check that the stage before, on this rank, is given its own micro-batch."""
        assert gradient == self._blocks(micro_batch)[3], gradient
