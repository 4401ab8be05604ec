"""Compiles one rank's instruction list to closures; all that is static is decided before the run.

The list is walked once, in order. For each instruction the compiler knows which blocks exist, which
memory each one has and what is in flight. It emits closures that only read slots and call torch.
Example: `Compute` of a product becomes one allocation, and one call of `torch.mm` with three slots.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from primepar.distributed.runtime.collectives import places, starting
from primepar.distributed.runtime.computes import Computes
from primepar.distributed.runtime.conformance import Watch
from primepar.distributed.runtime.host_copies import HostCopies
from primepar.distributed.runtime.joins import later_joins
from primepar.distributed.runtime.memory import Slot, copying
from primepar.distributed.runtime.memory_places import MemoryPlaces, Observer
from primepar.distributed.runtime.mesh import Mesh
from primepar.distributed.runtime.messages import Start, post, posting, waiting
from primepar.distributed.runtime.operands import Operands
from primepar.distributed.runtime.running import Action, CompiledStep, Frame
from primepar.distributed.runtime.scales import factor_of, is_scaled
from primepar.distributed.runtime.shapes import Shapes
from primepar.errors import ProgramError
from primepar.operators import StepSettings
from primepar.schedule.effects import effects, host_blocks, initial_blocks
from primepar.schedule.program import (
    Alloc,
    AllToAll,
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
from primepar.schedule.transport import batches, message_members

Names = tuple[str, ...]


class Compiler:
    """Compiles one rank's list, in order. Raises `ProgramError` for a block that does not exist."""

    def __init__(
        self,
        mesh: Mesh,
        program: Program,
        shapes: Shapes,
        settings: StepSettings | None,
        watch: Watch | None = None,
        observer: Observer | None = None,
        donated: Collection[str] = (),
    ) -> None:
        self.mesh, self.shapes, self._watch = mesh, shapes, watch
        self.instructions = program.programs[mesh.rank]
        given = initial_blocks(program)[mesh.rank]
        # Under a limit no block keeps the memory of another one: there are no shared buffers.
        joins = (
            later_joins(self.instructions, mesh.rank, given, shapes, mesh.dtype.itemsize)
            if mesh.limit is None
            else {}
        )
        self.places = MemoryPlaces(
            shapes,
            (mesh.dtype, mesh.wide_dtype),
            mesh.device,
            self.instructions,
            mesh.rank,
            joins,
            shares=mesh.limit is None,
            observer=observer,
            donated=donated,
        )
        self.places.begin(given)
        self.computes = Computes(shapes, self.places, settings, watch)
        self._members = message_members(program)
        self._copies = HostCopies(
            mesh.host, self.places, mesh.rank, host_blocks(program)[mesh.rank]
        )
        self._works: dict[str, Slot] = {}
        """Request -> the work to wait for."""
        self._after: dict[str, list[Action]] = {}
        """Request -> what is to be done after its wait."""

    def steps(self) -> list[CompiledStep]:
        """Return the closures; a batch of posts is one step if the backend is ordered (NCCL)."""
        return list(self._steps())

    def _steps(self) -> Iterator[CompiledStep]:
        place, alone = 0, ((node,) for node in self.instructions)
        for nodes in batches(self.instructions, self.mesh.ranks) if self.mesh.is_ordered else alone:
            self.places.place = place
            for node in nodes:
                yield from self._copies.arrivals(node)
            if len(nodes) > 1:
                yield self._posts([node for node in nodes if isinstance(node, ISend | IRecv)])
            else:
                self._check(nodes[0])
                yield self._compile(nodes[0])
            place += len(nodes)
        yield CompiledStep((), self.places.end())

    def _check(self, node: Instruction) -> None:
        for name in effects(node, self.mesh.rank).reads:
            if name not in self.places.here:
                raise ProgramError(
                    f"{self._location}: expected block {name} on this device, "
                    "got none: list it in initial, or receive or compute it first"
                )

    @property
    def _location(self) -> str:
        """The compiled instruction, as error messages name it."""
        return f"programs[{self.mesh.rank}][{self.places.place}]"

    def _compile(self, node: Instruction) -> CompiledStep:
        match node:
            case Compute():
                return CompiledStep((node,), self.computes.actions(node, self._location))
            case ISend() | IRecv():
                return self._posts([node])
            case Wait(request=request):
                actions = self._wait(request)
            case Send() | Recv():
                actions = self._waited([node])
            case Group(body=body):
                actions = self._waited(list(body))
            case Cut(block=block, blocks=blocks):
                actions = self.places.cut(block, blocks, _in_place(node))
            case Join(block=block, blocks=blocks):
                actions = self.places.join(blocks, block, _in_place(node))
            case Alloc() | Free() | Fetch() | Evict():
                actions = self._memory(node)
            case _:
                actions = self._collective(node)
        return CompiledStep((node,), actions)

    def _memory(self, node: Alloc | Free | Fetch | Evict) -> list[Action]:
        name = node.block
        match node:
            case Alloc():
                actions, slot = self.places.room(name), self.places.slot(name)
                return [*actions, lambda frame: slot[0].zero_()]
            case Free():
                return self.places.drop(name)
            case Fetch():
                return self._copies.fetch(name, self._location)
            case Evict():
                return self._copies.evict(name)

    # Messages

    def _posts(self, run: list[Message]) -> CompiledStep:
        operands, start = self._starting(run)
        requests = [node.request for node in run if isinstance(node, ISend | IRecv)]
        return CompiledStep(tuple(run), self._posted(requests, operands, start))

    def _posted(self, requests: list[str], operands: list[Operands], start: Start) -> list[Action]:
        """Post communication; what follows it is done after the waits for the requests."""
        work: Slot = [None]
        for request, tensors in zip(requests, operands, strict=True):
            self.places.posted(request, tensors.names, tensors.scratch)
            self._works[request], self._after[request] = work, tensors.after
        before = [action for tensors in operands for action in tensors.before]
        return [*before, posting(start, work)]

    def _wait(self, request: str) -> list[Action]:
        if request not in self._works:
            raise ProgramError(
                f"{self._location}: expected request {request} to be posted before its wait, got "
                "none: post it first"
            )
        actions = [waiting(self._works.pop(request)), *self._after.pop(request)]
        return [*actions, *self.places.waited(request)]

    def _waited(self, messages: list[Message]) -> list[Action]:
        """Compile blocking messages: post them, then wait."""
        operands, start = self._starting(messages)
        return self._at_once(operands, start)

    def _at_once(self, operands: list[Operands], start: Start) -> list[Action]:
        requests = [f"#{number}" for number in range(len(operands))]
        actions = self._posted(requests, operands, start)
        return [*actions, *(action for request in requests for action in self._wait(request))]

    def _starting(self, messages: list[Message]) -> tuple[list[Operands], Start]:
        """Return the operands of the messages, and the start of all of them.

        Posts of a batch are instructions of their own, each at the place after the one before.
        """
        first, operands = self.places.place, []
        for offset, message in enumerate(messages):
            self.places.place = first + offset * isinstance(message, ISend | IRecv)
            self._check(message)
            operands.append(Operands.of_message(self.places, message))
        slots = [tensors.given for tensors in operands]
        return operands, post(self.mesh, messages, slots, self._members)

    # Collectives

    def _collective(self, node: Collective) -> list[Action]:
        rank = self.mesh.rank
        reads, writes = effects(node, rank).reads, effects(node, rank).writes
        if len(node.group) == 1:
            return self._alone(node, reads, writes)
        operands = Operands.of_collective(self.places, node, rank)
        if is_scaled(node, rank):
            operands.after.append(self._scaling(node, writes))
        start = starting(self.mesh, node, operands.given, operands.taken, self._sizes(node))
        if node.request is None:
            return self._at_once([operands], start)
        return self._posted([node.request], [operands], start)

    def _alone(self, node: Collective, reads: Names, writes: Names) -> list[Action]:
        """Compile a collective of one rank: its input is copied to its output."""
        actions = [a for name in writes for a in self.places.room(name, keep=name in reads)]
        for name, into in zip(reads, writes, strict=False):
            if name != into:
                actions.append(copying((self.places.slot(into), self.places.slot(name))))
        after = [self._scaling(node, writes)] if is_scaled(node, self.mesh.rank) else []
        if node.request is None:
            return [*actions, *after]
        self._works[node.request], self._after[node.request] = [None], after
        return actions

    def _sizes(self, node: Collective) -> tuple[list[int], list[int]]:
        """Return the elements for and from every member, in the order of the ranks."""
        if not isinstance(node, AllToAll):
            return [], []
        order = places(node)
        return (
            [self.shapes.elements(node.blocks[place]) for place in order],
            [self.shapes.elements(node.into[place]) for place in order],
        )

    def _scaling(self, node: Collective, names: Names) -> Action:
        factor, slots = factor_of(node), [self.places.slot(name) for name in names]
        if self._watch is not None:
            factor = self._watch.factor(factor)

        def multiply(frame: Frame) -> None:
            scale = factor()
            for into in slots:
                into[0].mul_(scale)

        return multiply


def _in_place(node: Cut | Join) -> bool:
    """Return whether the blocks that are cut or joined are freed."""
    return bool(getattr(node, "in_place", False))
