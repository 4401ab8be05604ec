"""Finds races in one rank's compiled list: what CUDA's streams may do, by addresses of memory.

The list runs here on a CPU and alone: communicators and copies to host memory only note what they
are given. What computes is one stream, each communicator is one, and the copies are one. An
operation of another stream begins after what was computed before its post, and after the one before
it on its stream. It ends at a wait for it, or for a later one of its stream. Until then it is in
flight: nothing else may write the bytes that it reads, or touch those that it writes. These are the
answers of vector clocks, as all order between streams comes by the one that computes.

Reads and writes are those of torch's operators, by their schemas: no table of the compiler is
believed. Memory in flight is kept, as by NCCL's process group and `record_stream`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

from primepar.distributed import Mesh
from primepar.distributed.runtime import executor
from primepar.distributed.runtime.host_memory import CopyStream
from primepar.distributed.runtime.memory import Buffer
from primepar.distributed.runtime.running import Action, CompiledStep, Running
from primepar.operators import StepInputs, StepSettings
from primepar.partition import parse_sequence
from primepar.schedule import Program

Bytes = tuple[int, int]
COPIES = "copies"
DATA = ("tokens", "targets")


def extent(tensor: torch.Tensor) -> Bytes:
    """The addresses from its first element to its last one."""
    if not tensor.numel():
        return 0, 0
    last = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + (last + 1) * tensor.element_size()


def meets(some: list[Bytes], others: list[Bytes]) -> bool:
    """Whether ranges of two lists have a byte in common."""
    return any(a[0] < b[1] and b[0] < a[1] for a in some for b in others)


class Access:
    """What an operation reads and writes; it keeps the tensors."""

    def __init__(self, reads: list[torch.Tensor], writes: list[torch.Tensor]) -> None:
        self._kept = reads, writes
        self.reads, self.writes = list(map(extent, reads)), list(map(extent, writes))

    def races(self, other: Access) -> bool:
        """Whether one writes what the other one touches."""
        touched = meets(self.writes, other.reads) or meets(self.reads, other.writes)
        return touched or meets(self.writes, other.writes)


@dataclass(eq=False)
class Flight:
    """What was posted together on a stream, in the instruction at a place of the list."""

    run: RaceRun
    stream: str
    place: int
    parts: list[Access]
    waited: bool = False

    def __str__(self) -> str:
        return f"instruction {self.place} on {self.stream}"

    def wait(self) -> None:
        """End it, and what its stream has before it."""
        self.waited, flying = True, self.run.flying
        if self in flying:
            ended = [one for one in flying if one.stream == self.stream]
            ended = ended[: ended.index(self) + 1]
            self.run.flying = [one for one in flying if one not in ended]


class Communicator:
    """A process group that notes its operations; blocks are received as zeros."""

    def __init__(self, run: RaceRun, name: str, rank: int) -> None:
        self._run, self._name, self._rank = run, name, rank
        self._batch: list[Access] = []

    def _start_coalescing(self, device: object) -> None:
        self._batch = []

    def _end_coalescing(self, device: object) -> Flight:
        return self._run.post(self._name, self._batch)

    def send(self, slot: list[torch.Tensor], peer: int, tag: int) -> None:
        self._batch.append(Access([*slot], []))

    def recv(self, slot: list[torch.Tensor], peer: int, tag: int) -> None:
        with _disable_current_modes():
            slot[0].zero_()
        self._batch.append(Access([], [*slot]))

    def broadcast(self, slot: list[torch.Tensor], options: Any) -> Flight:
        gives = options.rootRank == self._rank
        return self._run.post(self._name, [Access([*slot], []) if gives else Access([], [*slot])])

    def __getattr__(self, collective: str) -> Callable[..., Flight]:
        def call(*operands: Any) -> Flight:
            tensors = [leaf for leaf in tree_leaves(operands) if isinstance(leaf, torch.Tensor)]
            return self._run.post(self._name, [Access(tensors[-1:], tensors[:1])])

        return call


class NotedCopies(CopyStream):
    """The stream of copies to and from host memory."""

    def __init__(self, run: RaceRun) -> None:
        self._run = run

    def copy(self, into: torch.Tensor, source: torch.Tensor) -> Any:
        with _disable_current_modes():
            into.copy_(source)
        return self._run.post(COPIES, [Access([source], [into])])

    def wait(self, copied: Any) -> None:
        copied.wait()

    def finish(self) -> None:
        for copy in [one for one in self._run.posted if one.stream == COPIES]:
            copy.wait()


class RaceRun(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The compiled list of a rank, of a program whose posts are where NCCL needs them."""

    def __init__(self, program: Program, rank: int, settings: StepSettings | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.flying: list[Flight] = []
        self.posted: list[Flight] = []
        self._faults: list[str] = []
        self._place = 0
        groups: dict[tuple[str, tuple[int, ...]], Communicator] = {}

        def group(ranks: tuple[int, ...], communicator: str = "world") -> Communicator:
            members = tuple(sorted(ranks))
            stream = f"{communicator} of {', '.join(map(str, members))}"
            made = Communicator(self, stream, members.index(rank))
            return groups.setdefault((communicator, members), made)

        mesh: Any = Mesh(parse_sequence(""), dtype=torch.float64)
        mesh.ranks, mesh.rank, mesh.is_ordered, mesh.group = program.ranks, rank, True, group
        mesh.ensure_groups = lambda *given: None
        mesh.host.copies = NotedCopies(self)
        unchanged = patch.multiple(executor, in_one_queue=lambda x: x, check_order=lambda x: None)
        with unchanged:
            self.list = executor.Executor(mesh, program, settings)
        self.list.precede(self._at)
        self.live: dict[Buffer, list[Any]] = {}
        """Buffer of the list -> a slot of its memory, with the addresses."""
        for buffer in self.list._buffers:
            self.live[buffer] = buffer.attach([None], self._bound(buffer))

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else every operator goes by torch._dynamo, whose import takes 4 s

    def faults(self, steps: Sequence[CompiledStep] | None = None) -> list[str]:
        """What is wrong in a run of the list, or of one that was made of it."""
        self.flying, self.posted, self._faults = [], [], []
        mesh = self.list.mesh
        self.list._running = Running(steps or self.list.steps, mesh.rank, mesh.first)
        here, there = map(self._blocks, (self.list.initial, self.list.host_initial))
        try:
            with self:
                self.list(here, StepInputs(rate=0.1), there)
        except RuntimeError as error:  # torch refuses some operands that share memory
            self._faults.append(f"instruction {self._place}: {error}")
        left = [flight for flight in self.posted if not flight.waited]
        return [*self._faults, *(f"{flight} is never waited for" for flight in left)]

    def _blocks(self, names: Iterable[str]) -> dict[str, torch.Tensor]:
        shape = self.list.shapes.shape
        return {
            name: torch.zeros(shape(name), dtype=torch.long)
            if name.startswith(DATA)
            else torch.full(shape(name), 0.5, dtype=torch.float64)
            for name in names
        }

    def post(self, stream: str, parts: list[Access]) -> Flight:
        """Begin an operation. The messages of a batch run side by side."""
        flight = Flight(self, stream, self._place, parts)
        others = [one for one in self.flying if one.stream != stream]
        for place, part in enumerate(parts):
            self._check(part, [*others, replace(flight, parts=parts[:place])])
        self.flying.append(flight)
        self.posted.append(flight)
        return flight

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        made, schema = func(*args, **(kwargs or {})), func._schema
        is_view = any(out.alias_info and not out.alias_info.is_write for out in schema.returns)
        if self.flying and not is_view:
            named = dict(zip((given.name for given in schema.arguments), args, strict=False))
            values = {**named, **(kwargs or {})}
            writes = [x.name for x in schema.arguments if x.alias_info and x.alias_info.is_write]
            parts: tuple[list[torch.Tensor], list[torch.Tensor]] = [], []
            for name, value in values.items():
                leaves = (leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor))
                parts[name in writes].extend(leaves)
            self._check(Access(*parts), self.flying)
        return made

    def _check(self, access: Access, flying: list[Flight]) -> None:
        for flight in flying:
            if any(access.races(part) for part in flight.parts):
                self._faults.append(f"instruction {self._place} races with {flight}")

    def _bound(self, buffer: Buffer) -> Callable[[torch.Tensor], Any]:
        """Look whether the memory that a buffer gets is that of another one."""

        def check(memory: torch.Tensor) -> tuple[torch.Tensor, Bytes]:
            mine, others = extent(memory), (slot[0] for slot in self.live.values())
            if meets([mine], [other[1] for other in others if other is not None]):
                self._faults.append(f"instruction {self._place} gets memory that is in use")
            return memory, mine

        return check

    def _at(self, place: int) -> Action:
        return lambda frame: setattr(self, "_place", place)
