"""A process group of torch that communicates with nobody and records every call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import GroupName

from primepar.preflight.capture.collective_calls import CollectiveCalls, size_of, zero
from primepar.preflight.capture.communicator import Communicator
from primepar.preflight.capture.works import RecordedWork
from primepar.schedule.program import Barrier, IRecv, ISend

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
        peer, block = self._members[destination], self._recorder.reading(tensors[0])
        return self._own.message(
            lambda request: ISend(
                peer=peer, block=block, tag=tag, communicator=self._own.name, request=request,
                **size_of(tensors[0]),
            ),
            tensors[0], block, peer, sends=True,
        )  # fmt: skip

    def recv(self, tensors: Tensors, source: int, tag: int = 0) -> RecordedWork:
        """Record a receive."""
        peer, block = self._members[source], self._recorder.naming(tensors[0])
        zero(tensors[0])
        return self._own.message(
            lambda request: IRecv(
                peer=peer, block=block, tag=tag, communicator=self._own.name, request=request,
                **size_of(tensors[0]),
            ),
            tensors[0], block, peer, sends=False,
        )  # fmt: skip

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
