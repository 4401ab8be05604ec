"""Which blocks an instruction needs, which it makes, and so what is there before a program."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from primepar.schedule.program import (
    AllGather,
    Alloc,
    AllReduce,
    AllToAll,
    Barrier,
    Broadcast,
    Collective,
    Compute,
    Cut,
    Evict,
    Fetch,
    Free,
    Gather,
    Group,
    Instruction,
    IRecv,
    ISend,
    Join,
    Program,
    Recv,
    Reduce,
    ReduceScatter,
    Scatter,
    Send,
)


def gives(collective: Collective, rank: int) -> tuple[str, ...]:
    """Names of the blocks that a member sends."""
    match collective:
        case Barrier():
            return ()
        case Broadcast(block=block, root=root):
            return (block,) if rank == root else ()
        case Scatter(blocks=blocks):
            return blocks
        case ReduceScatter(blocks=blocks) | AllToAll(blocks=blocks):
            return blocks
        case AllReduce():
            return collective.reduced
        case _:
            return (collective.block,)


def gets(collective: Collective, rank: int) -> tuple[str, ...]:
    """Names of the blocks that a member ends with."""
    match collective:
        case Barrier():
            return ()
        case AllGather(blocks=blocks) | Gather(blocks=blocks):
            return blocks
        case AllToAll(into=into):
            return into
        case Reduce(block=block, root=root):
            return (block,) if rank == root else ()
        case Broadcast(block=block, root=root):
            return (block,) if rank != root else ()
        case AllReduce():
            return collective.reduced
        case _:
            return (collective.block,)


def uses(instruction: Instruction, rank: int) -> tuple[str, ...]:
    """Blocks that must be there for an instruction; a sum that starts at zero need not."""
    match instruction:
        case Compute(reads=reads) | Join(blocks=reads):
            return reads
        case Send() | ISend() | Evict() | Free() | Cut():
            return (instruction.block,)
        case Group(body=body):
            return tuple(name for message in body for name in uses(message, rank))
        case _ if isinstance(instruction, Collective):
            return gives(instruction, rank)
        case _:
            return ()


def writes(instruction: Instruction, rank: int) -> tuple[str, ...]:
    """Blocks that an instruction makes or replaces."""
    match instruction:
        case Compute(accumulates=block):
            return (block,)
        case Cut(blocks=blocks):
            return blocks
        case Recv() | IRecv() | Alloc() | Fetch() | Join():
            return (instruction.block,)
        case Group(body=body):
            return tuple(name for message in body for name in writes(message, rank))
        case _ if isinstance(instruction, Collective):
            return gets(instruction, rank)
        case _:
            return ()


def frees(instruction: Instruction) -> tuple[str, ...]:
    """Blocks that are not on the device after an instruction: of what it writes, its own are."""
    match instruction:
        case Free(block=block) | Evict(block=block) | Cut(block=block, in_place=True):
            return (block,)
        case Join(blocks=blocks, in_place=True):
            return blocks
        case _:
            return ()


def initial_blocks(program: Program) -> tuple[tuple[str, ...], ...]:
    """What every device holds before the program: `initial`, or what it uses before a write."""
    if program.initial is not None:
        return program.initial
    return tuple(_used_first(program, rank) for rank in range(program.ranks))


def _used_first(program: Program, rank: int) -> tuple[str, ...]:
    written: set[str] = set()
    first: dict[str, None] = {}
    for instruction in program.programs[rank]:
        first.update(dict.fromkeys(name for name in uses(instruction, rank) if name not in written))
        written.update(writes(instruction, rank))
    return tuple(first)


def host_blocks(program: Program) -> tuple[tuple[str, ...], ...]:
    """What every host memory holds before the program: `host_initial`, and no more with `initial`.

    Without `initial` a block whose first instruction on this rank fetches it.
    """
    if program.initial is not None:
        return program.host_initial or ((),) * program.ranks
    return tuple(_fetched_first(program, rank) for rank in range(program.ranks))


def _fetched_first(program: Program, rank: int) -> tuple[str, ...]:
    known: set[str] = set()
    first: dict[str, None] = {}
    for instruction in program.programs[rank]:
        if isinstance(instruction, Fetch) and instruction.block not in known:
            first[instruction.block] = None
        known.update(uses(instruction, rank), writes(instruction, rank))
    return tuple(first)


def live_elements(program: Program, rank: int, elements: Callable[[str], Any]) -> Iterator[Any]:
    """Yield the elements live on a rank at its start, and after each instruction that adds some.

    Buffers of posted receives are live from the post on. `elements` gives numbers, or arrays with
    one for each of several shapes.
    """
    live = {block: elements(block) for block in initial_blocks(program)[rank]}
    now = sum(live.values())
    yield now
    for node in program.programs[rank]:
        for block in frees(node):
            now = now - live.pop(block, 0)
        new = [block for block in writes(node, rank) if block not in live]
        for block in new:
            live[block] = elements(block)
            now = now + live[block]
        if new:
            yield now


def peak(program: Program, rank: int, elements: Callable[[str], int]) -> int:
    """Most elements live at once on a rank."""
    return int(max(live_elements(program, rank, elements)))
