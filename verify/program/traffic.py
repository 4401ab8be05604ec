"""Traffic: how many elements each rank sends, by its own messages and collectives.

Collectives are counted as the bandwidth-optimal algorithms send: a ring for all-reduce, all-gather
and reduce-scatter, a chain from or to the root for broadcast and reduce, messages for
all-to-all, gather and scatter.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from msgspec.structs import replace

from primepar.schedule.meaning import Meaning
from primepar.schedule.program import (
    AllGather,
    AllReduce,
    AllToAll,
    Broadcast,
    Collective,
    Gather,
    Instruction,
    ISend,
    Reduce,
    ReduceScatter,
    Scatter,
    Send,
    messages_of,
)
from primepar.verify.deadline import in_time
from primepar.verify.program.matching import Matching, Operation
from primepar.verify.program.memory import elements

MOST_NAMED = 3


def unequal(meaning: Meaning, flow: Matching) -> str | None:
    """The first rank that sends more or less than `traffic` states; None if there is none."""
    for rank, stated in enumerate(meaning.program.traffic or ()):
        expected = Fraction(stated)
        parts = list(_sent(meaning, flow, rank))
        total = sum((count for count, _ in parts), Fraction(0))
        if total != expected:
            return (
                f"rank {rank}: expected {expected} elements to leave it, got {total}: "
                f"{_largest(parts)}: fix what it sends, or traffic"
            )
    return None


def sent_by(meaning: Meaning, flow: Matching, rank: int) -> Fraction:
    """Elements that a rank sends. Raises `UnansweredError` where a size is not known."""
    return sum((count for count, _ in _sent(meaning, flow, rank)), Fraction(0))


def _largest(parts: list[tuple[Fraction, Operation]]) -> str:
    """The largest contributions, `8 by instruction 3 (isend X -> 1) and 4 more`."""
    if not parts:
        return "it sends nothing"
    order = sorted(parts, key=lambda part: (-part[0], part[1].index))
    texts = [f"{count} by {operation}" for count, operation in order[:MOST_NAMED]]
    more = f" and {len(order) - MOST_NAMED} more" if len(order) > MOST_NAMED else ""
    return ", ".join(texts) + more


def _sent(meaning: Meaning, flow: Matching, rank: int) -> Iterator[tuple[Fraction, Operation]]:
    """Yield the operations of a rank that send elements, with how many."""
    for operation in in_time(flow.operations[rank]):
        node = operation.instruction
        if isinstance(node, Broadcast):
            # What is passed on is the root's block, under whatever name this member has for it.
            calls = flow.matched_calls.get(operation, ())
            root = next((call.instruction for call in calls if call.rank == node.root), node)
            node = replace(node, block=getattr(root, "block", node.block))
        count = Fraction(
            sum(times * elements(meaning, block) for block, times in sends(node, rank))
        )
        if count:
            yield count, operation


def sends(node: Instruction, rank: int) -> Iterator[tuple[str, int | Fraction]]:
    """Yield each block of which a rank sends elements, and how many times its size."""
    for message in messages_of(node):
        if isinstance(message, Send | ISend):
            yield message.block, 1
    if isinstance(node, Collective) and rank in node.group:
        yield from _by_collective(node, rank)


def _by_collective(node: Collective, rank: int) -> Iterator[tuple[str, int | Fraction]]:
    members, place = len(node.group), node.group.index(rank)
    match node:
        case AllReduce(reduced=blocks):
            yield from ((block, Fraction(2 * (members - 1), members)) for block in blocks)
        case AllGather(block=block):
            yield block, members - 1
        case ReduceScatter(blocks=blocks):
            yield from ((block, Fraction(members - 1, members)) for block in blocks)
        case AllToAll(blocks=blocks) | Scatter(blocks=blocks):
            yield from ((block, 1) for other, block in enumerate(blocks) if other != place)
        case Gather(block=block, root=root) if rank != root:
            yield block, 1
        case Broadcast(block=block, root=root) | Reduce(block=block, root=root):
            # The chain starts at the root of a broadcast, and ends at that of a reduction.
            last = node.group.index(root) - isinstance(node, Broadcast)
            if place != last % members:
                yield block, 1
