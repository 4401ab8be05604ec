"""Races: a block in flight that is touched between its post and its wait.

What is posted is deterministic, so a race is a matter of one rank's own instructions: what stands
between a post and its wait may run before the message or collective is done or after it. So is it
where one collective brings two blocks that share elements of a tensor.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

from primepar.schedule.meaning import Meaning
from primepar.schedule.program import (
    AllGather,
    Alloc,
    AllReduce,
    AllToAll,
    Broadcast,
    Compute,
    Cut,
    Evict,
    Fetch,
    Free,
    Instruction,
    Join,
    Reduce,
    ReduceScatter,
)
from primepar.verify.deadline import in_time
from primepar.verify.program.expected import meet
from primepar.verify.program.matching import Matching, MessageEnd, Operation, place


@dataclass(frozen=True, order=True)
class Race:
    """One instruction that touches a block in flight, or a message that is never waited for."""

    index: int
    rank: int
    block: str
    sentence: str


class AccessedBlocks(NamedTuple):
    """Blocks that an instruction reads and writes (to free, evict or cut it up is to write it)."""

    reads: tuple[str, ...]
    writes: tuple[str, ...]


def touched(instruction: Instruction, rank: int) -> AccessedBlocks:
    """What one instruction touches, the blocks of messages left out.

    A block that a collective takes and gives back is written, as it may not be read meanwhile.
    """
    match instruction:
        case Compute(reads=reads, accumulates=block):
            return AccessedBlocks((*reads, block), (block,))
        case AllReduce(block=block):
            return AccessedBlocks((block,), (block,))
        case Reduce(block=block, root=root):
            return AccessedBlocks((block,), (block,) if rank == root else ())
        case Broadcast(block=block, root=root):
            return AccessedBlocks((block,), ()) if rank == root else AccessedBlocks((), (block,))
        case Cut(in_place=True) | Join(in_place=True):
            names = (instruction.block, *instruction.blocks)
            return AccessedBlocks(names[:1] if isinstance(instruction, Cut) else names[1:], names)
        case AllGather(block=block, blocks=blocks) | Cut(block=block, blocks=blocks):
            return AccessedBlocks((block,), blocks)
        case ReduceScatter(block=block, blocks=blocks) | Join(block=block, blocks=blocks):
            return AccessedBlocks(blocks, (block,))
        case AllToAll(blocks=blocks, into=into):
            return AccessedBlocks(blocks, into)
        case Alloc(block=block) | Free(block=block) | Fetch(block=block) | Evict(block=block):
            return AccessedBlocks((), (block,))
        case _:
            return AccessedBlocks((), ())


def races(flow: Matching, meaning: Meaning) -> list[Race]:
    """All races, smallest instruction index first; then what is never waited for."""
    leaked = set(flow.leaked)
    found = [race for operations in flow.operations for race in _of_rank(operations, leaked)]
    found += _shared(flow.calls, meaning)
    return sorted(found) + sorted(_leak(posted) for posted in leaked)


def _shared(calls: list[Operation], meaning: Meaning) -> Iterator[Race]:
    """Blocks that one collective brings to one place: each would replace the other there."""
    for operation in in_time(calls):
        writes = touched(operation.instruction, operation.rank).writes
        at = {block: found for block in writes if (found := meaning.place(block))}
        cuts = {block.rpartition("[")[0] for block in at}
        if len(cuts) < 2 and len(set(at.values())) == len(at):
            continue  # blocks of one cut are disjoint
        for (one, first), (other, second) in combinations(at.items(), 2):
            if first.tensor == second.tensor and meet(first.box, second.box):
                sentence = (
                    f"{place(operation)}: expected disjoint blocks from one collective, got {one} "
                    f"and {other}, which share elements of {first.tensor}: name blocks of one cut"
                )
                yield Race(operation.index, operation.rank, other, sentence)


class _Flight(NamedTuple):
    """What uses a block in flight, and whether the block may not even be read."""

    posted: MessageEnd | Operation
    gets: bool


_Flying = dict[str, list[_Flight]]
"""Flights of one rank by the block in flight."""


def _of_rank(operations: list[Operation], leaked: set[MessageEnd | Operation]) -> Iterator[Race]:
    flying: _Flying = {}
    for operation in in_time(operations):
        if not flying and _is_alone(operation):
            continue
        if flying or operation.posts:
            reads, writes = touched(operation.instruction, operation.rank)
            yield from _clashes(operation, reads, "read", flying, leaked)
            yield from _clashes(operation, writes, "written", flying, leaked)
            if operation.posts:
                for block in {*reads, *writes}:
                    flying.setdefault(block, []).append(_Flight(operation, block in writes))
        for post in operation.starts:
            block, how = post.message.block, "read" if post.sends else "written"
            if block in flying:
                yield from _clashes(operation, (block,), how, flying, leaked)
            flying.setdefault(block, []).append(_Flight(post, not post.sends))
        for posted in operation.awaits:
            _land(flying, posted, (posted.message.block,))
        if operation.posted is not None:
            reads, writes = touched(operation.posted.instruction, operation.rank)
            _land(flying, operation.posted, {*reads, *writes})


def _is_alone(operation: Operation) -> bool:
    """Whether it leaves nothing in flight, and touches no block by two messages."""
    if operation.posts or operation.awaits != operation.starts:
        return False
    blocks = [post.message.block for post in operation.starts]
    return len(set(blocks)) == len(blocks)


def _land(flying: _Flying, posted: MessageEnd | Operation, blocks: Iterable[str]) -> None:
    for block in blocks:
        flying[block] = [flight for flight in flying[block] if flight.posted is not posted]
        if not flying[block]:
            del flying[block]


def _clashes(
    operation: Operation,
    blocks: tuple[str, ...],
    how: str,
    flying: _Flying,
    leaked: set[MessageEnd | Operation],
) -> Iterator[Race]:
    for block in blocks:
        for flight in flying.get(block, ()):
            if how == "written" or flight.gets:
                sentence = (
                    f"{place(operation)}: expected {block} to be left alone while "
                    f"{flight.posted} is in flight, got it {how}: "
                    f"{_mend(operation, flight.posted, leaked)}"
                )
                yield Race(operation.index, operation.rank, block, sentence)


def _mend(
    operation: Operation, posted: MessageEnd | Operation, leaked: set[MessageEnd | Operation]
) -> str:
    if posted.index == operation.index:
        return "two messages of one group need two blocks"
    if posted in leaked:
        return f"add a wait for {_request(posted)!r} before this instruction"
    return f"move its wait for {_request(posted)!r} before this instruction, or use another block"


def _leak(posted: MessageEnd | Operation) -> Race:
    sentence = (
        f"{place(posted)}: expected a wait for {_request(posted)!r}, got none before the request "
        "is posted again or the program ends: add the wait"
    )
    return Race(posted.index, posted.rank, _request(posted), sentence)


def _request(posted: MessageEnd | Operation) -> str:
    node = posted.message if isinstance(posted, MessageEnd) else posted.instruction
    return str(getattr(node, "request", ""))
