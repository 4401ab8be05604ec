"""The moments of one rank: which chunks each of its instructions uses, and what it makes and frees.

This is the warm-up trace of PatrickStar, read off the program instead of a first step. A message
uses its blocks at its post and at its wait, and keeps them where they are in between.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator
from itertools import chain
from typing import NamedTuple

from primepar.errors import ProgramError
from primepar.passes.block_uses import Names, Rank, followed, request_of
from primepar.passes.liveness import sizes_of
from primepar.passes.offload.policies import uses_of
from primepar.passes.offload.states import Chunks
from primepar.schedule.program import Instruction, Program, Wait
from primepar.schedule.program_uses import host_blocks, initial_blocks


class TraceMoment(NamedTuple):
    """One instruction. `chunks` are those that it uses, `in_flight` those of pending messages."""

    node: Instruction | None
    """None is the end of the list, where the blocks of `final` must be there."""
    blocks: Names
    made: Names
    gone: Names
    chunks: frozenset[Hashable]
    in_flight: frozenset[Hashable]


class Moments:
    """The trace of one rank. A block outside of all chunks is a chunk of its own."""

    def __init__(self, program: Program, rank: int, chunks: Chunks) -> None:
        self.chunks, self.states = chunks, frozenset(chunks.values())
        self._size = sizes_of(program)
        self._rank = Rank(rank)
        here, there = initial_blocks(program)[rank], host_blocks(program)[rank]
        self.initial = tuple(name for name in here if name not in chunks)
        self.host_initial = (*there, *(name for name in here if name in chunks))
        final = (program.final or ((),) * program.ranks)[rank]
        host_final = (program.host_final or ((),) * program.ranks)[rank]
        self.final = tuple(name for name in final if name not in chunks)
        self.host_final = (*host_final, *(name for name in final if name in chunks))
        self.stays = frozenset(self.initial) - frozenset(self.final)
        """Data of the step, which never moves."""
        self.trace = list(self._moments(program.programs[rank]))
        self.uses = uses_of([list(moment.chunks) for moment in self.trace])

    def chunk(self, block: str) -> Hashable:
        """Return the chunk of a block."""
        return self.chunks.get(block, block)

    def size(self, block: str) -> int:
        """Return the elements of a block. Raises `ProgramError` if they are unknown."""
        size = self._size(block)
        if size is None:
            raise ProgramError(f"expected the cuts of {block} in tensors, got none: add them")
        return size

    def _moments(self, nodes: tuple[Instruction, ...]) -> Iterator[TraceMoment]:
        pending = Counter[str]()
        for node, used in followed(nodes, self._rank):
            request = request_of(node)
            blocks = tuple(dict.fromkeys(chain(used.reads, used.made, used.gone)))
            if isinstance(node, Wait):
                pending.subtract(blocks)
            in_flight = self._chunks(name for name, count in pending.items() if count > 0)
            if request is not None and not isinstance(node, Wait):
                pending.update(blocks)
            made, gone = ((), ()) if isinstance(node, Wait) else (used.made, used.gone)
            yield TraceMoment(node, blocks, made, gone, self._chunks(blocks), in_flight)
        yield TraceMoment(None, self.final, (), (), self._chunks(self.final), frozenset())

    def _chunks(self, blocks: Iterable[str]) -> frozenset[Hashable]:
        return frozenset(map(self.chunk, blocks))

    def least(self) -> int:
        """Return the least elements with which every instruction can run."""
        live = {name: self.size(name) for name in (*self.initial, *self.host_initial)}
        held = Counter[Hashable]()
        for name, size in live.items():
            held[self.chunk(name)] += size
        most = sum(live[name] for name in self.initial)
        for moment in self.trace:
            for name in moment.gone:
                held[self.chunk(name)] -= live.pop(name, 0)
            for name in moment.made:
                if name not in live:
                    live[name] = self.size(name)
                    held[self.chunk(name)] += live[name]
            stays = {self.chunk(name) for name in self.stays & live.keys()}
            most = max(most, sum(held[key] for key in moment.chunks | moment.in_flight | stays))
        return most
