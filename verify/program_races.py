"""Races: a block in flight that is touched between its post and its wait.

Messages are deterministic, so a race is a matter of one rank's own instructions: what stands
between a post and its wait may run before the message is done or after it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from primepar.schedule.program import (
    AllGather,
    Alloc,
    AllReduce,
    AllToAll,
    Broadcast,
    Compute,
    Evict,
    Fetch,
    Free,
    Instruction,
    Reduce,
    ReduceScatter,
    Wait,
)
from primepar.verify.program_flow import Flow, Operation, Post, place


@dataclass(frozen=True, order=True)
class Race:
    """One instruction that touches a block in flight, or a message that is never waited for."""

    index: int
    rank: int
    block: str
    sentence: str


class Touched(NamedTuple):
    """Blocks that an instruction reads and writes (to free or evict a block is to write it)."""

    reads: tuple[str, ...]
    writes: tuple[str, ...]


def touched(instruction: Instruction, rank: int) -> Touched:
    """What one instruction touches, the blocks of messages left out."""
    match instruction:
        case Compute(reads=reads, accumulates=block):
            return Touched((*reads, block), (block,))
        case AllReduce(block=block):
            return Touched((block,), (block,))
        case Reduce(block=block, root=root):
            return Touched((block,), (block,) if rank == root else ())
        case Broadcast(block=block, root=root):
            return Touched((block,), ()) if rank == root else Touched((), (block,))
        case AllGather(block=block, blocks=blocks):
            return Touched((block,), blocks)
        case ReduceScatter(block=block, blocks=blocks):
            return Touched(blocks, (block,))
        case AllToAll(blocks=blocks, into=into):
            return Touched(blocks, into)
        case Alloc(block=block) | Free(block=block) | Fetch(block=block) | Evict(block=block):
            return Touched((), (block,))
        case _:
            return Touched((), ())


def races(flow: Flow) -> list[Race]:
    """All races of a program, smallest instruction index first."""
    found = [race for operations in flow.operations for race in _of_rank(operations)]
    found += [_leak(post, flow) for post in flow.leaked]
    return sorted(found)


def _of_rank(operations: list[Operation]) -> Iterator[Race]:
    flying: dict[str, list[Post]] = {}
    for operation in operations:
        if isinstance(operation.instruction, Wait):
            _land(flying, operation.awaits)
            continue
        reads, writes = touched(operation.instruction, operation.rank)
        yield from _clashes(operation, reads, "read", flying)
        yield from _clashes(operation, writes, "written", flying)
        for post in operation.starts:
            block = (post.message.block,)
            yield from _clashes(operation, block, "read" if post.sends else "written", flying)
            flying.setdefault(post.message.block, []).append(post)
        _land(flying, operation.awaits)


def _land(flying: dict[str, list[Post]], posts: tuple[Post, ...]) -> None:
    for post in posts:
        flying[post.message.block].remove(post)


def _clashes(
    operation: Operation, blocks: tuple[str, ...], how: str, flying: dict[str, list[Post]]
) -> Iterator[Race]:
    for block in blocks:
        for post in flying.get(block, ()):
            if how == "written" or not post.sends:
                yield Race(
                    operation.index, operation.rank, block, _clash(operation, block, how, post)
                )


def _clash(operation: Operation, block: str, how: str, post: Post) -> str:
    if post.index == operation.index:
        mend = "two messages of one group need two blocks"
    else:
        request = getattr(post.message, "request", "")
        mend = f"move its wait for {request!r} before this instruction, or use another block"
    return (
        f"{place(operation)}: expected {block} to be left alone while {post} is in flight, "
        f"got it {how}: {mend}"
    )


def _leak(post: Post, flow: Flow) -> Race:
    request = getattr(post.message, "request", "")
    sentence = (
        f"{place(post)}: expected a wait for {request!r}, got none before the request is posted "
        "again or the program ends: add the wait"
    )
    return Race(post.index, post.rank, post.message.block, sentence)
