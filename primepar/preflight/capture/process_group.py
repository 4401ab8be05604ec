"""A process group of torch that communicates with nobody and records every call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import GroupName

from primepar.preflight.capture.collective_calls import CollectiveCalls, size_of, zero
from primepar.preflight.capture.communicator import Communicator, NamedBuffer, PostedMessage
from primepar.preflight.capture.source_lines import source_line
from primepar.preflight.capture.works import RecordedWork
from primepar.schedule.program import Barrier, Recv, Send

Tensors = Sequence[torch.Tensor]


class RecordedGroup(CollectiveCalls, dist.ProcessGroup):  # type: ignore[misc]
    """A group of a rank: torch calls its methods where a backend would communicate."""

    def __init__(self, communicator: Communicator) -> None:
        members = communicator.members
        place = members.index(communicator.rank)
        dist.ProcessGroup.__init__(self, place, len(members))  # type: ignore[call-arg]
        CollectiveCalls.__init__(self, communicator)

    def getBackendName(self) -> str:
        """The name that torch shows."""
        return "preflight"

    def size(self) -> int:
        """The number of members."""
        return len(self._members)

    def rank(self) -> int:
        """This rank's place among the members."""
        return self._place

    @property
    def group_name(self) -> GroupName:
        """The name in torch's table of groups."""
        return dist.distributed_c10d._world.pg_names[self]

    def send(self, tensors: Tensors, destination: int, tag: int = 0) -> RecordedWork:
        """Record a send."""
        return self._own.messages([self.sent(tensors[0], destination, tag)])

    def recv(self, tensors: Tensors, source: int, tag: int = 0) -> RecordedWork:
        """Record a receive."""
        return self._own.messages([self.received(tensors[0], source, tag)])

    def batch(self, messages: Sequence[PostedMessage]) -> RecordedWork:
        """Record messages that start together."""
        return self._own.messages(messages, batch=True)

    def sent(self, tensor: torch.Tensor, destination: int, tag: int) -> PostedMessage:
        """A send of a batch."""
        buffer = NamedBuffer(tensor, self._recorder.reading(tensor))
        return PostedMessage(Send(**self._message(buffer, destination, tag)), buffer)

    def received(self, tensor: torch.Tensor, source: int, tag: int) -> PostedMessage:
        """A receive of a batch."""
        zero(tensor)
        buffer = NamedBuffer(tensor, self._recorder.naming(tensor))
        return PostedMessage(Recv(**self._message(buffer, source, tag)), buffer)

    def _message(self, buffer: NamedBuffer, place: int, tag: int) -> dict[str, Any]:
        return {
            "peer": self._members[place], "block": buffer.block, "tag": tag,
            "communicator": self._own.name, "source": source_line() or None,
            **size_of(buffer.tensor),
        }  # fmt: skip

    def recv_anysource(self, tensors: Tensors, tag: int = 0) -> RecordedWork:
        """Record a receive from rank 0 with a gap: any rank may send."""
        self._recorder.gap("receives from any rank")
        return self.recv(tensors, 0, tag)

    def barrier(self, opts: Any = None) -> RecordedWork:
        """Record a barrier."""
        return self._own.call(lambda request: Barrier(**self.shared(request)))

    def monitored_barrier(self, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        """Record a barrier."""
        self.barrier().wait()
