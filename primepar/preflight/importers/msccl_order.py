"""The order of the steps of an MSCCL algorithm, and which write every read of a chunk sees.

A step follows the one before it in its thread block, the step that it depends on, and the sender of
what it receives. Two accesses of a chunk of a GPU, one of them a write, must be ordered so; where
they are not, they race. Then every read sees the last write before it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from itertools import combinations
from typing import NamedTuple

from primepar.errors import FormatError, ThreadRaceError
from primepar.preflight.importers.msccl_file import (
    RECEIVES,
    SENDS,
    Algorithm,
    Gpu,
    Location,
    Step,
    ThreadBlock,
)
from primepar.preflight.importers.msccl_meaning import CollectiveMeaning

MEMORY = -1
"""In place of a write: the chunk is as it was at the start."""


class NumberedStep(NamedTuple):
    """A step with its place in its thread block."""

    gpu: Gpu
    block: ThreadBlock
    place: int
    step: Step

    @property
    def thread(self) -> tuple[int, int]:
        """GPU and thread block."""
        return self.gpu.number, self.block.number


class Chunk(NamedTuple):
    """A chunk of a GPU."""

    gpu: int
    location: Location


class StepOrder:
    """All steps of an algorithm, in numbers, and their order."""

    def __init__(self, algorithm: Algorithm, meaning: CollectiveMeaning) -> None:
        self.algorithm, self._meaning = algorithm, meaning
        self.nodes = [
            NumberedStep(gpu, block, place, step)
            for gpu in algorithm.gpus
            for block in gpu.blocks
            for place, step in enumerate(block.steps)
        ]
        self._number = {(node.thread, node.place): n for n, node in enumerate(self.nodes)}
        self.before = [list(self._before(node)) for node in self.nodes]

    def _before(self, node: NumberedStep) -> Iterator[int]:
        gpu, block, place, step = node
        if place:
            yield self._number[node.thread, place - 1]
        if step.after is not None:
            yield self._number[(gpu.number, step.after[0]), step.after[1]]
        if step.kind in RECEIVES:
            sender = self.peer(node, sends=False)
            sends = [
                n
                for n, s in enumerate(sender.steps)
                for _ in range(s.chunks if s.kind in SENDS else 0)
            ]
            received = sum(s.chunks for s in block.steps[:place] if s.kind in RECEIVES)
            for place_of_send in dict.fromkeys(sends[received : received + step.chunks]):
                yield self._number[(block.receives_from, sender.number), place_of_send]

    def peer(self, node: NumberedStep, sends: bool) -> ThreadBlock:
        """The thread block at the other end of a connection. Raises `FormatError` if none is."""
        gpu, block = node.gpu.number, node.block
        other_gpu = block.sends_to if sends else block.receives_from
        for gpu_of_peer in self.algorithm.gpus[other_gpu : other_gpu + 1]:
            for peer in gpu_of_peer.blocks:
                end = peer.receives_from if sends else peer.sends_to
                if end == gpu and peer.channel == block.channel:
                    return peer
        verb = "receives from" if sends else "sends to"
        raise FormatError(
            f"{node.step.where}: expected a thread block of gpu {other_gpu} that {verb} gpu {gpu} "
            f"on channel {block.channel}, got none"
        )

    @cached_property
    def earlier(self) -> list[int] | None:
        """For each step a set of bits, those of the steps before it; None if steps are a circle."""
        try:
            order = list(TopologicalSorter(dict(enumerate(self.before))).static_order())
        except CycleError:
            return None
        bits = [0] * len(self.nodes)
        for node in order:
            for earlier_node in self.before[node]:
                bits[node] |= bits[earlier_node] | 1 << earlier_node
        return bits

    def reads(self, number: int) -> Iterator[Chunk]:
        """Yield the chunks that a step reads, in the order of its chunks."""
        node = self.nodes[number]
        if node.step.kind in ("s", "rrc", "rrs", "rrcs", "re", "cpy"):
            yield from self._chunks(node, node.step.source)
        if node.step.kind == "re":
            yield from self._chunks(node, node.step.destination)

    def writes(self, number: int) -> Iterator[Chunk]:
        """Yield the chunks that a step writes."""
        node = self.nodes[number]
        if node.step.kind in ("r", "rcs", "rrc", "rrcs", "re", "cpy"):
            yield from self._chunks(node, node.step.destination)

    def _chunks(self, node: NumberedStep, first: Location) -> Iterator[Chunk]:
        buffer, chunk = first
        for offset in range(node.step.chunks):
            location = self._meaning.canonical(node.gpu, (buffer, chunk + offset))
            yield Chunk(node.gpu.number, location)

    @cached_property
    def writers(self) -> dict[Chunk, list[int]]:
        """Chunk -> the steps that write it, in their order."""
        bits = self.earlier or []
        return {
            chunk: sorted((n for n in steps if steps[n]), key=lambda n: bits[n].bit_count())
            for chunk, steps in self._accesses.items()
        }

    @cached_property
    def _accesses(self) -> dict[Chunk, dict[int, bool]]:
        """Chunk -> the steps that access it, and whether they write it."""
        accesses: dict[Chunk, dict[int, bool]] = defaultdict(dict)
        for number in range(len(self.nodes)):
            for chunk in self.reads(number):
                accesses[chunk].setdefault(number, False)
            for chunk in self.writes(number):
                accesses[chunk][number] = True
        return accesses

    def check_races(self) -> None:
        """Raise `ThreadRaceError` for a race. Steps that wait in a circle are asked nothing."""
        for chunk, steps in self._accesses.items() if self.earlier is not None else ():
            for (first, writes), (second, also_writes) in combinations(steps.items(), 2):
                if writes or also_writes:
                    self._check_order(chunk, first, second)

    def _check_order(self, chunk: Chunk, first: int, second: int) -> None:
        bits = self.earlier
        assert bits is not None
        if not (bits[second] >> first & 1 or bits[first] >> second & 1):
            one, two = (self.nodes[number] for number in (first, second))
            name = "".join(map(str, chunk.location))
            raise ThreadRaceError(
                f"{one.step.where}: expected an order of it and tb {two.block.number}, step "
                f"{two.place}, which access {name} of gpu {chunk.gpu}, got none: give one of them "
                "a dependency on the other"
            )

    def seen(self, chunk: Chunk, number: int) -> int:
        """The step whose write of a chunk a step sees; `MEMORY` if none wrote it before."""
        bits = self.earlier
        assert bits is not None
        before = [w for w in self.writers.get(chunk, ()) if bits[number] >> w & 1]
        return before[-1] if before else MEMORY

    def last(self, chunk: Chunk) -> int:
        """The step whose write of a chunk is there at the end."""
        return (self.writers.get(chunk) or [MEMORY])[-1]
