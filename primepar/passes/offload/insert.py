"""The pass that puts fetches and evictions into a program, so that each rank obeys a limit.

All states (see `states`) start and end in host memory. Before an instruction, the chunks of all
blocks that it names are fetched, whole. If they do not fit together with what is there, chunks that
nothing uses now are evicted first. States go before other blocks, which are one chunk each. What a
program is given and does not end with, such as its tokens, stays on the device.

    compute  y += x * w          fetch    w
    compute  z += y * v          compute  y += x * w
                           ->    evict    w
                                 fetch    v
                                 compute  z += y * v
                                 evict    v

A trace lists for every moment of a step the chunks that are used together. The first step records
it, and every later step has the same one, so the next use of each chunk is known (PatrickStar's
warm-up step); here it is read off the program. A message uses its blocks at its post and at its
wait, and keeps them where they are in between. A chunk without a later use in this step is used
next in the following one.

The chunk with the furthest next use is evicted: Belady's rule (1966), which makes the fewest
transfers where all chunks have one size. Example: two chunks fit, and the trace is a, b, c, a. At c
both a and b could go; a is used in the next moment and b only in the next step, so b is evicted.
Sizes differ here (a chunk grows with the blocks that are made in it), so the least recently used
order is tried too, and the order that moves fewer elements is taken.

Why it keeps the limit: what an instruction names, what is in flight and what stays is at most
`least_limit`, before the instruction (when its chunks are fetched) and after it (when it has made
its blocks). Everything else can be evicted.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

from msgspec.structs import replace

from primepar.errors import MemoryLimitError, ProgramError
from primepar.passes.block_uses import Names, Rank, RankList, request_of
from primepar.passes.liveness import sizes_of
from primepar.passes.offload.chunks import Chunks, largest_state, state_chunks
from primepar.schedule.effects import frees, host_blocks, initial_blocks
from primepar.schedule.program import Cut, Evict, Fetch, Free, Instruction, Join, Program, Wait
from primepar.schedule.signature import Bound

Trace = Sequence[Sequence[Hashable]]
"""The chunks that are used at every moment of a step."""
Uses = Mapping[Hashable, Sequence[int]]
"""Chunk -> the moments at which it is used, in order."""
Policy = Callable[[Uses, int, Hashable, int], int]
"""(uses, moments in a step, chunk, moment) -> a rank; the chunk with the largest is evicted."""


def uses_of(trace: Trace) -> dict[Hashable, list[int]]:
    """Return for every chunk of a trace its moments."""
    uses: dict[Hashable, list[int]] = {}
    for moment, chunks in enumerate(trace):
        for chunk in dict.fromkeys(chunks):
            uses.setdefault(chunk, []).append(moment)
    return uses


def furthest_next_use(uses: Uses, moments: int, chunk: Hashable, moment: int) -> int:
    """Rank a chunk by its next use after a moment, which may be in the next step."""
    known = uses.get(chunk, ())
    place = bisect_right(known, moment)
    if place < len(known):
        return known[place]
    # `moments + known[0]`: the same moment of the next step, as every step has the same trace.
    return moments + known[0] if known else 2 * moments


def least_recently_used(uses: Uses, moments: int, chunk: Hashable, moment: int) -> int:
    """Rank a chunk by the time since its last use, which may be in the step before."""
    known = uses.get(chunk, ())
    place = bisect_right(known, moment) - 1
    if place >= 0:
        return moment - known[place]
    return moment + moments - known[-1] if known else 2 * moments


POLICIES: dict[str, Policy] = {
    "furthest next use": furthest_next_use,
    "least recently used": least_recently_used,
}


def transfers(trace: Trace, room: int, policy: Policy) -> int:
    """Return the transfers of a step: fetches, and as many evictions.

    Chunks have one size, `room` of them fit on the device, and all are on the host between steps.
    Raises `ValueError` if a moment uses more chunks than fit.
    """
    uses, fetched = uses_of(trace), 0
    here: set[Hashable] = set()
    for moment, chunks in enumerate(trace):
        needed = dict.fromkeys(chunks)
        if len(needed) > room:
            raise ValueError(f"expected room for {len(needed)} chunks, got {room}")
        missing = [chunk for chunk in needed if chunk not in here]
        # At the moment c of the header's trace a, b, c, a with room for two: a is used at 3, b
        # again at 1 + 4 in the next step. So b goes.
        while len(here) + len(missing) > room:
            idle = sorted((chunk for chunk in here if chunk not in needed), key=str)
            here.remove(max(idle, key=lambda chunk: policy(uses, len(trace), chunk, moment)))
        here.update(missing)
        fetched += len(missing)
    return 2 * fetched


def offload(
    program: Program,
    limit: int,
    capacity: int | None = None,
    chunks: Sequence[Chunks] | None = None,
) -> Program:
    """Return the program with fetches and evictions, at most `limit` live elements per device.

    States are packed into chunks of `capacity` elements, by default those of the largest block;
    or `chunks` gives for every rank the chunk of each block of its states. The bound is recorded in
    `program.memory`. Raises `MemoryLimitError` for a limit below the minimum, or a chunk that is
    smaller than a block, and `ProgramError` for a program without `final`, with transfers already,
    or with a block of unknown size.
    """
    ranks = _ranks(program, capacity, chunks)
    least = max(moments.least() for moments in ranks)
    if limit < least:
        raise MemoryLimitError(
            f"device memory: expected at least {least} elements, which one instruction needs "
            f"together with what cannot move, got {limit}: take {least} or more, or smaller chunks",
            least,
        )
    lists = [
        # Belady is best for chunks of one size; where they grow, neither order is, so both are run.
        min((Residency(moments, policy, limit) for policy in POLICIES.values()),
            key=lambda run: run.moved)
        for moments in ranks
    ]  # fmt: skip
    bound = Bound(limit, None if program.memory is None else program.memory.host)
    return replace(
        program,
        programs=tuple(tuple(run.nodes) for run in lists),
        initial=tuple(moments.initial for moments in ranks),
        final=tuple(moments.final for moments in ranks),
        host_initial=tuple(moments.host_initial for moments in ranks),
        host_final=tuple(moments.host_final for moments in ranks),
        memory=bound,
    )


def least_limit(
    program: Program, capacity: int | None = None, chunks: Sequence[Chunks] | None = None
) -> int:
    """Return the least limit that `offload` can keep, in elements. Raises what `offload` raises."""
    return max(moments.least() for moments in _ranks(program, capacity, chunks))


def with_copies(program: Program) -> Program:
    """Return the program with the parts of cuts and joins freed after them, not used in place.

    So it counts the memory of an executor that copies them.
    """
    return replace(program, programs=tuple(tuple(_copying(nodes)) for nodes in program.programs))


def _copying(nodes: Sequence[Instruction]) -> Iterator[Instruction]:
    for node in nodes:
        if isinstance(node, Cut | Join) and node.in_place:
            yield replace(node, in_place=False)
            yield from map(Free, frees(node))
        else:
            yield node


def moved_elements(program: Program) -> list[int]:
    """Return for every rank the elements that its fetches and evictions move."""
    size = sizes_of(program)
    return [
        sum(size(node.block) or 0 for node in nodes if isinstance(node, Fetch | Evict))
        for nodes in program.programs
    ]


def _ranks(
    program: Program, capacity: int | None, chunks: Sequence[Chunks] | None
) -> list[Moments]:
    if program.final is None:
        raise ProgramError("expected final in a program that is to be offloaded, got none: add it")
    if any(isinstance(node, Fetch | Evict) for nodes in program.programs for node in nodes):
        raise ProgramError(
            "expected a program without transfers between host and device, got some: leave them out"
        )
    if chunks is None:
        chunks = state_chunks(program, largest_state(program) if capacity is None else capacity)
    return [Moments(program, rank, known) for rank, known in enumerate(chunks)]


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
        # Tokens are read once and thrown away: to evict them would be two transfers for nothing.
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
        for node, used in zip(nodes, RankList(nodes, self._rank).uses, strict=True):
            request = request_of(node)
            blocks = tuple(dict.fromkeys(chain(used.reads, used.made, used.gone)))
            if isinstance(node, Wait):
                # Counted, not a set: a block may be sent to two ranks, and is in flight until both
                # waits.
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
            # What cannot be evicted at this moment, whatever the policy is.
            here = moment.chunks | moment.in_flight | self.stays
            # Before it too: `free x` needs x, which may have to be fetched.
            most = max(most, sum(held[key] for key in here))
            for name in moment.gone:
                held[self.chunk(name)] -= live.pop(name, 0)
            for name in moment.made:
                if name not in live:
                    live[name] = self.size(name)
                    held[self.chunk(name)] += live[name]
            most = max(most, sum(held[key] for key in here))
        return most


class Residency:
    """One rank's list with its transfers, `nodes`, and the elements that they move, `moved`."""

    def __init__(self, moments: Moments, policy: Policy, limit: int) -> None:
        self.moments, self.policy, self.limit = moments, policy, limit
        self.nodes: list[Instruction] = []
        self.moved = 0
        self._device: dict[Hashable, dict[str, int]] = {}
        self._host: dict[Hashable, dict[str, int]] = {}
        """Chunk -> its blocks there, with their elements."""
        self._total = 0
        for name in moments.initial:
            self._make(name)
        for name in moments.host_initial:
            self._host.setdefault(moments.chunk(name), {})[name] = moments.size(name)
        for place, moment in enumerate(moments.trace):
            if moment.node is None:
                self._end()
            self._access(place, moment)

    def _make(self, name: str) -> None:
        blocks = self._device.setdefault(self.moments.chunk(name), {})
        if name not in blocks:
            blocks[name] = self.moments.size(name)
            self._total += blocks[name]

    def _access(self, place: int, moment: TraceMoment) -> None:
        """Fetch the chunks of an instruction, after evictions that make room, and run it."""
        # A chunk comes whole, with blocks that this instruction does not name: its next uses are
        # near.
        missing = sorted((key for key in moment.chunks if self._host.get(key)), key=str)
        needed = self._growth(moment, missing)
        # This ends: with everything evicted but what `least` counts, the total is at most the
        # limit.
        while self._total + needed > self.limit:
            self._evict(self._next(place, moment))
        for key in missing:
            self._fetch(key)
        if moment.node is None:
            return
        self.nodes.append(moment.node)
        for name in moment.gone:
            self._total -= self._device[self.moments.chunk(name)].pop(name, 0)
        for name in moment.made:
            self._make(name)

    def _growth(self, moment: TraceMoment, missing: list[Hashable]) -> int:
        """Return the most elements that fetches, and then the instruction, add.

        Example: `free x` of an evicted x adds x until it runs.
        """
        size, chunk = self.moments.size, self.moments.chunk
        coming = {name for key in missing for name in self._host[key]}
        there = coming | {
            name for name in moment.blocks if name in self._device.get(chunk(name), ())
        }
        after = (there | set(moment.made)) - (set(moment.gone) - set(moment.made))
        fetched = sum(map(size, coming))
        added = sum(map(size, after - there)) - sum(map(size, there - after))
        # The instruction's peak is before it (all it reads is there) or after it (all it made is).
        return fetched + max(0, added)

    def _next(self, place: int, moment: TraceMoment) -> Hashable:
        """Return the chunk to evict: a state if one may move, else another block."""
        kept = moment.chunks | moment.in_flight | self.moments.stays
        movable = [key for key, blocks in self._device.items() if blocks and key not in kept]
        uses, count = self.moments.uses, len(self.moments.trace)
        return max(
            movable,
            key=lambda key: (
                # States first: they end on the host anyway, so an eviction of one may be its last.
                key in self.moments.states, self.policy(uses, count, key, place), str(key)
            ),
        )  # fmt: skip

    def _evict(self, key: Hashable) -> None:
        blocks = self._device.pop(key)
        self.nodes += map(Evict, blocks)
        self._host.setdefault(key, {}).update(blocks)
        self._total -= sum(blocks.values())
        self.moved += sum(blocks.values())

    def _fetch(self, key: Hashable) -> None:
        blocks = self._host.pop(key)
        self.nodes += map(Fetch, blocks)
        self._device.setdefault(key, {}).update(blocks)
        self._total += sum(blocks.values())
        self.moved += sum(blocks.values())

    def _end(self) -> None:
        """Evict the states: they end in host memory."""
        for key in [key for key in self._device if key in self.moments.states]:
            self._evict(key)
