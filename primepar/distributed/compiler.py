"""From one rank's instruction list to closures: what can be known before the run is decided here.

Followed through the list: which blocks are there, and whose they are. A *borrowed* block is the
caller's: it is never written and never joins the pool. A *leaving* block is an output that the
caller keeps: it never comes from the pool. All others are the pool's.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from fractions import Fraction
from typing import NamedTuple

import torch

from primepar.distributed.buffers import BufferPool, Shape
from primepar.distributed.collectives import (
    collective_action,
    collective_reads,
    collective_writes,
    elements_sent,
)
from primepar.distributed.frame import Action, Frame, Step
from primepar.distributed.mesh import Mesh
from primepar.distributed.messages import Message, post
from primepar.distributed.products import multiply
from primepar.errors import ProgramError
from primepar.schedule.operators import parse_block
from primepar.schedule.program import (
    Alloc,
    Collective,
    Compute,
    Evict,
    Fetch,
    Free,
    Group,
    Instruction,
    IRecv,
    ISend,
    Program,
    Recv,
    Send,
    Wait,
)


class Memory(NamedTuple):
    """Whose memory a program runs in: buffers, block shapes, borrowed and leaving blocks."""

    pool: BufferPool
    shape: Callable[[str], Shape]
    borrowed: Collection[str] = ()
    leaving: Collection[str] = ()


class Compiler:
    """Compiles one rank's list, in order. Raises `ProgramError` for a block that is not there."""

    def __init__(self, mesh: Mesh, program: Program, memory: Memory) -> None:
        self.mesh, self.pool, self.memory = mesh, memory.pool, memory
        self.instructions = program.programs[mesh.rank]
        self.assumed = program.initial is None
        initial = program.initial[mesh.rank] if program.initial is not None else ()
        self.here = {name: name in memory.borrowed for name in initial}
        self.evicted: set[str] = set()
        self.sent = Fraction(0)
        self._last_end = {
            node.block: place
            for place, node in enumerate(self.instructions)
            if isinstance(node, Free | Evict)
        }
        self._place = 0

    def steps(self) -> Iterator[Step]:
        """The closures of the list; runs of posts are one step where the backend batches them."""
        run: list[Message] = []
        for place, node in enumerate(self.instructions):
            if isinstance(node, ISend | IRecv) and self.mesh.backend == "nccl":
                run.append(node)
                continue
            yield from self._posts(run)
            run, self._place = [], place
            yield from self._compile(node)
        yield from self._posts(run)

    def _compile(self, node: Instruction) -> Iterator[Step]:
        match node:
            case Compute():
                yield from self._addition(node) if node.phase is None else self._product(node)
            case ISend() | IRecv():
                yield from self._posts([node])
            case Wait(request=request):
                yield Step((node,), lambda frame: frame.requests.pop(request).wait())
            case Send() | Recv():
                yield from self._exchange(node, [node])
            case Group(body=body):
                yield from self._exchange(node, list(body))
            case Alloc() | Free() | Fetch() | Evict():
                yield from self._memory(node)
            case _:
                yield from self._collective(node)

    def _memory(self, node: Alloc | Free | Fetch | Evict) -> Iterator[Step]:
        name = node.block
        match node:
            case Alloc():
                yield from self._room(name)
                yield Step((node,), lambda frame: frame.blocks[name].zero_())
            case Free():
                yield Step((node,), self._drop(name))
            case Fetch():
                yield from self._fetch(node, name)
            case Evict():
                yield from self._evict(node, name)

    def _need(self, name: str) -> None:
        """The block is there, or the program is refused."""
        if name not in self.here and self.assumed:
            self.here[name] = name in self.memory.borrowed
        if name not in self.here:
            raise ProgramError(
                f"programs[{self.mesh.rank}][{self._place}]: expected block {name} on this device, "
                "got none: list it in initial, or receive or compute it first"
            )

    def _room(self, name: str, *, keep: bool = False) -> Iterator[Step]:
        """A buffer of ours to write `name` to; with `keep` it has the block's old contents."""
        borrowed = self.here.get(name)
        if borrowed is False:
            return
        self.here[name] = False
        make = self._maker(name)
        if borrowed and keep:
            yield Step((), lambda frame: frame.put(name, make().copy_(frame.blocks[name])))
        else:
            yield Step((), lambda frame: frame.put(name, make()))

    def _maker(self, name: str) -> Callable[[], torch.Tensor]:
        shape = self.memory.shape(name)
        stays = self._place > self._last_end.get(name, -1)
        source = self.pool.fresh if stays and name in self.memory.leaving else self.pool.acquire
        return lambda: source(shape)

    def _drop(self, name: str) -> Action:
        self._need(name)
        if self.here.pop(name):
            return lambda frame: frame.blocks.pop(name)
        return lambda frame: self.pool.release(frame.blocks.pop(name))

    def _posts(self, run: list[Message]) -> Iterator[Step]:
        if not run:
            return
        yield from self._ends(run)
        start = post(self.mesh, run)
        requests = [node.request for node in run if isinstance(node, ISend | IRecv)]

        def begin(frame: Frame) -> None:
            frame.requests.update(dict.fromkeys(requests, start(frame.blocks)))

        yield Step(tuple(run), begin)

    def _exchange(self, node: Instruction, messages: list[Message]) -> Iterator[Step]:
        """Blocking messages: posted, then waited for."""
        yield from self._ends(messages)
        start = post(self.mesh, messages)
        yield Step((node,), lambda frame: start(frame.blocks).wait())

    def _ends(self, messages: list[Message]) -> Iterator[Step]:
        for message in messages:
            if isinstance(message, Send | ISend):
                self._need(message.block)
                self.sent += self._size(message.block)
            else:
                yield from self._room(message.block)

    def _size(self, name: str) -> int:
        return torch.Size(self.memory.shape(name)).numel()

    def _product(self, node: Compute) -> Iterator[Step]:
        name, (first, second) = node.accumulates, self._operands(node)
        tensors = [self._tensor(block) for block in (first, second, name)]
        product = multiply((tensors[0], tensors[1]), tensors[2])
        begun = name in self.here
        yield from self._room(name, keep=True)

        def run(frame: Frame) -> None:
            blocks = frame.blocks
            product(blocks[first], blocks[second], blocks[name], begun)

        yield Step((node,), run)

    def _operands(self, node: Compute) -> tuple[str, str]:
        if len(node.reads) != 2:
            raise ProgramError(
                f"programs[{self.mesh.rank}][{self._place}]: expected two reads of a product, "
                f"got {len(node.reads)}"
            )
        for read in node.reads:
            self._need(read)
        return node.reads[0], node.reads[1]

    def _tensor(self, name: str) -> str:
        block = parse_block(name)
        if block is None:
            raise ProgramError(
                f"programs[{self.mesh.rank}][{self._place}]: expected a block of I, W or O or of "
                f"their gradients in a product, got {name!r}"
            )
        return block.tensor

    def _addition(self, node: Compute) -> Iterator[Step]:
        name, reads = node.accumulates, list(node.reads)
        for read in reads:
            self._need(read)
        begun = name in self.here
        yield from self._room(name, keep=True)

        def run(frame: Frame) -> None:
            into = frame.blocks[name]
            for place, read in enumerate(reads):
                if begun or place:
                    into.add_(frame.blocks[read])
                else:
                    into.copy_(frame.blocks[read])

        yield Step((node,), run)

    def _collective(self, node: Collective) -> Iterator[Step]:
        reads = collective_reads(node, self.mesh.rank)
        for read in reads:
            self._need(read)
        for name in collective_writes(node, self.mesh.rank):
            yield from self._room(name, keep=name in reads)
        self.sent += elements_sent(node, self.mesh.rank, self._size)
        start, request = collective_action(self.mesh, self.pool, node), node.request
        if request is None:
            yield Step((node,), lambda frame: start(frame.blocks).wait())
        else:
            yield Step((node,), lambda frame: frame.post(request, start(frame.blocks)))

    def _evict(self, node: Evict, name: str) -> Iterator[Step]:
        self._need(name)
        borrowed = self.here.pop(name)
        self.evicted.add(name)
        host = self.mesh.host

        def run(frame: Frame) -> None:
            block = frame.blocks.pop(name)
            kept = host.acquire(tuple(block.shape))
            frame.host[name] = kept.copy_(block, non_blocking=True)
            if not borrowed:
                self.pool.release(block)

        yield Step((node,), run)

    def _fetch(self, node: Fetch, name: str) -> Iterator[Step]:
        if name not in self.evicted:
            raise ProgramError(
                f"programs[{self.mesh.rank}][{self._place}]: expected block {name} in host memory, "
                "got none: evict it first"
            )
        self.evicted.remove(name)
        yield from self._room(name)

        def run(frame: Frame) -> None:
            kept = frame.host.pop(name)
            frame.blocks[name].copy_(kept, non_blocking=True)
            self.mesh.host.release(kept)

        yield Step((node,), run)
