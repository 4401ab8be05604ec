"""Compiles one rank's instruction list to closures; all that is static is decided before the run.

The list is walked once, in order. For each instruction the compiler knows which blocks exist, which
buffer each one has and what is in flight. It emits one closure per instruction that only indexes
dicts and calls torch. Example: `Compute` of a product becomes "take a buffer from the pool, then
`torch.mm` into it".
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from msgspec.structs import replace

from primepar.distributed.runtime.collectives import collective_action, elements_sent, in_order
from primepar.distributed.runtime.computes import Computes, together
from primepar.distributed.runtime.conformance import Watch
from primepar.distributed.runtime.host_memory import HostMemory
from primepar.distributed.runtime.joins import later_joins
from primepar.distributed.runtime.memory_places import Get, MemoryPlaces
from primepar.distributed.runtime.mesh import Mesh
from primepar.distributed.runtime.message_labels import Labels
from primepar.distributed.runtime.messages import (
    Action,
    CompiledStep,
    Frame,
    Message,
    Start,
    post,
    staged,
)
from primepar.distributed.runtime.scales import Factor, factor_of, is_scaled, scaled
from primepar.distributed.runtime.shapes import Shapes
from primepar.errors import ProgramError
from primepar.operators import StepSettings
from primepar.schedule.communicators import batches, message_members
from primepar.schedule.program import (
    AllGather,
    Alloc,
    AllReduce,
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
    ReduceScatter,
    Send,
    Wait,
)
from primepar.schedule.program_uses import gets, gives, host_blocks, initial_blocks, uses, writes


class Compiler:
    """Compiles one rank's list, in order. Raises `ProgramError` for a block that does not exist."""

    def __init__(
        self,
        mesh: Mesh,
        program: Program,
        shapes: Shapes,
        settings: StepSettings | None,
        watch: Watch | None = None,
    ) -> None:
        self.mesh, self.shapes, self._watch = mesh, shapes, watch
        self.instructions = program.programs[mesh.rank]
        given = initial_blocks(program)[mesh.rank]
        # Under a limit no block keeps the memory of another one: there are no shared buffers.
        shares = mesh.limit is None
        joins = later_joins(self.instructions, mesh.rank, given, shapes) if shares else {}
        pools = mesh.pool, mesh.wide_pool
        self.places = MemoryPlaces(shapes, pools, self.instructions, joins, shares=shares)
        self.places.begin(given)
        self.computes = Computes(shapes, self.places, settings, watch)
        self.labels = Labels(shapes)
        self._members = message_members(program)
        self._sent: dict[tuple[bool, int], Fraction] = {}
        self._evicted = set(host_blocks(program)[mesh.rank])
        """Blocks in host memory."""
        self._arriving: set[str] = set()
        """Fetched blocks that nothing has named since."""

    def steps(self) -> Iterator[CompiledStep]:
        """Yield the closures; a batch of posts is one step if the backend is ordered (NCCL)."""
        place, alone = 0, ((node,) for node in self.instructions)
        for nodes in batches(self.instructions) if self.mesh.is_ordered else alone:
            self.places.place = place
            for node in nodes:
                yield from self._arrivals(node)
            if len(nodes) > 1:
                yield from self._posts([node for node in nodes if isinstance(node, ISend | IRecv)])
            else:
                self._check(nodes[0])
                yield from self._compile(nodes[0])
            place += len(nodes)
        for action in self.places.end():
            yield CompiledStep((), action, action)

    def _check(self, node: Instruction) -> None:
        for name in uses(node, self.mesh.rank):
            if name not in self.places.here:
                raise ProgramError(
                    f"{self._location}: expected block {name} on this device, "
                    "got none: list it in initial, or receive or compute it first"
                )

    @property
    def _location(self) -> str:
        """The compiled instruction, as error messages name it."""
        return f"programs[{self.mesh.rank}][{self.places.place}]"

    def _compile(self, node: Instruction) -> Iterator[CompiledStep]:
        match node:
            case Compute():
                run, first = self.computes.actions(node, self._location)
                yield CompiledStep((node,), run, first)
            case ISend() | IRecv():
                yield from self._posts([node])
            case Wait(request=request):
                yield _step(node, [lambda frame: frame.requests.pop(request).wait()])
            case Send() | Recv():
                yield _step(node, self._waited([node]))
            case Group(body=body):
                yield _step(node, self._waited(list(body)))
            case Cut(block=block, blocks=blocks):
                yield _step(node, self.places.cut(block, blocks, _in_place(node)))
            case Join(block=block, blocks=blocks):
                yield _step(node, self.places.join(blocks, block, _in_place(node)))
            case Alloc() | Free() | Fetch() | Evict():
                yield _step(node, self._memory(node))
            case _:
                yield _step(node, self._collective(node))

    def _memory(self, node: Alloc | Free | Fetch | Evict) -> list[Action]:
        name = node.block
        match node:
            case Alloc():
                return [*self.places.room(name), lambda frame: frame.blocks[name].zero_()]
            case Free():
                return [self.places.drop(name)]
            case Fetch():
                return self._fetch(name)
            case Evict():
                return self._evict(name)

    # Messages

    def _posts(self, run: list[Message]) -> Iterator[CompiledStep]:
        actions, start = self._starting(run)
        requests = [node.request for node in run if isinstance(node, ISend | IRecv)]
        run_all = together([*actions, _posting(start, requests)])
        yield CompiledStep(tuple(run), run_all, run_all)

    def _waited(self, messages: list[Message]) -> list[Action]:
        """Compile blocking messages: post them, then wait."""
        actions, start = self._starting(messages)
        return [*actions, lambda frame: start(frame.blocks).wait()]

    def _starting(self, messages: list[Message]) -> tuple[list[Action], Start]:
        """Return the actions that allocate received blocks, and the start of the messages.

        Posts of a batch are instructions of their own, each at the place after the one before.
        """
        sent, received = list[str](), list[str]()
        actions, first = list[Action](), self.places.place
        for offset, message in enumerate(messages):
            self.places.place = first + offset * isinstance(message, ISend | IRecv)
            self._check(message)
            if isinstance(message, Send | ISend):
                size = Fraction(self.shapes.elements(message.block))
                self._count(message, message.block, size)
                sent.append(message.block)
            else:
                actions += self.places.room(message.block)
                received.append(message.block)
        start = post(self.mesh, messages, self._members)
        return actions, self._staged(start, sent, received)

    def _staged(self, start: Start, reads: list[str], writes: list[str]) -> Start:
        """Return `start` with contiguous copies of the blocks that are not contiguous."""
        given, gotten = (
            [name for name in names if self.places.strided(name)] for names in (reads, writes)
        )
        return staged(start, given, gotten) if given or gotten else start

    def _count(self, node: Message | Collective, block: str, elements: Fraction) -> None:
        """Count elements that this rank sends, by kind and element size."""
        key = self.labels.is_linear(node, block), self.places.pool(block).dtype.itemsize
        self._sent[key] = self._sent.get(key, Fraction(0)) + elements

    def sent(self, kind: str) -> list[tuple[str, Fraction, int]]:
        """Return (kind, elements, bytes per element) of what a run sends.

        The kind is "linear" for linear operators, else `kind`.
        """
        pairs = self._sent.items()
        return [
            ("linear" if linear else kind, elements, itemsize)
            for (linear, itemsize), elements in pairs
        ]

    # Collectives

    def _collective(self, node: Collective) -> list[Action]:
        reads, writes = list(gives(node, self.mesh.rank)), list(gets(node, self.mesh.rank))
        # Blocks that are reduced in one call may belong to different kinds.
        calls = [node]
        if isinstance(node, AllReduce):
            calls = [replace(node, block=name, also=()) for name in node.reduced]
        for call in calls:
            for name in [*gives(call, self.mesh.rank), *gets(call, self.mesh.rank)][:1]:
                sent = elements_sent(call, self.mesh.rank, self.shapes.elements)
                self._count(call, name, sent)
        actions, run = self._room(node, reads, writes)
        start = collective_action(self.mesh, node, run)
        if is_scaled(node, self.mesh.rank):
            start = scaled(start, writes, self._factor(node))
        if run is None:
            start = self._staged(start, reads, writes)
        if node.request is None:
            return [*actions, lambda frame: start(frame.blocks).wait()]
        return [*actions, _posting(start, [node.request])]

    def _room(
        self, node: Collective, reads: list[str], writes: list[str]
    ) -> tuple[list[Action], Get | None]:
        """Return the actions that allocate what a collective writes, and its flat tensor if any."""
        if isinstance(node, ReduceScatter) and len(node.group) > 1:
            actions, run = self.places.flat(in_order(node))
            return [*actions, *self.places.renew(node.block)], run
        if isinstance(node, AllGather) and not self.places.is_planned(node.blocks):
            # This rank's block stays as it is.
            writes = [name for name in writes if name != node.block]
        actions = [
            action for name in writes for action in self.places.room(name, keep=name in reads)
        ]
        if isinstance(node, AllGather):
            return actions, self.places.run_of(in_order(node))
        several = isinstance(node, AllReduce) and node.also
        return actions, self.places.run_of(writes) if several else None

    def _factor(self, node: Collective) -> Factor:
        factor = factor_of(node)
        return factor if self._watch is None else self._watch.factor(factor)

    # Host memory

    def _evict(self, name: str) -> list[Action]:
        host, drop = self.mesh.host, self.places.drop(name)
        self._evicted.add(name)

        def run(frame: Frame) -> None:
            frame.host[name] = host.evict(frame.blocks[name])
            drop(frame)

        return [run]

    def _fetch(self, name: str) -> list[Action]:
        if name not in self._evicted:
            raise ProgramError(
                f"{self._location}: expected block {name} in host memory, got none: evict it first"
            )
        self._evicted.remove(name)
        self._arriving.add(name)

        def run(frame: Frame) -> None:
            self.mesh.host.fetch(name, frame.host.pop(name), frame.blocks[name])

        return [*self.places.room(name), run]

    def _arrivals(self, node: Instruction) -> Iterator[CompiledStep]:
        """Yield the waits for the copies of fetched blocks that an instruction is first to name."""
        rank = self.mesh.rank
        for name in sorted(self._arriving & {*uses(node, rank), *writes(node, rank)}):
            self._arriving.remove(name)
            if self.mesh.host.copies is not None:
                wait = _arrival(self.mesh.host, name)
                yield CompiledStep((), wait, wait)


def _in_place(node: Cut | Join) -> bool:
    """Return whether the blocks that are cut or joined are freed."""
    return bool(getattr(node, "in_place", False))


def _arrival(host: HostMemory, name: str) -> Action:
    return lambda frame: host.arrive(name)


def _posting(start: Start, requests: list[str]) -> Action:
    if len(requests) == 1:
        (request,) = requests

        def post_one(frame: Frame) -> None:
            frame.requests[request] = start(frame.blocks)

        return post_one
    return lambda frame: frame.requests.update(dict.fromkeys(requests, start(frame.blocks)))


def _step(node: Instruction, actions: list[Action]) -> CompiledStep:
    run = together(actions)
    return CompiledStep((node,), run, run)
