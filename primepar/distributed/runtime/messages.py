"""Sends and receives (P2P): posted one by one on gloo, adjacent ones as one batch on NCCL.

Messages match in the order of posting, as in the IR. Tags are passed to gloo; NCCL ignores them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

import torch
import torch.distributed as dist

from primepar.distributed.runtime.mesh import Mesh, Ranks
from primepar.operators import StepInputs
from primepar.schedule.program import Instruction, IRecv, ISend, Recv, Send

Message = Send | Recv | ISend | IRecv
Blocks = dict[str, torch.Tensor]


class Waitable(Protocol):
    """Communication that has been started: one `Work` of torch, or several."""

    def wait(self) -> object:
        """Return when it is done (on CUDA: the stream waits, not the host)."""


Start = Callable[[Blocks], Waitable]
"""Starts a transfer of blocks."""


class Frame:
    """The state of one run: blocks on the device and on the host, and requests in flight."""

    __slots__ = ("blocks", "host", "inputs", "requests")

    def __init__(self, blocks: Blocks, inputs: StepInputs, host: Blocks | None = None) -> None:
        self.blocks, self.inputs = blocks, inputs
        self.host: Blocks = {} if host is None else host
        self.requests: dict[str, Waitable] = {}


Action = Callable[[Frame], object]


class CompiledStep(NamedTuple):
    """One closure, and the instructions that it executes.

    `first` replaces `run` in the first run: it also checks the results of kernels.
    """

    instructions: tuple[Instruction, ...]
    run: Action
    first: Action


class Pending:
    """The works of one post, and a function to call when they are done.

    A second wait does nothing: one work may belong to several messages.
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
    """Return the work that torch started; torch returns None if there is nothing to do."""
    return Pending(()) if work is None else work


def staged(start: Start, given: list[str], gotten: list[str]) -> Start:
    """Return `start` with contiguous copies of the named blocks."""

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


def post(mesh: Mesh, messages: Sequence[Message], members: Mapping[str, Ranks]) -> Start:
    """Return the function that posts messages in order, and returns one object to wait for.

    `members` are those of each communicator.
    """
    calls: dict[str, list[Start]] = {}
    for message in messages:
        call = _call(mesh, message, members[message.communicator])
        calls.setdefault(message.communicator, []).append(call)
    if mesh.is_ordered:
        groups = [(mesh.group(members[name], name), batch) for name, batch in calls.items()]
        return _together(mesh, groups)
    starts = [start for batch in calls.values() for start in batch]
    if len(starts) == 1:
        return starts[0]
    return lambda blocks: Pending([start(blocks) for start in starts])


def _call(mesh: Mesh, message: Message, members: Ranks) -> Start:
    """Post one message by the group's own method, without the checks of `torch.distributed`."""
    group = mesh.group(members, message.communicator)
    name, peer, tag = message.block, members.index(message.peer), message.tag
    if isinstance(message, Send | ISend):
        return lambda blocks: group.send([blocks[name]], peer, tag)
    return lambda blocks: group.recv([blocks[name]], peer, tag)


def _together(mesh: Mesh, groups: Sequence[tuple[dist.ProcessGroup, list[Start]]]) -> Start:
    """Post one batch per process group, by the calls of `torch.distributed.batch_isend_irecv`."""

    def batches(blocks: Blocks) -> Waitable:
        works = []
        for group, calls in groups:
            group._start_coalescing(mesh.device)
            for call in calls:
                call(blocks)
            works.append(group._end_coalescing(mesh.device))
        return Pending(works)

    return batches
