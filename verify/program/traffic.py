"""Traffic: how many elements each rank sends, by its own messages and collectives.

Collectives are counted as the bandwidth-optimal algorithms send: a ring for all-reduce, all-gather
and reduce-scatter, a chain from or to the root for broadcast and reduce, a chain of all members for
a scan, messages for all-to-all, gather and scatter.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from primepar.schedule.meaning import Meaning
from primepar.schedule.program import (
    AllGather,
    AllReduce,
    AllToAll,
    Broadcast,
    Collective,
    Gather,
    Instruction,
    Reduce,
    ReduceScatter,
    Scan,
    Scatter,
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


def sent(meaning: Meaning, flow: Matching) -> Fraction:
    """Elements that all ranks send. Raises `UnansweredError` where a size is not known."""
    return sum((sent_by(meaning, flow, r) for r in range(meaning.program.ranks)), Fraction(0))


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
        count = Fraction(
            sum(elements(meaning, post.message.block) for post in operation.starts if post.sends)
        )
        if isinstance(operation.instruction, Collective):
            count += _by_collective(meaning, flow, operation, operation.instruction)
        if count:
            yield count, operation


def _by_collective(
    meaning: Meaning, flow: Matching, operation: Operation, node: Collective
) -> Fraction:
    """Elements that one member of a collective sends."""
    members = len(node.group)
    if operation.rank not in node.group:
        return Fraction(0)
    member_index = node.group.index(operation.rank)
    match node:
        case AllReduce(reduced=blocks):
            total = sum(elements(meaning, block) for block in blocks)
            return Fraction(2 * (members - 1) * total, members)
        case AllGather(block=block):
            return Fraction((members - 1) * elements(meaning, block))
        case ReduceScatter(blocks=blocks):
            total = sum(elements(meaning, block) for block in blocks)
            return Fraction((members - 1) * total, members)
        case Gather(block=block):
            return Fraction(0 if operation.rank == node.root else elements(meaning, block))
        case Scan(block=block):
            return Fraction(elements(meaning, block) if member_index < members - 1 else 0)
        case AllToAll(blocks=blocks) | Scatter(blocks=blocks):
            others = [block for place, block in enumerate(blocks) if place != member_index]
            return Fraction(sum(elements(meaning, block) for block in others))
        case Broadcast() | Reduce():
            from_root = (member_index - node.group.index(node.root)) % members
            silent = members - 1 if isinstance(node, Broadcast) else 0
            carried = _carried(flow, operation, node)
            return Fraction(0 if from_root == silent else elements(meaning, carried))
        case _:
            return Fraction(0)


def _carried(flow: Matching, operation: Operation, node: Broadcast | Reduce) -> str:
    """The block that a member passes on: of a broadcast, that of the root."""
    calls = flow.matched_calls.get(operation, ())
    nodes: Iterator[Instruction] = (
        call.instruction for call in calls if isinstance(node, Broadcast) and call.rank == node.root
    )
    root = next(nodes, node)
    return root.block if isinstance(root, Broadcast) else node.block
