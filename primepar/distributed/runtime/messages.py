"""Sends and receives: posted one by one on gloo, a whole run of them as one batch on NCCL.

The order of posting selects the partner, as in the IR. NCCL ignores tags; gloo gets them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import torch
import torch.distributed as dist

from primepar.distributed.runtime.mesh import Mesh
from primepar.operators import StepInputs
from primepar.schedule.program import Instruction, IRecv, ISend, Recv, Send

Message = Send | Recv | ISend | IRecv
Blocks = dict[str, torch.Tensor]


class Waitable(Protocol):
    """What has been started: a work of torch, or several."""

    def wait(self) -> object:
        """Return when it is done (on CUDA: the stream waits, not the host)."""


Start = Callable[[Blocks], Waitable]
"""Starts what moves blocks."""


class Frame:
    """What one run has at hand: blocks on the device and on the host, and what is in flight."""

    __slots__ = ("blocks", "host", "inputs", "requests")

    def __init__(self, blocks: Blocks, inputs: StepInputs) -> None:
        self.blocks, self.inputs = blocks, inputs
        self.host: Blocks = {}
        self.requests: dict[str, Waitable] = {}


Action = Callable[[Frame], object]


class CompiledStep(NamedTuple):
    """One closure, and the instructions that it executes.

    `first` is what runs in its place at the first run, where results of kernels are checked.
    """

    instructions: tuple[Instruction, ...]
    run: Action
    first: Action


class Pending:
    """Works of one post, and what is left to do when they are done.

    Waiting twice is harmless, as one work may stand for many messages.
    """

    def __init__(
        self, works: Sequence[Waitable | None], then: Callable[[], object] | None = None
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


def started(work: Waitable | None) -> Waitable:
    """What torch has started; it gives nothing where there is nothing to do."""
    return Pending(()) if work is None else work


def staged(start: Start, given: list[str], gotten: list[str]) -> Start:
    """`start` by way of contiguous copies of the named blocks."""

    def begin(blocks: Blocks) -> Waitable:
        copies = {name: blocks[name].contiguous() for name in given}
        copies |= {
            name: torch.empty_like(blocks[name], memory_format=torch.contiguous_format)
            for name in gotten
            if name not in copies
        }
        into = [(blocks[name], copies[name]) for name in gotten]
        work = start({**blocks, **copies})

        def take() -> None:
            for block, copy in into:
                block.copy_(copy)

        return Pending([work], take)

    return begin


def post(mesh: Mesh, messages: Sequence[Message]) -> Start:
    """What posts a run of messages, in order, and gives one thing to wait for."""
    if mesh.backend == "nccl":
        return _together(mesh, messages)
    calls = [_call(mesh, message) for message in messages]
    if len(calls) == 1:
        return calls[0]
    return lambda blocks: Pending([call(blocks) for call in calls])


def _call(mesh: Mesh, message: Message) -> Start:
    """One message by the group's own method: `torch.distributed` checks at every call."""
    group = mesh.world(message.communicator)
    name, peer, tag = message.block, message.peer, message.tag
    if isinstance(message, Send | ISend):
        return lambda blocks: group.send([blocks[name]], peer, tag)
    return lambda blocks: group.recv([blocks[name]], peer, tag)


def _together(mesh: Mesh, messages: Sequence[Message]) -> Start:
    """A batch per communicator: torch refuses one over several groups."""
    groups: dict[str, list[Message]] = {}
    for message in messages:
        groups.setdefault(message.communicator, []).append(message)

    def operation(blocks: Blocks, message: Message, group: dist.ProcessGroup) -> Any:
        call = dist.isend if isinstance(message, Send | ISend) else dist.irecv
        return dist.P2POp(call, blocks[message.block], message.peer, group, message.tag)

    def batches(blocks: Blocks) -> Waitable:
        works: list[Waitable | None] = []
        for communicator, batch in groups.items():
            group = mesh.world(communicator)
            operations = [operation(blocks, message, group) for message in batch]
            works += dist.batch_isend_irecv(operations)
        return Pending(works)

    return batches
