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
    """All races, smallest instruction index first; then what is never waited for."""
    leaked = set(flow.leaked)
    found = [race for operations in flow.operations for race in _of_rank(operations, leaked)]
    return sorted(found) + sorted(_leak(post) for post in leaked)


def _of_rank(operations: list[Operation], leaked: set[Post]) -> Iterator[Race]:
    flying: dict[str, list[Post]] = {}
    for operation in operations:
        if isinstance(operation.instruction, Wait):
            _land(flying, operation.awaits)
            continue
        reads, writes = touched(operation.instruction, operation.rank)
        touches = [(block, "read") for block in reads] + [(block, "written") for block in writes]
        yield from _clashes(operation, touches, flying, leaked)
        for post in operation.starts:
            touch = (post.message.block, "read" if post.sends else "written")
            yield from _clashes(operation, [touch], flying, leaked)
            flying.setdefault(post.message.block, []).append(post)
        _land(flying, operation.awaits)


def _land(flying: dict[str, list[Post]], posts: tuple[Post, ...]) -> None:
    for post in posts:
        flying[post.message.block].remove(post)


def _clashes(
    operation: Operation,
    touches: list[tuple[str, str]],
    flying: dict[str, list[Post]],
    leaked: set[Post],
) -> Iterator[Race]:
    for block, how in touches:
        for post in flying.get(block, ()):
            if how == "written" or not post.sends:
                sentence = (
                    f"{place(operation)}: expected {block} to be left alone while {post} is in "
                    f"flight, got it {how}: {_mend(operation, post, leaked)}"
                )
                yield Race(operation.index, operation.rank, block, sentence)


def _mend(operation: Operation, post: Post, leaked: set[Post]) -> str:
    if post.index == operation.index:
        return "two messages of one group need two blocks"
    request = getattr(post.message, "request", "")
    if post in leaked:
        return f"add a wait for {request!r} before this instruction"
    return f"move its wait for {request!r} before this instruction, or use another block"


def _leak(post: Post) -> Race:
    request = getattr(post.message, "request", "")
    sentence = (
        f"{place(post)}: expected a wait for {request!r}, got none before the request is posted "
        "again or the program ends: add the wait"
    )
    return Race(post.index, post.rank, post.message.block, sentence)
