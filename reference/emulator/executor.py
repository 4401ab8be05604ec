"""The emulator: every instruction of a program, on devices that share nothing.

One thread plays all ranks: a rank runs until it blocks, then the next one does. Messages are
rendezvous. A logical clock on every device counts one unit for a product and one for a transfer
from the later of its two posts, so that the events show what overlaps.
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
from primepar.reference.emulator.messages import TRANSFER, Message, PostedMessage
from primepar.reference.emulator.postconditions import Computed, check_coverage, check_final
from primepar.reference.emulator.products import product, zeros
from primepar.reference.emulator.provenance import Array, Block
from primepar.reference.emulator.reductions import combine, cut, join
from primepar.reference.emulator.scatter_gather import chosen
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
    Program,
    Recv,
    Send,
    Wait,
)
from primepar.schedule.program_uses import host_blocks, initial_blocks
from primepar.schedule.sequence import Sequence
from primepar.schedule.signature import Reduction

Turn = Iterator[tuple[tuple[int, ...], str]]
"""The ranks that an instruction waits for, and for what, as long as it does."""


def emulate(
    program: Program,
    memories: Several[Mapping[str, Array]],
    sequence: Sequence | None = None,
    *,
    settings: StepSettings | None = None,
    inputs: StepInputs | None = None,
) -> Emulation:
    """Run a program; `memories[rank]` maps the names of its initial blocks to arrays.

    What else `memories` holds is left out. With the `settings` and the `inputs` of a training step
    kernels compute its phases on real numbers; tokens and targets are integers. Without settings
    arrays are integers modulo `emulator.surrogate.PRIME` in a program with signatures, before and
    after. The sequence that the program was lowered from, if it is given, names the
    method, the device's coordinates and the step in messages.
    Raises the subclass of `EmulationError` for what is wrong, at the place where it shows,
    `IncompleteError` if the run does not end with `final` or leaves the grid uncovered, and
    `ProgramError` for a phase of a step that no kernel computes.
    """
    return _Run(program, memories, sequence, settings, inputs).emulation()


class _Run:
    def __init__(
        self,
        program: Program,
        memories: Several[Mapping[str, Array]],
        sequence: Sequence | None,
        settings: StepSettings | None,
        inputs: StepInputs | None,
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
                rank, self.contents, chosen(rank, memory, own), chosen(rank, memory, host)
            )
            for rank, (own, host, memory) in enumerate(names)
        ]
        self.program = program
        self.places = ErrorPlaces(program, sequence)
        self.combine = partial(combine, self.contents)
        self.wires = InFlight(self.combine)
        self.requests: list[dict[str, PostedMessage | CollectiveCall]] = [{} for _ in self.devices]
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
            blocks, hosts, self.events, self.sent, [each.peak for each in self.devices],
            list(self.finished.values()),
        )  # fmt: skip

    def _schedule(self) -> None:
        """Give every rank its turn until all are through, or a whole round moves nobody."""
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
        """Run one rank, giving way where it waits; every error gets its place here."""
        for at, instruction in enumerate(self.program.programs[device.rank]):
            self.moves += 1
            try:
                for on, what in self._execute(device, at, instruction):
                    yield Waiting(at, on, what)
            except EmulationError as error:
                place = self.places.of(device.rank, at, instruction)
                raise type(error)(f"{place}: {error}") from None
        for request, post in self.requests[device.rank].items():
            verb = "matched" if post.done is None else "waited for"
            raise MismatchError(
                f"{self.places.device(device.rank)}: expected request {request!r} to be waited "
                f"for, got the end of the program with it never {verb}: add a wait"
            )

    def _execute(self, device: EmulatedDevice, at: int, instruction: Instruction) -> Turn:
        """Run one instruction, yielding the ranks that it waits for as long as it does."""
        match instruction:
            case Compute():
                self._compute(device, at, instruction)
            case Group(body=body):
                yield from self._together(device, body)
            case Wait():
                yield from self._wait(device, instruction)
            case Alloc() | Free() | Fetch() | Evict():
                self._memory(device, instruction)
            case Send() | Recv():
                yield from self._together(device, (instruction,))
            case Cut() | Join():
                self._cut_or_join(device, instruction)
            case _ if instruction.request is None:
                yield from self._together(device, (instruction,))
            case _:
                self._request(device, instruction)

    # Products and sums

    def _compute(self, device: EmulatedDevice, at: int, node: Compute) -> None:
        blocks = [device.read(name) for name in node.reads]
        start = device.clock
        reduction = self._reduction(node)
        if node.phase is None or node.sub_operator is None:
            added = self.combine(blocks, reduction)
        else:
            added = product(self.arithmetic, node, blocks)
            self._see(device.rank, blocks)
            grid = (self.program.grid or {}).get(node.phase, {})
            term = node.phase, tuple(node.sub_operator[dim] for dim in grid)
            self.computed.setdefault(term, []).append((device.rank, at))
            device.clock += 1
        if device.holds(node.accumulates):
            added = self.combine([device.read(node.accumulates), added], reduction)
        device.write(node.accumulates, added)
        self._note(device, node, node.accumulates, start)

    def _reduction(self, node: Compute) -> Reduction:
        """How a compute adds: as its phase does, or the one that makes what it adds to."""
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
        """Take blocks from the device whose memory others get."""
        self._see(device.rank, [device.free(name) for name in names])

    def _see(self, rank: int, blocks: Iterable[Block]) -> None:
        """Keep what is finished, to be compared with one device."""
        for block in blocks:
            if self.contents.is_finished(block):
                (home,) = block.homes
                own = Finished(rank, home, block.array)
                self.finished.setdefault((home, id(block.array)), own)

    # Messages and collectives

    def _post(
        self, device: EmulatedDevice, node: Message | Collective
    ) -> PostedMessage | CollectiveCall:
        self.moves += 1
        if isinstance(node, Collective):
            return self.wires.call(device, node)
        return self.wires.post(device, node)

    def _request(self, device: EmulatedDevice, node: ISend | IRecv | Collective) -> None:
        """Post what is finished by a wait."""
        requests, request = self.requests[device.rank], str(node.request)
        if request in requests:
            raise MismatchError(
                f"expected a request that is not in use, got {request!r} again: "
                "wait for it first, or give this one another name"
            )
        requests[request] = self._post(device, node)

    def _together(self, device: EmulatedDevice, body: tuple[Message | Collective, ...]) -> Turn:
        """Start all, and return when all are done."""
        pending = [self._post(device, node) for node in body]
        for each in pending:
            yield from self._until_done(each)
        for each in pending:
            self._finish(device, each)

    def _wait(self, device: EmulatedDevice, node: Wait) -> Turn:
        pending = self.requests[device.rank].get(node.request)
        if pending is None:
            raise MismatchError(
                f"expected a wait for a posted request, got {node.request!r}, which is not: "
                "post an isend or irecv with this request first"
            )
        yield from self._until_done(pending)
        start = device.clock
        del self.requests[device.rank][node.request]
        block = self._finish(device, pending)
        self._note(device, node, block, start)

    @staticmethod
    def _until_done(pending: PostedMessage | CollectiveCall) -> Turn:
        while pending.done is None:
            yield pending.waits_for, str(pending)

    def _finish(self, device: EmulatedDevice, pending: PostedMessage | CollectiveCall) -> str:
        """Take it off the wire: from here on its blocks, which are returned, may be touched."""
        end = self.wires.end(device, pending)
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
                device.clock += TRANSFER
            case Evict(block=block):
                device.evict(block)
                device.clock += TRANSFER
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
        """Keep the event of one instruction, which ends now unless told."""
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
