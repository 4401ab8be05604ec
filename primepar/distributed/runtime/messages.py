"""Sends and receives (P2P): posted one by one on gloo, adjacent ones as one batch on NCCL.

Messages match in the order of posting, as in the IR. Tags are passed to gloo; NCCL ignores them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Protocol

import torch.distributed as dist

from primepar.distributed.runtime.memory import Slot
from primepar.distributed.runtime.mesh import Mesh, Ranks
from primepar.distributed.runtime.running import Action, Frame
from primepar.schedule.program import ISend, Message, Send
from primepar.schedule.transport import split


class Waitable(Protocol):
    """Communication that has been started: one `Work` of torch, or several."""

    def wait(self) -> object:
        """Return when it is done (on CUDA: the stream waits, not the host)."""


Start = Callable[[], Waitable]
"""Starts a transfer of blocks."""


class Pending:
    """The works of one post.

    A second wait does nothing: one work may belong to several messages.
    """

    def __init__(self, works: Sequence[Waitable | None]) -> None:
        self._works = [work for work in works if work is not None]

    def wait(self) -> None:
        """Return when all of it is done (on CUDA: the stream waits, not the host)."""
        for work in self._works:
            work.wait()
        self._works = []


def posting(start: Start, work: Slot) -> Action:
    """Return the start of communication, which is then in the slot."""

    def post(frame: Frame) -> None:
        work[0] = start()

    return post


def waiting(work: Slot) -> Action:
    """Return the wait for the communication in a slot."""

    def wait(frame: Frame) -> None:
        started, work[0] = work[0], None
        if started is not None:  # torch returns None if there is nothing to do
            started.wait()

    return wait


def post(
    mesh: Mesh, messages: Sequence[Message], slots: Sequence[Slot], members: Mapping[str, Ranks]
) -> Start:
    """Return the function that posts messages in order, and returns one object to wait for.

    The slots have their blocks. `members` are those of each communicator.
    """
    starts = [
        _call(mesh, message, slot, members[message.communicator])
        for message, slot in zip(messages, slots, strict=True)
    ]
    if mesh.is_ordered:
        names = ((batch[0].communicator, len(batch)) for batch in split(messages, mesh.ranks))
        rest = iter(starts)
        return _together(
            mesh,
            [(mesh.group(members[name], name), list(islice(rest, count))) for name, count in names],
        )
    if len(starts) == 1:
        return starts[0]
    return lambda: Pending([start() for start in starts])


def _call(mesh: Mesh, message: Message, slot: Slot, members: Ranks) -> Start:
    """Post one message by the group's own method, without the checks of `torch.distributed`."""
    group = mesh.group(members, message.communicator)
    peer, tag = members.index(message.peer), message.tag
    if isinstance(message, Send | ISend):
        return lambda: group.send(slot, peer, tag)
    return lambda: group.recv(slot, peer, tag)


def _together(mesh: Mesh, groups: Sequence[tuple[dist.ProcessGroup, list[Start]]]) -> Start:
    """Post batches one after another, by the calls of `torch.distributed.batch_isend_irecv`."""

    def batches() -> Waitable:
        works = []
        for group, calls in groups:
            group._start_coalescing(mesh.device)
            for call in calls:
                call()
            works.append(group._end_coalescing(mesh.device))
        return Pending(works)

    return batches
