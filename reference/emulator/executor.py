"""The emulator: runs every instruction of a program, on devices without shared memory.

One thread runs all ranks: a rank runs until it blocks, then the next one runs. Messages are
rendezvous. A round in which no rank does anything is a deadlock. Each device has a logical clock. A
product takes one unit; a transfer takes one unit from the later of its two posts, unless another
clock is given. So the events show which work overlaps. Example: two ranks post isend and irecv at
time 0, multiply until 1, and wait. The messages were done at 1, and the waits take no time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Sequence as Several
from dataclasses import dataclass, field
from fractions import Fraction
from math import ceil
from typing import NamedTuple

import numpy as np

from primepar.errors import (
    EmulationError,
    MeshError,
    MismatchError,
    MissingBlockError,
    WrongDataError,
)
from primepar.reference.emulator.arithmetic import Arithmetic, Kernels
from primepar.reference.emulator.communication import InFlight, Posted
from primepar.reference.emulator.contents import Array, Block, Contents
from primepar.reference.emulator.device import EmulatedDevice
from primepar.reference.emulator.postconditions import (
    Computed,
    ErrorPlaces,
    Waiting,
    check_coverage,
    check_final,
)
from primepar.reference.emulator.tensors import Memory
from primepar.schedule.effects import effects, host_blocks, initial_blocks
from primepar.schedule.events import Event
from primepar.schedule.meaning import Phase, Place
from primepar.schedule.program import (
    Alloc,
    Collective,
    Compute,
    Cut,
    Evict,
    Fetch,
    Free,
    Group,
    Instruction,
    Join,
    Message,
    Program,
    Wait,
)
from primepar.schedule.sequence import Sequence


@dataclass(frozen=True)
class LogicalClock:
    """Units of time of a run; by default every product and every transfer takes one.

    `phases` has the units of phases by the last word of their names: `{"gradient": 2}` is for
    `layer3.gradient` too. `transfer` is what a message takes after both ends are posted, and a copy
    between a device and its host.
    """

    transfer: float = 1.0
    phases: Mapping[str, float] = field(default_factory=dict)

    def units(self, phase: str) -> float:
        """Return the units that a sub-operator of a phase takes."""
        return self.phases.get(phase.rpartition(".")[2], 1.0)


class Finished(NamedTuple):
    """A finished block of a tensor that a phase makes, with the rank that held it."""

    rank: int
    home: Place
    array: Array


@dataclass(frozen=True)
class Emulation:
    """Result of a run: blocks with their provenance, events, and two counts per rank."""

    blocks: list[dict[str, Block]]
    hosts: list[dict[str, Block]]
    """Blocks in host memory at the end."""
    events: list[Event]
    """In order of their start; times are units of the logical clock."""
    sent: list[Fraction]
    """Elements that each rank sent; `schedule.ledger` defines those of a collective."""
    devices: list[EmulatedDevice]
    """With the elements that each one held after every instruction."""
    finished: list[Finished]
    """Finished blocks of the tensors that the program makes: read by a phase, freed, or final."""

    @property
    def peak(self) -> list[int]:
        """Largest number of live elements on each rank, including buffers of posted receives."""
        return [device.peak for device in self.devices]

    def held(self, item: int, wide_item: int) -> list[int]:
        """Largest number of live bytes on each rank, by the bytes of an element.

        An element of a wide tensor has `wide_item`: float32 at least.
        """
        return [device.peak_bytes(item, wide_item) for device in self.devices]

    @property
    def memories(self) -> list[Memory]:
        """Block name -> array, for every rank."""
        return [{name: block.array for name, block in held.items()} for held in self.blocks]

    @property
    def all_memories(self) -> list[Memory]:
        """The same with the blocks in host memory."""
        pairs = zip(self.blocks, self.hosts, strict=True)
        return [
            {name: block.array for name, block in (*host.items(), *held.items())}
            for held, host in pairs
        ]


Turn = Iterator[tuple[tuple[int, ...], str]]
"""Yields the ranks that an instruction waits for, and the reason, until it can continue."""


def emulate(
    program: Program,
    memories: Several[Mapping[str, Array]],
    sequence: Sequence | None = None,
    *,
    kernels: Kernels | None = None,
    clock: LogicalClock | None = None,
) -> Emulation:
    """Run a program; `memories[rank]` maps the names of its initial blocks to arrays.

    Other blocks of `memories` are ignored. With `kernels`, as those of a training step, phases are
    computed on real numbers; tokens and targets are integers. Without them, the arrays of a program
    with signatures or scales are integers modulo `emulator.surrogate.PRIME`, before and after the
    run. With the sequence that the program was lowered from, messages name the method, the device's
    coordinates and the step. With a `clock`, events have its units.
    Raises a subclass of `EmulationError` at the instruction where an error is observed,
    `IncompleteError` if the run does not end with `final` or does not cover the grid, and
    `ProgramError` for a phase without a kernel.
    """
    return _Run(program, memories, sequence, kernels, clock).emulation()


def _chosen(rank: int, memory: Mapping[str, Array], names: Several[str]) -> Memory:
    """Return the named blocks of one rank's memory. Raises `MissingBlockError`."""
    for name in names:
        if name not in memory:
            raise MissingBlockError(f"memories[{rank}]: expected an array for {name}, got none")
    return {name: np.asarray(memory[name]) for name in names}


class _Run:
    def __init__(
        self,
        program: Program,
        memories: Several[Mapping[str, Array]],
        sequence: Sequence | None,
        kernels: Kernels | None,
        clock: LogicalClock | None,
    ) -> None:
        if len(memories) != program.ranks:
            raise MeshError(
                f"expected one memory for each of {program.ranks} ranks, got {len(memories)}"
            )
        self.contents = Contents(program)
        self.arithmetic = Arithmetic(self.contents, kernels)
        self.dtype = self.arithmetic.dtype(memories)
        names = zip(initial_blocks(program), host_blocks(program), memories, strict=True)
        self.devices = [
            EmulatedDevice(
                rank, self.contents, _chosen(rank, memory, initial), _chosen(rank, memory, host)
            )
            for rank, (initial, host, memory) in enumerate(names)
        ]
        self.program = program
        self.places = ErrorPlaces(sequence)
        self.clock = clock or LogicalClock()
        self.in_flight = InFlight(
            self.arithmetic.combine, self.clock.transfer, self.contents.meaning.elements
        )
        self.requests: list[dict[str, list[Posted]]] = [{} for _ in self.devices]
        self.sent = [Fraction(0)] * program.ranks
        self.events: list[Event] = []
        self.computed: Computed = {}
        self.finished: dict[tuple[Place, int], Finished] = {}
        self.used = set[Place]()
        """What a compute, a cut or a join has read when it was finished."""
        self.moves = 0
        self.doubted: WrongDataError | None = None
        """The first doubt with its place: where a run fails, it failed there."""

    def emulation(self) -> Emulation:
        try:
            self._schedule()
            check_coverage(self.contents, self.computed, self.places)
            memories = [device.memories() for device in self.devices]
            blocks, hosts = [here for here, _ in memories], [host for _, host in memories]
            check_final(self.contents, blocks, hosts, self.used, self.places)
        except EmulationError as error:
            raise self.doubted or error from None
        for rank, (here, host) in enumerate(memories):
            self._see(rank, (*here.values(), *host.values()))
        self.events.sort(key=lambda event: (event.start, event.rank, event.end))
        return Emulation(
            blocks, hosts, self.events, self.sent, list(self.devices),
            list(self.finished.values()),
        )  # fmt: skip

    def _schedule(self) -> None:
        """Run the ranks in turn until all have finished; a round without progress is a deadlock."""
        running = {device.rank: self._rank(device) for device in self.devices}
        while running:
            # An instruction begun or a message posted is a move. A round without one is a deadlock:
            # ranks wait only for what others post, so no later round could differ.
            before, waiting = self.moves, {}
            for rank, turn in list(running.items()):
                wait = next(turn, None)
                if wait is None:
                    del running[rank]
                    self.moves += 1
                else:
                    waiting[rank] = wait
            if self.moves == before:
                raise self.places.deadlock(waiting)

    def _rank(self, device: EmulatedDevice) -> Iterator[Waiting]:
        """Run one rank, and yield while it waits; every error gets its place here."""
        # A generator for each rank: it runs until it has to wait, and goes on where it stopped. So
        # no thread is needed, and no order of threads can decide anything.
        for place, instruction in enumerate(self.program.programs[device.rank]):
            self.moves += 1
            try:
                for ranks, what in self._execute(device, place, instruction):
                    self._note_place_of_doubt(device.rank, place, instruction)
                    yield Waiting(place, ranks, what)
            except EmulationError as error:
                text = self.places.of(device.rank, place, instruction)
                raise type(error)(f"{text}: {error}") from None
            finally:
                self._note_place_of_doubt(device.rank, place, instruction)
        for request, posts in self.requests[device.rank].items():
            is_open = any(post.done is None for post in posts)
            verb = "matched" if is_open else "waited for"
            raise MismatchError(
                f"{self.places.device(device.rank)}: expected request {request!r} to be waited "
                f"for, got the end of the program with it never {verb}: add a wait"
            )

    def _note_place_of_doubt(self, rank: int, place: int, instruction: Instruction) -> None:
        if self.contents.doubt and self.doubted is None:
            text = self.places.of(rank, place, instruction)
            self.doubted = WrongDataError(f"{text}: {self.contents.doubt}")

    def _execute(self, device: EmulatedDevice, place: int, instruction: Instruction) -> Turn:
        """Run one instruction; yield the ranks that it waits for until it can continue."""
        match instruction:
            case Compute():
                self._compute(device, place, instruction)
            case Cut() | Join():
                self._cut_or_join(device, instruction)
            case Alloc() | Free() | Fetch() | Evict():
                self._memory(device, instruction)
            case Wait():
                yield from self._wait(device, instruction)
            case _:
                yield from self._communicate(device, instruction)

    # Products and sums

    def _compute(self, device: EmulatedDevice, place: int, node: Compute) -> None:
        read = device.read if node.phase is not None else device.read_any
        blocks = [read(name) for name in node.reads]
        start = device.clock
        # Without a phase it adds blocks, by the reduction of the phase that makes their tensor: of
        # maxima `m += m'` is the larger of both.
        if node.phase is not None:
            maker: Phase | None = self.contents.meaning.phases[node.phase]
        else:
            home = self.contents.home(node.accumulates)
            maker = None if home is None else self.contents.maker(home)
        reduction = "sum" if maker is None else maker.reduction
        if node.phase is None or node.sub_operator is None:
            added = self.arithmetic.combine(blocks, reduction, node.scale_value)
            self._use(blocks)
        else:
            added = self.arithmetic.product(node, blocks)
            self._see(device.rank, blocks)
            self._use(blocks)
            grid = (self.program.grid or {}).get(node.phase, {})
            term = node.phase, tuple(node.sub_operator[dim] for dim in grid)
            # What is recomputed is the same sub-operator, which the grid asks for once.
            if not node.again:
                self.computed.setdefault(term, []).append((device.rank, place))
            device.clock += self.clock.units(node.phase)
        if device.holds(node.accumulates):
            added = self.arithmetic.combine([device.read_any(node.accumulates), added], reduction)
        device.write(node.accumulates, added)
        self._note(device, node, node.accumulates, start)

    def _cut_or_join(self, device: EmulatedDevice, node: Cut | Join) -> None:
        whole, parts = (node.block,), node.blocks
        before, after = (whole, parts) if isinstance(node, Cut) else (parts, whole)
        blocks = [device.read(name) for name in before]
        self._use(blocks)
        if isinstance(node, Cut):
            made = self.arithmetic.cut(node, blocks[0])
        else:
            made = [self.arithmetic.join(node, blocks)]
        if node.in_place:
            self._see(device.rank, [device.free(name) for name in before])
        for name, block in zip(after, made, strict=True):
            device.write(name, block)
        self._note(device, node, node.block, device.clock)

    def _see(self, rank: int, blocks: Iterable[Block]) -> None:
        """Store finished blocks, which are compared with one device after the run."""
        for block in blocks:
            if self.contents.is_finished(block):
                (home,) = block.homes
                finished = Finished(rank, home, block.array)
                self.finished.setdefault((home, id(block.array)), finished)

    def _use(self, blocks: Iterable[Block]) -> None:
        for block in blocks:
            if not block.homes <= self.used and self.contents.is_finished(block):
                self.used |= block.homes

    # Messages and collectives

    def _communicate(self, device: EmulatedDevice, node: Message | Collective | Group) -> Turn:
        """Start messages or a collective; without a request, return when all are done."""
        requests, request = self.requests[device.rank], getattr(node, "request", None)
        if request in requests:
            raise MismatchError(
                f"expected a request that is not in use, got {request!r} again: "
                "wait for it first, or give this one another name"
            )
        posts = []
        for part in node.body if isinstance(node, Group) else (node,):
            self.moves += 1
            posts.append(self.in_flight.post(device, part))
        if request is not None:
            requests[request] = posts
            return
        yield from self._until_done(posts)
        for pending in posts:
            self._finish(device, pending)

    def _wait(self, device: EmulatedDevice, node: Wait) -> Turn:
        posts = self.requests[device.rank].get(node.request)
        if posts is None:
            raise MismatchError(
                f"expected a wait for a posted request, got {node.request!r}, which is not: "
                "post an isend or irecv with this request first"
            )
        yield from self._until_done(posts)
        start = device.clock
        del self.requests[device.rank][node.request]
        block = " ".join([self._finish(device, pending) for pending in posts])
        self._note(device, node, block, start)

    @staticmethod
    def _until_done(posts: Several[Posted]) -> Turn:
        for pending in posts:
            while pending.done is None:
                yield pending.waits_for, str(pending)

    def _finish(self, device: EmulatedDevice, pending: Posted) -> str:
        """End a message or collective: its blocks, whose names are returned, may be used again."""
        end = self.in_flight.end(device, pending)
        device.clock = max(device.clock, end.done)
        self.sent[device.rank] += end.sent
        self._note(device, pending.node, end.block, pending.time, end.done, ceil(end.sent))
        return end.block

    # Memory

    def _memory(self, device: EmulatedDevice, node: Alloc | Free | Fetch | Evict) -> None:
        start = device.clock
        match node:
            case Alloc(block=block):
                device.write(block, self.arithmetic.zeros(block, self.dtype))
            case Free(block=block):
                self._see(device.rank, [device.free(block)])
            case Fetch(block=block):
                device.fetch(block)
                device.clock += self.clock.transfer
            case Evict(block=block):
                device.evict(block)
                device.clock += self.clock.transfer
        self._note(device, node, node.block, start)

    def _note(
        self,
        device: EmulatedDevice,
        node: Instruction,
        block: str,
        start: float,
        end: float | None = None,
        elements: int = 0,
    ) -> None:
        """Store the event of one instruction; it ends now unless `end` is given."""
        computes = isinstance(node, Compute | Alloc | Free | Cut | Join)
        self.events.append(
            Event(
                rank=device.rank,
                track="compute" if computes else "communication",
                op=str(node.__struct_config__.tag),
                block=block,
                start=start,
                end=device.clock if end is None else end,
                phase=getattr(node, "phase", None) or "",
                peer=getattr(node, "peer", None),
                elements=elements,
                sub_operator=dict(getattr(node, "sub_operator", None) or {}),
                reads=effects(node, device.rank).reads,
                group=getattr(node, "group", ()),
            )
        )
