"""From one rank's instruction list to closures: what can be known before the run is decided."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator

from primepar.distributed.collectives import (
    collective_action,
    collective_reads,
    collective_writes,
    elements_sent,
)
from primepar.distributed.frame import Frame, Step
from primepar.distributed.fused import call, products_at_once, ring_at_once
from primepar.distributed.listing import Listing
from primepar.distributed.mesh import Mesh
from primepar.distributed.messages import Message, Start, post, staged
from primepar.distributed.storage import Memory
from primepar.errors import ProgramError
from primepar.schedule.program import (
    AllGather,
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
    ReduceScatter,
    Send,
    Wait,
)


class Compiler:
    """Compiles one rank's list, in order. Raises `ProgramError` for a block that is not there."""

    def __init__(self, mesh: Mesh, program: Program, memory: Memory) -> None:
        self.mesh, self.pool = mesh, memory.pool
        self.listing = Listing(mesh, program, memory)
        self.storage = self.listing.storage
        self.evicted: set[str] = set()

    def steps(self) -> Iterator[Step]:
        """The closures of the list; runs of posts are one step where the backend batches them."""
        yield from self.storage.begin(self.listing.initial)
        run: list[Message] = []
        for place, node in enumerate(self.listing.instructions):
            if isinstance(node, ISend | IRecv) and self.mesh.backend == "nccl":
                run.append(node)
                continue
            yield from self._posts(run)
            run, self.storage.place = [], place
            if place not in self.listing.done:
                yield from self._compile(node)
        yield from self._posts(run)
        yield from self.storage.end()

    def _compile(self, node: Instruction) -> Iterator[Step]:
        match node:
            case Compute(phase=None):
                yield from self._addition(node)
            case Compute():
                yield from products_at_once(self.listing)
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
            case Cut() | Join():
                raise ProgramError("expected a program of one linear operator, got cut or join")
            case _:
                yield from self._collective(node)

    def _memory(self, node: Alloc | Free | Fetch | Evict) -> Iterator[Step]:
        name = node.block
        match node:
            case Alloc():
                yield from self.storage.room(name)
                yield Step((node,), lambda frame: frame.blocks[name].zero_())
            case Free():
                self.listing.need(name)
                yield Step((node,), self.storage.drop(name))
            case Fetch():
                yield from self._fetch(node, name)
            case Evict():
                yield from self._evict(node, name)

    # Messages

    def _posts(self, run: list[Message]) -> Iterator[Step]:
        if not run:
            return
        start = yield from self._starting(run)
        requests = [node.request for node in run if isinstance(node, ISend | IRecv)]

        def begin(frame: Frame) -> None:
            frame.requests.update(dict.fromkeys(requests, start(frame.blocks)))

        yield Step(tuple(run), begin)

    def _exchange(self, node: Instruction, messages: list[Message]) -> Iterator[Step]:
        """Blocking messages: posted, then waited for."""
        start = yield from self._starting(messages)
        yield Step((node,), lambda frame: start(frame.blocks).wait())

    def _starting(self, messages: list[Message]) -> Generator[Step, None, Start]:
        """What starts messages, once there is room for what they bring."""
        sends = [each.block for each in messages if isinstance(each, Send | ISend)]
        receives = [each.block for each in messages if isinstance(each, Recv | IRecv)]
        for name in sends:
            self.listing.need(name)
            self.listing.sent += self.storage.size(name)
        for name in receives:
            yield from self.storage.room(name)
        return self._staged(post(self.mesh, messages), sends, receives)

    def _staged(self, start: Start, reads: Iterable[str], writes: Iterable[str]) -> Start:
        """`start` by way of buffers for blocks that are no contiguous piece of memory."""
        given, gotten = (
            [name for name in names if self.storage.strides(name)] for names in (reads, writes)
        )
        return staged(self.pool, start, given, gotten) if given or gotten else start

    def _addition(self, node: Compute) -> Iterator[Step]:
        name, reads = node.accumulates, list(node.reads)
        for read in reads:
            self.listing.need(read)
        begun = name in self.storage.here
        yield from self.storage.room(name, keep=True)

        def run(frame: Frame) -> None:
            into = frame.blocks[name]
            for place, read in enumerate(reads):
                if begun or place:
                    into.add_(frame.blocks[read])
                else:
                    into.copy_(frame.blocks[read])

        yield Step((node,), run)

    def _collective(self, node: Collective) -> Iterator[Step]:
        if isinstance(node, AllGather | ReduceScatter):
            steps = ring_at_once(self.listing, node)
            if steps is not None:
                yield from steps
                return
        reads = collective_reads(node, self.mesh.rank)
        writes = collective_writes(node, self.mesh.rank)
        for read in reads:
            self.listing.need(read)
        for name in writes:
            yield from self.storage.room(name, keep=name in reads)
        self.listing.sent += elements_sent(node, self.mesh.rank, self.storage.size)
        start = collective_action(self.mesh, self.pool, node)
        yield call([node], self._staged(start, reads, writes))

    def _evict(self, node: Evict, name: str) -> Iterator[Step]:
        self.listing.need(name)
        drop, host = self.storage.drop(name), self.mesh.host
        self.evicted.add(name)

        def run(frame: Frame) -> None:
            block = frame.blocks[name]
            kept = host.acquire(tuple(block.shape))
            frame.host[name] = kept.copy_(block, non_blocking=True)
            drop(frame)

        yield Step((node,), run)

    def _fetch(self, node: Fetch, name: str) -> Iterator[Step]:
        if name not in self.evicted:
            raise ProgramError(
                f"{self.listing.at()}: expected block {name} in host memory, "
                "got none: evict it first"
            )
        self.evicted.remove(name)
        yield from self.storage.room(name)

        def run(frame: Frame) -> None:
            kept = frame.host.pop(name)
            frame.blocks[name].copy_(kept, non_blocking=True)
            self.mesh.host.release(kept)

        yield Step((node,), run)
