"""What a program costs: elements that are live on each rank, and elements that leave it.

Counted here alone, by the instructions of one rank, whatever order the ranks run in.

A block is live from the instruction at which it appears until it is freed or evicted, or until
another block takes its memory in place. A received block is live from the post on, since its buffer
is in use from then on. Example: `irecv X, free Y, wait` has X and Y live together after the post.

Collectives are counted as the bandwidth-optimal algorithms send (n members, e elements):

    all_reduce       2 (n - 1) / n of e              a ring
    all_gather       (n - 1) e of one's own block     a ring
    reduce_scatter   (n - 1) / n of all blocks        a ring
    broadcast        e, but the last of a chain 0     from the root on
    reduce           e, but the root 0                a chain to the root
    gather           e, but the root 0                messages
    scatter, all_to_all    what goes to others        messages
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Literal, NamedTuple

from msgspec.structs import replace

from primepar.schedule.deadline import in_time
from primepar.schedule.effects import effects, host_blocks, initial_blocks
from primepar.schedule.matching import Matches
from primepar.schedule.meaning import Meaning
from primepar.schedule.program import (
    AllGather,
    AllReduce,
    AllToAll,
    Broadcast,
    Collective,
    Evict,
    Fetch,
    Gather,
    ISend,
    Program,
    Reduce,
    ReduceScatter,
    Scatter,
    Send,
)

Memory = Literal["device", "host"]
BEFORE = -1
"""In place of an instruction: before the first one."""


class Live(NamedTuple):
    """What is live in a memory of a rank after an instruction, `BEFORE` the first one or later.

    `held` maps the blocks to their elements. It is that of the count itself, and changes with it.
    """

    instruction: int
    elements: int
    held: dict[str, int]


def live(
    program: Program, rank: int, memory: Memory, elements: Callable[[str], int]
) -> Iterator[Live]:
    """Yield what is live before the first instruction of a rank, and whenever a block appears."""
    on_device = memory == "device"
    start = initial_blocks(program) if on_device else host_blocks(program)
    held = {block: elements(block) for block in start[rank]}
    now = sum(held.values())
    yield Live(BEFORE, now, held)
    for index, node in enumerate(in_time(program.programs[rank])):
        _, appears, goes, *_ = effects(node, rank)
        if not on_device:
            appears = (node.block,) if isinstance(node, Evict) else ()
            goes = (node.block,) if isinstance(node, Fetch) else ()
        for block in goes:
            now -= held.pop(block, 0)
        before = now
        for block in appears:
            if block not in held:
                held[block] = elements(block)
                now += held[block]
        if now > before:
            yield Live(index, now, held)


def peak(
    program: Program, rank: int, elements: Callable[[str], int], memory: Memory = "device"
) -> int:
    """Most elements live at once on a rank, buffers of posted receives included."""
    return max(now.elements for now in live(program, rank, memory, elements))


def sent(
    program: Program, rank: int, elements: Callable[[str], int], matches: Matches | None = None
) -> Iterator[tuple[Fraction, int]]:
    """Yield (elements, instruction) of the instructions by which elements leave a rank.

    A broadcast carries the root's block. With `matches` its size is that of the root's name for it.
    """
    for index, node in enumerate(in_time(program.programs[rank])):
        count = Fraction(0)
        for post in effects(node, rank).posts:
            if isinstance(post, Send | ISend):
                count += elements(post.block)
            elif isinstance(post, Broadcast) and matches is not None:
                calls = matches.partners.get((rank, index, 0), ())
                at_root = [matches.node(call) for call in calls if call[0] == post.root]
                named = at_root[0] if at_root and isinstance(at_root[0], Broadcast) else post
                count += sent_in(replace(post, block=named.block), rank, elements)
            elif isinstance(post, Collective):
                count += sent_in(post, rank, elements)
        if count:
            yield count, index


def sent_by_ranks(program: Program) -> list[Fraction]:
    """Elements that leave each rank. Raises `UnknownSizeError` where a size is not defined."""
    elements, matches = Meaning(program).size, Matches(program)
    return [
        sum((count for count, _ in sent(program, rank, elements, matches)), Fraction(0))
        for rank in range(program.ranks)
    ]


def sent_in(node: Collective, rank: int, elements: Callable[[str], int]) -> Fraction:
    """Elements that one member of a collective sends; 0 of a rank that is not in its group."""
    if rank not in node.group:
        return Fraction(0)
    members, index = len(node.group), node.group.index(rank)
    match node:
        case AllReduce(reduced=blocks):
            return Fraction(2 * (members - 1) * sum(map(elements, blocks)), members)
        case AllGather(block=block):
            return Fraction((members - 1) * elements(block))
        case ReduceScatter(blocks=blocks):
            return Fraction((members - 1) * sum(map(elements, blocks)), members)
        case Gather(block=block, root=root):
            return Fraction(0 if rank == root else elements(block))
        case AllToAll(blocks=blocks) | Scatter(blocks=blocks):
            return Fraction(sum(elements(block) for i, block in enumerate(blocks) if i != index))
        case Broadcast(block=block, root=root) | Reduce(block=block, root=root):
            # A chain from the root has its end before the root, a chain to the root has it there.
            from_root = (index - node.group.index(root)) % members
            end = members - 1 if isinstance(node, Broadcast) else 0
            return Fraction(0 if from_root == end else elements(block))
        case _:
            return Fraction(0)
