"""Stages of torch's pipeline schedules that compute nothing, and record what is asked of them.

A schedule of `torch.distributed.pipelining` drives its stages: it asks them for the operations of a
message, posts these, waits for them, and has the stage compute. Its runtime never looks into a
tensor. So the runtime of the installed version runs as it is, one rank at a time, with stages that
record, and with `isend`, `irecv` and `batch_isend_irecv` that record instead of communicating. What
results is the order that the runtime really has, with its batches and waits.

A stage that computes micro-batch m reads the blocks of that micro-batch, wherever they came from.
So where messages arrive in another order than the schedule expects, a block has the data of another
micro-batch than its name states.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch.distributed

from primepar.preflight.importers.pipeline_names import (
    LOSS,
    activation,
    activation_gradient,
)
from primepar.preflight.importers.rank_recorder import (
    REPLICAS,
    PipelineRecorder,
    SentBlock,
    ShardedModule,
    StageMessage,
)
from primepar.schedule.program import AllReduce, Compute, Free, ReduceScatter


class RecordedStage:
    """One stage on one rank; the names are those that the runtime of torch calls."""

    def __init__(self, recorder: PipelineRecorder, stage: int, gathers: bool) -> None:
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

    def _action(self, kind: str, micro_batch: int | None = None) -> str:
        return f"{self.stage_index}{kind}{'' if micro_batch is None else micro_batch}"

    def _message(
        self, kind: str, micro_batch: int, block: str, peer_stage: int
    ) -> list[StageMessage]:
        if not 0 <= peer_stage < self.num_stages:
            return []
        sends, sent = kind.startswith("SEND"), SentBlock(block, self._action(kind, micro_batch))
        op: Any = torch.distributed.isend if sends else torch.distributed.irecv
        return [StageMessage(op, sent, self.stage_index_to_group_rank[peer_stage])]

    def get_fwd_recv_ops(self, micro_batch: int) -> list[StageMessage]:
        """The receive of a micro-batch's input."""
        return self._message(
            "RECV_F", micro_batch, self._blocks(micro_batch)[0], self.stage_index - 1
        )

    def get_fwd_send_ops(self, micro_batch: int) -> list[StageMessage]:
        """The send of a micro-batch's output."""
        return self._message(
            "SEND_F", micro_batch, self._blocks(micro_batch)[1], self.stage_index + 1
        )

    def get_bwd_recv_ops(self, micro_batch: int) -> list[StageMessage]:
        """The receive of the gradient of the output."""
        if not self.has_backward:
            return []
        return self._message(
            "RECV_B", micro_batch, self._blocks(micro_batch)[3], self.stage_index + 1
        )

    def get_bwd_send_ops(self, micro_batch: int) -> list[StageMessage]:
        """The send of the gradient of the input."""
        if not self.has_backward:
            return []
        return self._message(
            "SEND_B", micro_batch, self._blocks(micro_batch)[2], self.stage_index - 1
        )

    def _compute(
        self, phase: str, reads: Iterable[str], writes: str, action: str, **cell: int
    ) -> None:
        name = phase if phase == LOSS else f"stage{self.stage_index}.{phase}"
        self._recorder.add(Compute(tuple(reads), writes, name, cell), action)

    def forward_one_chunk(self, micro_batch: int, *_: object, **__: object) -> str:
        """Record a forward pass; returns the name of its output."""
        if self.submod is not None and self._gathers and not self.submod.is_whole:
            self.submod.unshard().wait()
        x, y = self._blocks(micro_batch)[:2]
        weights = self._names.weights(self.stage_index)
        action = self._action("F", micro_batch)
        self._compute("forward", (x, *weights), y, action, M=self._global(micro_batch))
        return y

    def loss(self, output: str, target: str) -> str:
        """Record the loss of an output; returns the name of its gradient."""
        _, micro_batch = output[:-1].split("[")
        gradient = activation_gradient(self.num_stages, int(micro_batch))
        action = self._action("F", int(micro_batch) % self._names.micro_batches)
        self._compute(LOSS, (output, target), gradient, action, M=int(micro_batch))
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
        action, dy = self._action("B" if full_backward else "I", micro_batch), loss or dy
        self._compute("backward", (dy, y, *weights), dx, action, M=self._global(micro_batch))
        if full_backward:
            self._gradient(micro_batch, dy, action, last_backward)

    def backward_weight_one_chunk(self, micro_batch: int, last_backward: bool = False) -> None:
        """Record the gradient of the weights."""
        if self.has_backward:
            action = self._action("W", micro_batch)
            self._gradient(micro_batch, self._blocks(micro_batch)[3], action, last_backward)

    def _gradient(self, micro_batch: int, dy: str, action: str, last_backward: bool) -> None:
        x, _, dx, _ = self._blocks(micro_batch)
        m = self._global(micro_batch)
        for shard, block in enumerate(self._names.gradients(self.stage_index)):
            self._compute("gradient", (x, dy, dx), block, action, M=m, R=shard)
        if last_backward and not self._names.sharded:
            self._all_reduce(action)

    def _all_reduce(self, action: str) -> None:
        """Record the sum over replicas that DDP makes in the last backward pass."""
        replicas = self._names.replicas
        if replicas > 1:
            (block,) = self._names.gradients(self.stage_index)
            group = self._names.replica_ranks(self.group_rank)
            mean = AllReduce(group, REPLICAS, block=block, scale=f"1/{replicas}")
            self._recorder.add(mean, action)

    def perform_reduce_grad(self, _: int) -> None:
        """Record the reduce-scatter of sharded gradients (FSDP)."""
        replicas, recorder = self._names.replicas, self._recorder
        if self.submod is None or not self.has_backward:
            return
        blocks = self._names.gradients(self.stage_index)
        group, own_block = self._names.replica_ranks(self.group_rank), blocks[recorder.replica]
        action, mean = self._action("REDUCE_GRAD"), f"1/{replicas}"
        recorder.add(
            ReduceScatter(group, REPLICAS, blocks=blocks, block=own_block, scale=mean), action
        )
        for block in blocks:
            if block != own_block:
                recorder.add(Free(block), action)
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
