"""The mesh: the processes of one sequence, their groups, and what they have sent."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable
from copy import copy
from fractions import Fraction
from typing import Any

import torch
import torch.distributed as dist

from primepar.distributed.buffers import BufferPool
from primepar.errors import MeshError
from primepar.schedule import Movement, Sequence
from primepar.trace import Event

Ranks = tuple[int, ...]
SUM = dist.ReduceOp.SUM


class Traffic:
    """Elements and bytes that this rank has sent, by kind of work.

    A collective over g ranks counts as a ring: an all-reduce as `2 (g - 1) / g` elements per
    element, a gather or scatter as half of that.
    """

    def __init__(self) -> None:
        self.elements: dict[str, Fraction] = {}
        self.bytes: dict[str, Fraction] = {}

    def add(self, kind: str, elements: Fraction, itemsize: int) -> None:
        """Count elements of `itemsize` bytes each."""
        if elements:
            self.elements[kind] = self.elements.get(kind, Fraction(0)) + elements
            self.bytes[kind] = self.bytes.get(kind, Fraction(0)) + elements * itemsize

    def clear(self) -> None:
        """Start again from nothing."""
        self.elements.clear()
        self.bytes.clear()


def _key(sequence: Sequence) -> Hashable:
    return tuple((type(each.primitive), each.sides) for each in sequence.elements)


class _Trace:
    """Events of this rank since `origin`; None while nobody records."""

    def __init__(self) -> None:
        self.events: list[Event] | None = None
        self.origin = 0.0


class Mesh:
    """The processes that run `sequence`, one rank each, over an initialised torch.distributed.

    A sequence of one device needs no torch.distributed. Every process makes its mesh, and
    everything on it, in the same order. Raises `MeshError` if the world has another size.
    """

    def __init__(
        self,
        sequence: Sequence,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        world = dist.get_world_size() if dist.is_initialized() else 1
        if world != sequence.ranks:
            raise MeshError(
                f"sequence {str(sequence)!r}: expected {sequence.ranks} processes, got {world}: "
                f"start it with mpirun -n {sequence.ranks}"
            )
        self.sequence, self.ranks = sequence, sequence.ranks
        self.device, self.dtype = torch.device(device), dtype
        self.rank = dist.get_rank() if dist.is_initialized() else 0
        self.backend = str(dist.get_backend()) if dist.is_initialized() else ""
        self.movement = Movement(sequence)
        self.pool = BufferPool(self.device, dtype)
        self.wide_dtype = torch.float32 if dtype.itemsize < 4 else dtype
        self.wide_pool = (
            self.pool if self.wide_dtype == dtype else BufferPool(self.device, self.wide_dtype)
        )
        """Of sums and statistics."""
        self.host = BufferPool(torch.device("cpu"), dtype, pinned=self.device.type == "cuda")
        self.traffic = Traffic()
        self.compiled: dict[Hashable, Any] = {}
        self._trace = _Trace()
        self._groups: dict[tuple[str, Ranks], dist.ProcessGroup] = {}
        self._views = {_key(sequence): self}
        self.barrier()  # NCCL wants every rank in the first call of a communicator

    def under(self, sequence: Sequence) -> Mesh:
        """The same processes under another sequence; buffers, groups, traffic and trace are shared.

        Raises `MeshError` if that is for another number of devices.
        """
        if sequence.ranks != self.ranks:
            raise MeshError(
                f"sequence {str(sequence)!r}: expected one of {self.ranks} devices, "
                f"got {sequence.ranks}: give every operator a sequence for one mesh"
            )
        key = _key(sequence)
        if key not in self._views:
            view = self._views[key] = copy(self)
            view.sequence, view.movement, view.compiled = sequence, Movement(sequence), {}
        return self._views[key]

    @property
    def events(self) -> list[Event] | None:
        """What has been recorded since `start_trace`, None while nobody records."""
        return self._trace.events

    @property
    def origin(self) -> float:
        """When the recording began, on the clock of `time.perf_counter`."""
        return self._trace.origin

    def ensure_groups(self, wanted: Iterable[tuple[str, Ranks]]) -> None:
        """Make the process groups that are not there yet.

        A collective call: all ranks give the same (communicator, ranks) pairs in one order, those
        that they are no member of too.
        """
        for communicator, ranks in wanted:
            members = tuple(sorted(ranks))
            if len(members) > 1 and (communicator, members) not in self._groups:
                self._groups[communicator, members] = self._new_group(communicator, members)

    def _new_group(self, communicator: str, members: Ranks) -> dist.ProcessGroup:
        world = dist.group.WORLD
        if communicator == "world" and len(members) == self.ranks and world is not None:
            return world
        group: dist.ProcessGroup = dist.new_group(members)
        return group

    def group(self, ranks: Ranks, communicator: str = "world") -> dist.ProcessGroup:
        """The process group of these ranks, of whatever order; `ensure_groups` has made it."""
        return self._groups[communicator, tuple(sorted(ranks))]

    def world(self, communicator: str = "world") -> dist.ProcessGroup:
        """The group that the messages of a communicator go through."""
        return self.group(tuple(range(self.ranks)), communicator)

    def all_reduce(
        self, tensor: torch.Tensor, ranks: Ranks, kind: str, op: dist.ReduceOp.RedOpType = SUM
    ) -> torch.Tensor:
        """Reduce `tensor` in place over `ranks`, this one among them, and return it."""

        def work(group: dist.ProcessGroup) -> None:
            dist.all_reduce(tensor, op, group=group)

        self._collective("all_reduce", work, ranks, kind, tensor, 2 * tensor.numel())
        return tensor

    def all_gather(self, tensor: torch.Tensor, ranks: Ranks, kind: str) -> list[torch.Tensor]:
        """The tensors of all `ranks`, of one shape, in ascending order of rank."""
        if len(ranks) == 1:
            return [tensor]
        everyone = [torch.empty_like(tensor) for _ in ranks]

        def work(group: dist.ProcessGroup) -> None:
            dist.all_gather(everyone, tensor, group=group)

        self._collective("all_gather", work, ranks, kind, tensor, len(ranks) * tensor.numel())
        return everyone

    def reduce_scatter(self, parts: list[torch.Tensor], ranks: Ranks, kind: str) -> torch.Tensor:
        """This rank's part summed over `ranks`; there is a part for each, in ascending order."""
        if len(ranks) == 1:
            return parts[0]
        own = torch.empty_like(parts[0])

        def work(group: dist.ProcessGroup) -> None:
            dist.reduce_scatter(own, parts, group=group)

        self._collective("reduce_scatter", work, ranks, kind, own, len(ranks) * own.numel())
        return own

    def _collective(
        self,
        op: str,
        work: Callable[[dist.ProcessGroup], None],
        ranks: Ranks,
        kind: str,
        tensor: torch.Tensor,
        whole: int,
    ) -> None:
        """Do it, unless alone; a ring of g ranks sends (g - 1) / g of `whole` elements each."""
        members = len(ranks)
        if members == 1:
            return
        start = time.perf_counter()
        work(self.group(ranks))
        sent = Fraction((members - 1) * whole, members)
        self.traffic.add(kind, sent, tensor.element_size())
        if self.events is not None:
            self.synchronize()
            self.events.append(self._event(op, kind, start, round(sent)))

    def _event(self, op: str, kind: str, start: float, sent: int) -> Event:
        return Event(
            rank=self.rank,
            track="communication",
            op=op,
            block=kind,
            start=start - self.origin,
            end=time.perf_counter() - self.origin,
            elements=sent,
        )

    def barrier(self) -> None:
        """Wait for every rank."""
        if self.backend:
            dist.all_reduce(torch.zeros(1, device=self.device))
            self.synchronize()

    def synchronize(self) -> None:
        """Wait until the device has done what it was given."""
        if self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()

    def start_trace(self) -> None:
        """Record events from now on, all ranks from one moment; a collective call.

        Where the device is CUDA every product is waited for, so that its times mean something.
        """
        self.barrier()
        self._trace.events, self._trace.origin = [], time.perf_counter()

    def stop_trace(self) -> list[Event]:
        """Stop recording and return this rank's events, in seconds since `start_trace`."""
        events, self._trace.events = self._trace.events, None
        return events or []
