"""Programs of MSCCL algorithms: every thread block is a rank, and so is the memory of every GPU.

Thread blocks of a GPU run at the same time and share its memory; they wait for one another where a
step has a dependency. A program has one order per rank and no shared memory. So

- a thread block is a rank, which sends and receives on the connections of its GPU;
- a dependency is a message, posted after the one step and received before the other;
- a chunk that one thread block writes and another one reads is carried by a message, posted after
  the write and received before the read. The two are ordered already (see `msccl_order`), so that
  this adds no waiting;
- the memory of a GPU is one more rank, which has the inputs and takes the outputs at the end.

Every write of a chunk makes a block of its own name, `o3@12` by step 12 of all. A step of several
chunks sends each in a message of its own. What a step receives leaves its slot before the step
sends. MSCCL holds the slot until then: so of its slots, at least two, one is not counted here.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from primepar.preflight.importers.msccl_file import RECEIVES, SENDS, read_algorithm
from primepar.preflight.importers.msccl_meaning import PHASE, CollectiveMeaning
from primepar.preflight.importers.msccl_order import MEMORY, Chunk, NumberedStep, StepOrder
from primepar.schedule.program import (
    Compute,
    Free,
    Instruction,
    ISend,
    Program,
    Recv,
    Send,
    Wait,
)

ThreadKey = tuple[int, int]
"""GPU and thread block, or GPU and `MEMORY`."""


def msccl_program(path: Path) -> Program:
    """Return the program of an algorithm, with the sums that its collective asks for.

    Raises `FormatError` for a file that is none, and `ThreadRaceError` for thread blocks that
    access a chunk in no order.
    """
    algorithm = read_algorithm(path)
    meaning = CollectiveMeaning(algorithm)
    order = StepOrder(algorithm, meaning)
    order.check_races()
    return ThreadPrograms(order, meaning).program()


class ThreadPrograms:
    """The lists of all thread blocks and memories of an algorithm."""

    def __init__(self, order: StepOrder, meaning: CollectiveMeaning) -> None:
        self.order, self.meaning = order, meaning
        gpus = order.algorithm.gpus
        threads = [(gpu.number, MEMORY) for gpu in gpus]
        threads += [(gpu.number, block.number) for gpu in gpus for block in gpu.blocks]
        self.ranks = {thread: rank for rank, thread in enumerate(sorted(threads))}
        self.lists: list[list[Instruction]] = [[] for _ in threads]
        self.ends: list[list[Instruction]] = [[] for _ in threads]
        """Waits for what was posted, after all else."""
        self.has_data = order.earlier is not None and meaning.is_known
        self.readers: dict[tuple[Chunk, int], dict[ThreadKey, int]] = defaultdict(dict)
        """Chunk and the step that wrote it -> thread that reads it there -> its first such step."""
        self.dependents: dict[int, list[int]] = defaultdict(list)
        """Step -> the steps of other thread blocks that depend on it."""
        self._find_readers()

    def _find_readers(self) -> None:
        for number, node in enumerate(self.order.nodes):
            for earlier in self.order.before[number]:
                peer = self.order.nodes[earlier]
                if peer.gpu is node.gpu and peer.block is not node.block:
                    self.dependents[earlier].append(number)
            for chunk in self.order.reads(number) if self.has_data else ():
                written = self.order.seen(chunk, number)
                self.readers[chunk, written].setdefault(node.thread, number)

    def program(self) -> Program:
        """The program; where the steps wait in a circle it is one of messages alone."""
        for gpu in self.order.algorithm.gpus if self.has_data else ():
            self._start((gpu.number, MEMORY))
        for number in range(len(self.order.nodes)):
            self._step(number)
        for gpu in self.order.algorithm.gpus if self.has_data else ():
            self._finish((gpu.number, MEMORY))
        lists = zip(self.lists, self.ends, strict=True)
        programs = tuple((*nodes, *ends) for nodes, ends in lists)
        if not self.has_data:
            return Program("primepar-program", 1, len(programs), programs)
        gpus = self.order.algorithm.gpus
        initial: list[tuple[str, ...]] = [()] * len(programs)
        final = list(initial)
        for gpu in gpus:
            rank = self.ranks[gpu.number, MEMORY]
            initial[rank] = tuple(f"x[{g},{c}]" for _, g, c in self.meaning.inputs(gpu))
            final[rank] = tuple(f"y[{c}]" for _, c in self.meaning.outputs(gpu))
        for rank, nodes in enumerate(programs):
            initial[rank] += tuple(
                {n.block: 0 for n in nodes if isinstance(n, ISend) and n.block == "done"}
            )
        return Program(
            "primepar-program", 1, len(programs), programs,
            phases={PHASE: self.meaning.signature()}, grid={PHASE: self.meaning.grid(gpus[0])},
            initial=tuple(initial), final=tuple(final),
        )  # fmt: skip

    def _post(self, thread: ThreadKey, to: ThreadKey, block: str, name: str, source: str) -> None:
        """Post a message within a GPU; it has a communicator of its own, and delays nothing."""
        rank, request = self.ranks[thread], f"to {self.ranks[to]}: {name}"
        node = ISend(self.ranks[to], block, communicator=name, request=request, source=source)
        self.lists[rank].append(node)
        self.ends[rank].append(Wait(request, source=source))

    def _take(self, thread: ThreadKey, peer: ThreadKey, block: str, name: str, source: str) -> None:
        node = Recv(self.ranks[peer], block, communicator=name, source=source)
        self.lists[self.ranks[thread]].append(node)

    def _carried(self, chunk: Chunk, written: int, block: str, source: str) -> None:
        """Post a chunk that was written to the threads that read it."""
        thread = self._thread(chunk, written)
        for reader in self.readers[chunk, written]:
            if reader != thread:
                self._post(thread, reader, block, _name(chunk, written), source)

    def _thread(self, chunk: Chunk, written: int) -> ThreadKey:
        return (chunk.gpu, MEMORY) if written == MEMORY else self.order.nodes[written].thread

    def _start(self, memory: ThreadKey) -> None:
        gpu = self.order.algorithm.gpus[memory[0]]
        for location, summand, number in self.meaning.inputs(gpu):
            block, source = f"y[{number}]", f"input of gpu {gpu.number}"
            cell = {"G": summand, "C": number}
            reads = (f"x[{summand},{number}]",)
            self.lists[self.ranks[memory]].append(Compute(reads, block, PHASE, cell, source=source))
            self._carried(Chunk(gpu.number, location), MEMORY, block, source)

    def _finish(self, memory: ThreadKey) -> None:
        """Take the outputs; the inputs are freed before, unless they are outputs as they are."""
        gpu, rank = self.order.algorithm.gpus[memory[0]], self.ranks[memory]
        inputs = {location: f"y[{c}]" for location, _, c in self.meaning.inputs(gpu)}
        kept, arrivals = set(), list[Instruction]()
        for location, number in self.meaning.outputs(gpu):
            chunk = Chunk(gpu.number, location)
            written, block = self.order.last(chunk), f"y[{number}]"
            if written == MEMORY:
                kept.add(inputs.get(location, ""))
                continue
            step = self.order.nodes[written]
            name, where = f"{_name(chunk, written)} out", step.step.where
            self._post(step.thread, memory, _name(chunk, written), name, where)
            arrivals.append(Recv(self.ranks[step.thread], block, communicator=name, source=where))
        frees = [Free(block) for block in inputs.values() if block not in kept]
        self.ends[rank] += [*frees, *arrivals]

    def _step(self, number: int) -> None:
        node = self.order.nodes[number]
        where, thread = node.step.where, node.thread
        for earlier in self.order.before[number]:
            if number in self.dependents[earlier]:
                done = f"step {earlier}"
                self._take(
                    thread,
                    self.order.nodes[earlier].thread,
                    f"after {earlier}",
                    f"{done} {number}",
                    where,
                )
        read = self._read(number)
        into = list(self.order.writes(number))
        for place in range(node.step.chunks):
            self._chunk(number, node, read[place :: node.step.chunks], into[place : place + 1])
        if self.has_data:
            for chunk in into:
                self._carried(chunk, number, _name(chunk, number), where)
        for later in self.dependents[number]:
            self._post(
                thread, self.order.nodes[later].thread, "done", f"step {number} {later}", where
            )

    def _read(self, number: int) -> list[str]:
        """The blocks that a step reads; what another thread wrote is received before."""
        node, names = self.order.nodes[number], []
        for chunk in self.order.reads(number):
            if not self.has_data:
                names.append(_name(chunk, MEMORY))
                continue
            written = self.order.seen(chunk, number)
            writer, name = self._thread(chunk, written), _name(chunk, written)
            if writer != node.thread and self.readers[chunk, written][node.thread] == number:
                is_there = written != MEMORY or chunk.location in self._inputs(chunk.gpu)
                if is_there and name not in names:
                    self._take(node.thread, writer, name, name, node.step.where)
            names.append(name)
        return names

    def _inputs(self, gpu: int) -> set[tuple[str, int]]:
        return {location for location, _, _ in self.meaning.inputs(self.order.algorithm.gpus[gpu])}

    def _chunk(self, number: int, node: NumberedStep, read: list[str], into: list[Chunk]) -> None:
        """One chunk of a step: what it receives, adds and sends."""
        kind, where = node.step.kind, node.step.where
        result = _name(into[0], number) if into else f"sum@{number}"
        rank, line = self.ranks[node.thread], f"channel {node.block.channel}"
        nodes = self.lists[rank]
        if kind in RECEIVES:
            peer = self.order.peer(node, sends=False)
            came = f"came@{number}" if read else result
            source_rank = self.ranks[node.block.receives_from, peer.number]
            nodes.append(Recv(source_rank, came, communicator=line, source=where))
            read = [came, *read] if read else []
        if kind not in ("s", "nop") and read:
            nodes.append(Compute(tuple(read), result, source=where))
        if kind in SENDS:
            peer = self.order.peer(node, sends=True)
            block = read[0] if kind == "s" else result
            peer_rank = self.ranks[node.block.sends_to, peer.number]
            nodes.append(Send(peer_rank, block, communicator=line, source=where))


def _name(chunk: Chunk, written: int) -> str:
    buffer, place = chunk.location
    return f"{buffer}{place}@{'in' if written == MEMORY else written}"
