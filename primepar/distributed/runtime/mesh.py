"""The mesh: the processes of one sequence, and their process groups."""

from __future__ import annotations

import time
from collections.abc import Collection, Hashable, Iterable, Mapping
from copy import copy
from datetime import timedelta
from hashlib import sha256
from types import MappingProxyType
from typing import Any

import torch
import torch.distributed as dist

from primepar.distributed.runtime.backend_support import check_device
from primepar.distributed.runtime.host_memory import HostMemory
from primepar.distributed.runtime.running import Running
from primepar.errors import MeshError
from primepar.schedule import Movement, Sequence
from primepar.schedule.events import Event

Ranks = tuple[int, ...]


class Mesh:
    """The processes that run `sequence`, one rank each, over an initialised torch.distributed.

    A sequence of one device needs no torch.distributed. Every process constructs its mesh, and all
    objects on it, in the same order. Several `replicas` of a mesh share the world: each has the
    next processes, with ranks of its own from 0, and its messages stay inside. With `device_memory`
    programs raise `MemoryLimitError` if their blocks take more bytes on the device. Raises
    `MeshError` if the world has another size, or its backend does not send from this device.
    """

    def __init__(
        self,
        sequence: Sequence,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        device_memory: int | None = None,
        replicas: int = 1,
    ) -> None:
        world, needed = dist.get_world_size() if dist.is_initialized() else 1, sequence.ranks
        needed *= replicas
        if world != needed:
            raise MeshError(
                f"sequence {str(sequence)!r}: expected {needed} processes, got {world}: "
                f"start it with mpirun -n {needed}"
            )
        self.sequence, self.ranks, self.replicas = sequence, sequence.ranks, replicas
        self.device, self.dtype = torch.device(device), dtype
        rank = dist.get_rank() if dist.is_initialized() else 0
        self.replica, self.rank = divmod(rank, self.ranks)
        self.first = self.replica * self.ranks
        """The process that has rank 0 of this replica."""
        self.backend = backend_of(self.device.type) if dist.is_initialized() else ""
        """The backend that sends from this device."""
        check_device(self.backend, self.device.type)
        self.is_ordered = _is_ordered(self.device)
        """Whether the backend has NCCL's rules: a communicator runs its operations one after
        another in the order of the posts, and messages that start together are a batch."""
        self.movement = Movement(sequence)
        self.limit = None if device_memory is None else device_memory // dtype.itemsize
        """Elements that blocks may take on the device; None is no limit."""
        self.wide_dtype = torch.float32 if dtype.itemsize < 4 else dtype
        """The dtype of sums and statistics."""
        self.host = HostMemory(self.device)
        self.compiled: dict[Hashable, Any] = {}
        self.events: list[Event] | None = None
        """Events since `start_trace`, None when nothing is recorded."""
        self.origin = 0.0
        """Start of the recording, on the clock of `time.perf_counter`."""
        self.running: Running | None = None
        """The list that was started last."""
        self._groups: dict[tuple[str, Ranks], dist.ProcessGroup] = {}
        self._connected: dict[tuple[str, Ranks], set[int]] = {}
        """Communicator and its members -> the ranks that NCCL has connected with this one."""
        self.collectives = set[tuple[str, Ranks, str]]()
        """Communicator, members and kind of collectives that have run once."""
        self._others: dict[torch.dtype, Mesh] = {}
        """This mesh in other dtypes."""
        self.barrier()  # NCCL needs every rank in the first call of a communicator

    def in_dtype(self, dtype: torch.dtype) -> Mesh:
        """Return this mesh for blocks of another dtype: the same processes, groups and memory."""
        if dtype == self.dtype:
            return self
        if dtype not in self._others:
            other = self._others[dtype] = copy(self)
            other.dtype, other.compiled = dtype, {}
            other.wide_dtype = torch.float32 if dtype.itemsize < 4 else dtype
        return self._others[dtype]

    def ensure_groups(
        self,
        wanted: Iterable[tuple[str, Ranks]],
        peers: Mapping[str, Collection[int]] = MappingProxyType({}),
    ) -> None:
        """Create the process groups that do not exist yet, with their connections.

        A collective call: all ranks give the same (communicator, ranks) pairs in the same order,
        including groups that they are not a member of. `peers` are the ranks with which this rank
        has messages on each communicator.
        """
        for communicator, ranks in wanted:
            members = tuple(sorted(ranks))
            if len(members) == 1:
                continue
            if (communicator, members) not in self._groups:
                self.synchronize()  # NCCL splits no communicator while its work is outstanding
                self._groups[communicator, members] = self._new_group(communicator, members)
                self._connected[communicator, members] = set()
                if self.is_ordered and self.rank in members:
                    # NCCL makes a communicator in its first call, and needs all members there.
                    dist.all_reduce(
                        torch.zeros(1, device=self.device), group=self.group(members, communicator)
                    )
            if self.is_ordered and self.rank in members:
                self._connect(communicator, members, peers.get(communicator, ()))

    def _connect(self, communicator: str, members: Ranks, peers: Collection[int]) -> None:
        """Send to and receive from each new peer, in one batch.

        NCCL makes the connection of two ranks in their first batch, and holds up the host until
        both are there. Ranks 0 and 1 would never return if 0 first sends to 1 on one communicator
        while 1 first sends to 0 on another.
        """
        connected = self._connected[communicator, members]
        new = sorted({peer for peer in peers if peer in members} - connected)
        if not new:
            return
        connected.update(new)
        group, given = self.group(members, communicator), torch.zeros(1, device=self.device)
        taken = [torch.empty_like(given) for _ in new]
        group._start_coalescing(self.device)
        for peer, into in zip(new, taken, strict=True):
            group.send([given], members.index(peer), 0)
            group.recv([into], members.index(peer), 0)
        group._end_coalescing(self.device).wait()
        self.synchronize()

    def _new_group(self, communicator: str, members: Ranks) -> dist.ProcessGroup:
        world = dist.group.WORLD
        everyone = len(members) == self.ranks * self.replicas
        if communicator == "world" and everyone and world is not None:
            return world
        firsts = [replica * self.ranks for replica in range(self.replicas)]
        timeout = None if world is None else _timeout_of(world, self.device)
        groups = [
            dist.new_group([first + rank for rank in members], timeout=timeout) for first in firsts
        ]
        group: dist.ProcessGroup = groups[self.replica]
        return group

    def group(self, ranks: Ranks, communicator: str = "world") -> dist.ProcessGroup:
        """Return the process group of these ranks, in any order; `ensure_groups` created it."""
        return self._groups[communicator, tuple(sorted(ranks))]

    def barrier(self) -> None:
        """Wait for every rank."""
        if self.backend:
            dist.all_reduce(torch.zeros(1, device=self.device))
            self.synchronize()

    def broadcast(self, content: bytes | None) -> bytes:
        """Return the content of the first process on all others of the world, which pass None."""
        given = [content]
        dist.broadcast_object_list(given, device=self.device)
        return given[0] or b""

    def check_alike(self, content: bytes, what: str) -> None:
        """Raise `MeshError` on all ranks if a rank has another content than rank 0."""
        if not self.backend:
            return
        # Torch's `all_gather_object` takes the current GPU, which need not be the mesh's.
        digest = torch.frombuffer(bytearray(sha256(content).digest()), dtype=torch.uint8)
        digest = digest.to(self.device)
        everyone = [torch.empty_like(digest) for _ in range(dist.get_world_size())]
        dist.all_gather(everyone, digest)
        others = [str(rank) for rank, given in enumerate(everyone) if not given.equal(everyone[0])]
        if others:
            raise MeshError(
                f"rank {', '.join(others)}: expected the {what} of rank 0, got another: "
                "give every rank the same"
            )

    def synchronize(self) -> None:
        """Wait until the device has finished its queued work."""
        if self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()

    def start_trace(self) -> None:
        """Start to record events on all ranks together; a collective call.

        On CUDA the recorder waits for every product, so that its times are those of the device.
        """
        self.barrier()
        self.events, self.origin = [], time.perf_counter()

    def stop_trace(self) -> list[Event]:
        """Stop recording and return this rank's events, in seconds since `start_trace`."""
        events, self.events = self.events, None
        return events or []


def backend_of(kind: str) -> str:
    """Return the backend for one kind of device: a world may have several, `cpu:gloo,cuda:nccl`."""
    pairs = (pair.partition(":") for pair in dist.get_backend_config().split(","))
    by_kind = {device: backend for device, _, backend in pairs}
    return by_kind.get(kind, str(dist.get_backend()))


def _timeout_of(world: dist.ProcessGroup, device: torch.device) -> timedelta | None:
    """Return how long calls of the world may take; None, torch's default, for one without options.

    gloo and NCCL have options; MPI and backends in Python need not have them.
    """
    try:
        timeout: timedelta = world._get_backend(device).options._timeout
    except (AttributeError, RuntimeError):
        return None
    return timeout


def _is_ordered(device: torch.device) -> bool:
    """Return what torch itself asks before it batches: NCCL can be one of several backends."""
    world = dist.group.WORLD if dist.is_initialized() else None
    return world is not None and bool(world._get_backend(device).supports_coalescing)
