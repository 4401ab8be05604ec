"""Sends and receives: posted one by one on gloo, a whole run of them as one batch on NCCL.

The order of posting selects the partner, as in the IR. NCCL ignores tags; gloo gets them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from primepar.distributed.buffers import BufferPool
from primepar.distributed.mesh import Mesh
from primepar.schedule.program import IRecv, ISend, Recv, Send

Message = Send | Recv | ISend | IRecv
Blocks = dict[str, torch.Tensor]


class Pending:
    """Works of one post, and what is left to do when they are done.

    Waiting twice is harmless, as one work may stand for many messages.
    """

    def __init__(
        self, works: Sequence[dist.Work | None], then: Callable[[], object] | None = None
    ) -> None:
        self._works = [work for work in works if work is not None]
        self._then = then

    def wait(self) -> None:
        """Return when all of it is done (on CUDA: the stream waits, not the host)."""
        for work in self._works:
            work.wait()
        if self._then is not None:
            self._then()
        self._works, self._then = [], None


Start = Callable[[Blocks], Pending]
"""Starts what moves blocks."""


def staged(pool: BufferPool, start: Start, given: list[str], gotten: list[str]) -> Start:
    """`start` by way of buffers for the named blocks, which are no contiguous memory."""

    def begin(blocks: Blocks) -> Pending:
        shapes = {name: tuple(blocks[name].shape) for name in (*given, *gotten)}
        buffers = {name: pool.acquire(shape) for name, shape in shapes.items()}
        for name in given:
            buffers[name].copy_(blocks[name])
        pending = start({**blocks, **buffers})

        def take() -> None:
            pending.wait()
            for name in gotten:
                blocks[name].copy_(buffers[name])
            for buffer in buffers.values():
                pool.release(buffer)

        return Pending((), take)

    return begin


def post(mesh: Mesh, messages: Sequence[Message]) -> Start:
    """What posts a run of messages, in order, and gives one `Pending` for all of them."""
    if mesh.backend == "nccl":
        return _together(mesh, messages)
    calls = [_call(mesh, message) for message in messages]
    return lambda blocks: Pending([call(blocks) for call in calls])


def _call(mesh: Mesh, message: Message) -> Callable[[Blocks], dist.Work | None]:
    group = mesh.world(message.communicator)
    name, peer, tag = message.block, message.peer, message.tag
    if isinstance(message, Send | ISend):
        return lambda blocks: dist.isend(blocks[name], peer, group, tag)
    return lambda blocks: dist.irecv(blocks[name], peer, group, tag)


def _together(mesh: Mesh, messages: Sequence[Message]) -> Start:
    """A batch per communicator: torch refuses one over several groups."""
    groups: dict[str, list[Message]] = {}
    for message in messages:
        groups.setdefault(message.communicator, []).append(message)

    def operation(blocks: Blocks, message: Message, group: dist.ProcessGroup) -> Any:
        call = dist.isend if isinstance(message, Send | ISend) else dist.irecv
        return dist.P2POp(call, blocks[message.block], message.peer, group, message.tag)

    def batches(blocks: Blocks) -> Pending:
        works: list[dist.Work | None] = []
        for communicator, batch in groups.items():
            group = mesh.world(communicator)
            operations = [operation(blocks, message, group) for message in batch]
            works += dist.batch_isend_irecv(operations)
        return Pending(works)

    return batches
