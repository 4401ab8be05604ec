"""Races: a block in flight that is accessed between its post and its wait.

Posts are deterministic, so a race depends on the instructions of one rank only. What is between a
post and its wait may run before or after the message or collective is done. A collective that
delivers two blocks with common elements of a tensor is a race too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

from primepar.schedule.meaning import Meaning
from primepar.schedule.program import (
    Alloc,
    Collective,
    Compute,
    Cut,
    Evict,
    Fetch,
    Free,
    Instruction,
    Join,
)
from primepar.schedule.program_uses import gets, gives
from primepar.verify.deadline import in_time
from primepar.verify.program.expected import meet
from primepar.verify.program.matching import Matching, MessageEnd, Operation, place


@dataclass(frozen=True, order=True)
class Race:
    """One instruction that accesses a block in flight, or a message that is never waited for."""

    index: int
    rank: int
    block: str
    sentence: str


class AccessedBlocks(NamedTuple):
    """Blocks that an instruction reads and writes; to free, evict or cut in place is to write."""

    reads: tuple[str, ...]
    writes: tuple[str, ...]


def touched(instruction: Instruction, rank: int) -> AccessedBlocks:
    """The blocks that one instruction accesses, without those of messages.

    A block that a collective reads and writes counts as written, as it may not be read meanwhile.
    """
    match instruction:
        case Compute(reads=reads, accumulates=block):
            return AccessedBlocks((*reads, block), (block,))
        case Cut(in_place=True) | Join(in_place=True):
            names = (instruction.block, *instruction.blocks)
            return AccessedBlocks(names[:1] if isinstance(instruction, Cut) else names[1:], names)
        case Cut(block=block, blocks=blocks):
            return AccessedBlocks((block,), blocks)
        case Join(block=block, blocks=blocks):
            return AccessedBlocks(blocks, (block,))
        case Alloc(block=block) | Free(block=block) | Fetch(block=block) | Evict(block=block):
            return AccessedBlocks((), (block,))
        case _ if isinstance(instruction, Collective):
            return AccessedBlocks(gives(instruction, rank), gets(instruction, rank))
        case _:
            return AccessedBlocks((), ())


def races(flow: Matching, meaning: Meaning) -> list[Race]:
    """All races, smallest instruction index first; then the requests that are never waited for."""
    leaked = {post for item in flow.leaked for post in getattr(item, "starts", ()) or (item,)}
    result = [race for operations in flow.operations for race in _of_rank(operations, leaked)]
    result += _shared(flow.calls, meaning)
    return sorted(result) + sorted(map(_leak, flow.leaked))


def _shared(calls: list[Operation], meaning: Meaning) -> Iterator[Race]:
    """Yield a race for each two blocks of one collective that share elements of a tensor."""
    for operation in in_time(calls):
        writes = touched(operation.instruction, operation.rank).writes
        places = {block: place_ for block in writes if (place_ := meaning.place(block))}
        cuts = {block.rpartition("[")[0] for block in places}
        if len(cuts) < 2 and len(set(places.values())) == len(places):
            continue  # blocks of one cut are disjoint
        for (first_block, first), (second_block, second) in combinations(places.items(), 2):
            if first.tensor == second.tensor and meet(first.box, second.box):
                sentence = (
                    f"{place(operation)}: expected disjoint blocks from one collective, got "
                    f"{first_block} and {second_block}, which share elements of {first.tensor}: "
                    "name blocks of one cut"
                )
                yield Race(operation.index, operation.rank, second_block, sentence)


class _Flight(NamedTuple):
    """The post that uses a block in flight; what it `writes` may not even be read."""

    posted: MessageEnd | Operation
    writes: bool


_InFlight = dict[str, list[_Flight]]
"""Block -> its flights on one rank."""


def _of_rank(operations: list[Operation], leaked: set[MessageEnd | Operation]) -> Iterator[Race]:
    in_flight: _InFlight = {}
    for operation in in_time(operations):
        if not in_flight and _is_alone(operation):
            continue
        if in_flight or operation.posts:
            reads, writes = touched(operation.instruction, operation.rank)
            yield from _conflicts(operation, reads, "read", in_flight, leaked)
            yield from _conflicts(operation, writes, "written", in_flight, leaked)
            if operation.posts:
                for block in {*reads, *writes}:
                    in_flight.setdefault(block, []).append(_Flight(operation, block in writes))
        for post in operation.starts:
            block, access = post.message.block, "read" if post.sends else "written"
            if block in in_flight:
                yield from _conflicts(operation, (block,), access, in_flight, leaked)
            in_flight.setdefault(block, []).append(_Flight(post, not post.sends))
        for posted in operation.awaits:
            _complete(in_flight, posted, (posted.message.block,))
        if operation.posted is not None:
            reads, writes = touched(operation.posted.instruction, operation.rank)
            _complete(in_flight, operation.posted, {*reads, *writes})


def _is_alone(operation: Operation) -> bool:
    """Whether it leaves nothing in flight, and no two of its messages use one block."""
    if operation.posts or operation.awaits != operation.starts:
        return False
    blocks = [post.message.block for post in operation.starts]
    return len(set(blocks)) == len(blocks)


def _complete(in_flight: _InFlight, posted: MessageEnd | Operation, blocks: Iterable[str]) -> None:
    for block in blocks:
        in_flight[block] = [flight for flight in in_flight[block] if flight.posted is not posted]
        if not in_flight[block]:
            del in_flight[block]


def _conflicts(
    operation: Operation,
    blocks: tuple[str, ...],
    access: str,
    in_flight: _InFlight,
    leaked: set[MessageEnd | Operation],
) -> Iterator[Race]:
    for block in blocks:
        for flight in in_flight.get(block, ()):
            if access == "written" or flight.writes:
                sentence = (
                    f"{place(operation)}: expected {block} to be left alone while "
                    f"{flight.posted} is in flight, got it {access}: "
                    f"{_fix(operation, flight.posted, leaked)}"
                )
                yield Race(operation.index, operation.rank, block, sentence)


def _fix(
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
    if isinstance(posted, MessageEnd):
        return str(posted.request)
    return str(getattr(posted.instruction, "request", ""))
