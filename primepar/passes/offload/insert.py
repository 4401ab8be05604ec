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

Which chunk goes is decided by the furthest next use. It is optimal for chunks of one size. Sizes
differ here (a chunk grows with the blocks that are made in it), so the least recently used order is
tried too, and the order that moves fewer elements is taken.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from primepar.errors import MemoryLimitError, ProgramError
from primepar.passes.liveness import sizes_of
from primepar.passes.offload.moments import Moments
from primepar.passes.offload.policies import POLICIES
from primepar.passes.offload.residency import Residency
from primepar.passes.offload.states import Chunks, largest_state, state_chunks
from primepar.schedule.program import Cut, Evict, Fetch, Free, Instruction, Join, Program
from primepar.schedule.program_uses import frees
from primepar.schedule.signature import Bound


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
