"""The emulator: runs every instruction of a program, on devices without shared memory.

One thread runs all ranks: a rank runs until it blocks, then the next one runs. Messages are
rendezvous. Each device has a logical clock. A product takes one unit; a transfer takes one unit
from the later of its two posts, unless another clock is given. So the events show which work
overlaps.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Sequence as Several
from fractions import Fraction
from functools import partial
from math import ceil

from primepar.errors import EmulationError, MeshError, MismatchError
from primepar.operators import StepInputs, StepSettings
from primepar.reference.emulator.arithmetic import Arithmetic
from primepar.reference.emulator.device import EmulatedDevice
from primepar.reference.emulator.emulation import Emulation, Finished
from primepar.reference.emulator.error_places import ErrorPlaces, Waiting
from primepar.reference.emulator.expected_contents import Contents
from primepar.reference.emulator.in_flight import CollectiveCall, InFlight
from primepar.reference.emulator.logical_clock import LogicalClock
from primepar.reference.emulator.messages import PostedMessage
from primepar.reference.emulator.postconditions import Computed, check_coverage, check_final
from primepar.reference.emulator.products import product, zeros
from primepar.reference.emulator.provenance import Array, Block
from primepar.reference.emulator.reductions import combine, cut, join
from primepar.reference.emulator.scatter_gather import chosen
from primepar.schedule.effects import host_blocks, initial_blocks
from primepar.schedule.events import Event
from primepar.schedule.meaning import Place
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
    IRecv,
    ISend,
    Join,
    Message,
    Program,
    Recv,
    Send,
    Wait,
)
from primepar.schedule.sequence import Sequence
from primepar.schedule.signature import Reduction

Turn = Iterator[tuple[tuple[int, ...], str]]
"""Yields the ranks that an instruction waits for, and the reason, until it can continue."""


def emulate(
    program: Program,
    memories: Several[Mapping[str, Array]],
    sequence: Sequence | None = None,
    *,
    settings: StepSettings | None = None,
    inputs: StepInputs | None = None,
    clock: LogicalClock | None = None,
) -> Emulation:
    """Run a program; `memories[rank]` maps the names of its initial blocks to arrays.

    Other blocks of `memories` are ignored. With the `settings` and `inputs` of a training step,
    kernels compute its phases on real numbers; tokens and targets are integers. Without settings,
    the arrays of a program with signatures or scales are integers modulo
    `emulator.surrogate.PRIME`, before and after the run. With the sequence that the program was
    lowered from, messages name the method, the device's coordinates and the step. With a `clock`,
    events have its units.
    Raises a subclass of `EmulationError` at the instruction where an error is observed,
    `IncompleteError` if the run does not end with `final` or does not cover the grid, and
    `ProgramError` for a phase of a step without a kernel.
    """
    return _Run(program, memories, sequence, settings, inputs, clock).emulation()


class _Run:
    def __init__(
        self,
        program: Program,
        memories: Several[Mapping[str, Array]],
        sequence: Sequence | None,
        settings: StepSettings | None,
        inputs: StepInputs | None,
        clock: LogicalClock | None,
    ) -> None:
        if len(memories) != program.ranks:
            raise MeshError(
                f"expected one memory for each of {program.ranks} ranks, got {len(memories)}"
            )
        self.contents = Contents(program)
        self.arithmetic = Arithmetic(self.contents, settings, inputs)
        self.dtype = self.arithmetic.dtype(memories)
        names = zip(initial_blocks(program), host_blocks(program), memories, strict=True)
        self.devices = [
            EmulatedDevice(
                rank, self.contents, chosen(rank, memory, initial), chosen(rank, memory, host)
            )
            for rank, (initial, host, memory) in enumerate(names)
        ]
        self.program = program
        self.places = ErrorPlaces(program, sequence)
        self.combine = partial(combine, self.arithmetic)
        self.clock = clock or LogicalClock()
        self.in_flight = InFlight(self.combine, self.clock.transfer)
        self.requests: list[dict[str, list[PostedMessage | CollectiveCall]]] = [
            {} for _ in self.devices
        ]
        self.sent = [Fraction(0)] * program.ranks
        self.events: list[Event] = []
        self.computed: Computed = {}
        self.finished: dict[tuple[Place, int], Finished] = {}
        self.moves = 0

    def emulation(self) -> Emulation:
        self._schedule()
        check_coverage(self.contents, self.computed, self.places)
        memories = [device.memories() for device in self.devices]
        blocks, hosts = [here for here, _ in memories], [host for _, host in memories]
        check_final(self.contents, blocks, hosts, self.places)
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
        for place, instruction in enumerate(self.program.programs[device.rank]):
            self.moves += 1
            try:
                for ranks, what in self._execute(device, place, instruction):
                    yield Waiting(place, ranks, what)
            except EmulationError as error:
                text = self.places.of(device.rank, place, instruction)
                raise type(error)(f"{text}: {error}") from None
        for request, posts in self.requests[device.rank].items():
            is_open = any(post.done is None for post in posts)
            verb = "matched" if is_open else "waited for"
            raise MismatchError(
                f"{self.places.device(device.rank)}: expected request {request!r} to be waited "
                f"for, got the end of the program with it never {verb}: add a wait"
            )

    def _execute(self, device: EmulatedDevice, place: int, instruction: Instruction) -> Turn:
        """Run one instruction; yield the ranks that it waits for until it can continue."""
        match instruction:
            case Compute():
                self._compute(device, place, instruction)
            case Group(body=body, request=None):
                yield from self._together(device, body)
            case Wait():
                yield from self._wait(device, instruction)
            case Alloc() | Free() | Fetch() | Evict():
                self._memory(device, instruction)
            case Send() | Recv():
                yield from self._together(device, (instruction,))
            case Cut() | Join():
                self._cut_or_join(device, instruction)
            case ISend() | IRecv() | Group():
                self._request(device, instruction)
            case _ if instruction.request is None:
                yield from self._together(device, (instruction,))
            case _:
                self._request(device, instruction)

    # Products and sums

    def _compute(self, device: EmulatedDevice, place: int, node: Compute) -> None:
        blocks = [device.read(name) for name in node.reads]
        start = device.clock
        reduction = self._reduction(node)
        if node.phase is None or node.sub_operator is None:
            added = self.combine(blocks, reduction, node.scale_value)
        else:
            added = product(self.arithmetic, node, blocks)
            self._see(device.rank, blocks)
            grid = (self.program.grid or {}).get(node.phase, {})
            term = node.phase, tuple(node.sub_operator[dim] for dim in grid)
            if not node.again:
                self.computed.setdefault(term, []).append((device.rank, place))
            device.clock += self.clock.units(node.phase)
        if device.holds(node.accumulates):
            added = self.combine([device.read(node.accumulates), added], reduction)
        device.write(node.accumulates, added)
        self._note(device, node, node.accumulates, start)

    def _reduction(self, node: Compute) -> Reduction:
        """Return the reduction of a compute: that of its phase, or of the phase of its target."""
        if node.phase is not None:
            return self.contents.meaning.phases[node.phase].reduction
        home = self.contents.home(node.accumulates)
        phase = None if home is None else self.contents.maker(home)
        return "sum" if phase is None else phase.reduction

    def _cut_or_join(self, device: EmulatedDevice, node: Cut | Join) -> None:
        if isinstance(node, Cut):
            parts = cut(self.contents, node, device.read(node.block))
            self._take(device, (node.block,) * node.in_place)
            for name, part in zip(node.blocks, parts, strict=True):
                device.write(name, part)
        else:
            parts = [device.read(name) for name in node.blocks]
            whole = join(self.contents, node, parts)
            self._take(device, node.blocks * node.in_place)
            device.write(node.block, whole)
        self._note(device, node, node.block, device.clock)

    def _take(self, device: EmulatedDevice, names: tuple[str, ...]) -> None:
        """Free blocks of the device that are cut or joined in place."""
        self._see(device.rank, [device.free(name) for name in names])

    def _see(self, rank: int, blocks: Iterable[Block]) -> None:
        """Store finished blocks, which are compared with one device after the run."""
        for block in blocks:
            if self.contents.is_finished(block):
                (home,) = block.homes
                finished = Finished(rank, home, block.array)
                self.finished.setdefault((home, id(block.array)), finished)

    # Messages and collectives

    def _post(
        self, device: EmulatedDevice, node: Message | Collective
    ) -> PostedMessage | CollectiveCall:
        self.moves += 1
        if isinstance(node, Collective):
            return self.in_flight.call(device, node)
        return self.in_flight.post(device, node)

    def _request(self, device: EmulatedDevice, node: ISend | IRecv | Group | Collective) -> None:
        """Post messages or a collective that a wait will finish."""
        requests, request = self.requests[device.rank], str(node.request)
        if request in requests:
            raise MismatchError(
                f"expected a request that is not in use, got {request!r} again: "
                "wait for it first, or give this one another name"
            )
        body = node.body if isinstance(node, Group) else (node,)
        requests[request] = [self._post(device, part) for part in body]

    def _together(self, device: EmulatedDevice, body: tuple[Message | Collective, ...]) -> Turn:
        """Start all messages and collectives, and return when all are done."""
        posts = [self._post(device, node) for node in body]
        for pending in posts:
            yield from self._until_done(pending)
        for pending in posts:
            self._finish(device, pending)

    def _wait(self, device: EmulatedDevice, node: Wait) -> Turn:
        posts = self.requests[device.rank].get(node.request)
        if posts is None:
            raise MismatchError(
                f"expected a wait for a posted request, got {node.request!r}, which is not: "
                "post an isend or irecv with this request first"
            )
        for pending in posts:
            yield from self._until_done(pending)
        start = device.clock
        del self.requests[device.rank][node.request]
        block = " ".join([self._finish(device, pending) for pending in posts])
        self._note(device, node, block, start)

    @staticmethod
    def _until_done(pending: PostedMessage | CollectiveCall) -> Turn:
        while pending.done is None:
            yield pending.waits_for, str(pending)

    def _finish(self, device: EmulatedDevice, pending: PostedMessage | CollectiveCall) -> str:
        """End a message or collective: its blocks, whose names are returned, may be used again."""
        end = self.in_flight.end(device, pending)
        device.clock = max(device.clock, end.done)
        self.sent[device.rank] += end.sent
        self._note(device, end.node, end.block, pending.time, end.done, ceil(end.sent))
        return end.block

    # Memory

    def _memory(self, device: EmulatedDevice, node: Alloc | Free | Fetch | Evict) -> None:
        start = device.clock
        match node:
            case Alloc(block=block):
                device.write(block, zeros(self.contents, block, self.dtype))
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
            )
        )
