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

from collections import Counter
from collections.abc import Callable, Iterator
from fractions import Fraction
from itertools import chain
from typing import Any, Literal, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from primepar.schedule.deadline import in_time
from primepar.schedule.effects import effects, host_blocks, initial_blocks
from primepar.schedule.matching import Matches
from primepar.schedule.meaning import Meaning
from primepar.schedule.operators import OUTPUTS
from primepar.schedule.program import (
    AllGather,
    AllReduce,
    AllToAll,
    Broadcast,
    Collective,
    Evict,
    Fetch,
    Gather,
    Group,
    Instruction,
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
    elements: Any
    held: dict[str, Any]


def changes(
    program: Program, rank: int, memory: Memory = "device"
) -> Iterator[tuple[int, list[str], list[str]]]:
    """Yield each instruction of a rank with the blocks that go there, and then those that appear.

    `BEFORE` is the first. A block that is written again takes no more memory. In place, what goes
    makes room first: a join of two halves adds nothing.
    """
    on_device = memory == "device"
    listed = (initial_blocks(program) if on_device else host_blocks(program))[rank]
    held = set(listed)
    yield BEFORE, [], list(dict.fromkeys(listed))  # listed twice, it is there once
    for index, node in enumerate(in_time(program.programs[rank])):
        _, appears, goes, *_ = effects(node, rank)
        if not on_device:
            appears = (node.block,) if isinstance(node, Evict) else ()
            goes = (node.block,) if isinstance(node, Fetch) else ()
        # A join may list a part twice, which is wrong: its memory goes once all the same.
        gone = [block for block in dict.fromkeys(goes) if block in held]
        held.difference_update(gone)
        fresh = [block for block in dict.fromkeys(appears) if block not in held]
        held.update(fresh)
        yield index, gone, fresh


def live(
    program: Program, rank: int, memory: Memory, elements: Callable[[str], Any]
) -> Iterator[Live]:
    """Yield what is live before the first instruction of a rank, and whenever a block appears."""
    held, now = dict[str, Any](), 0
    for index, gone, fresh in changes(program, rank, memory):
        for block in gone:
            now = now - held.pop(block)
        for block in fresh:
            held[block] = elements(block)
            now = now + held[block]
        if fresh or index == BEFORE:
            yield Live(index, now, held)


def live_elements(
    program: Program, rank: int, elements: Callable[[str], Any], memory: Memory = "device"
) -> Iterator[Any]:
    """Yield the number of elements that are live at the start, and whenever a block appears.

    `elements` gives numbers, or arrays with a number for each of several shapes.
    """
    return (now.elements for now in live(program, rank, memory, elements))


def peak(
    program: Program, rank: int, elements: Callable[[str], int], memory: Memory = "device"
) -> int:
    """Most elements live at once on a rank, buffers of posted receives included."""
    return int(max(live_elements(program, rank, elements, memory)))


def resident_copies(program: Program, meaning: Meaning) -> dict[str, Fraction]:
    """Tensor -> copies of its elements in `initial` over all ranks, where sizes are defined."""
    held: dict[str, list[str]] = {}
    for block in in_time(chain(*map(dict.fromkeys, program.initial or ()))):
        place = meaning.place(block)
        if place is not None:
            held.setdefault(place.tensor, []).append(block)
    return {
        tensor: Fraction(sum(map(meaning.size, blocks)), sum(map(meaning.size, set(blocks))))
        for tensor, blocks in held.items()
        if all(meaning.elements(block) is not None for block in blocks)
    }


def sends(node: Instruction, rank: int) -> Iterator[tuple[str, int | Fraction]]:
    """Yield each block of which a rank sends elements, and how many times its size."""
    for post in effects(node, rank).posts:
        if isinstance(post, Send | ISend):
            yield post.block, 1
        elif isinstance(post, Collective) and rank in post.group:
            yield from _sends_in(post, rank)


def sent_blocks(program: Program) -> dict[str, int | Fraction]:
    """Block -> how many times its size leaves a rank, over all instructions of all ranks."""
    times: dict[str, int | Fraction] = {}
    for rank, nodes in enumerate(program.programs):
        for node in in_time(nodes):
            for block, often in sends(node, rank):
                times[block] = times.get(block, 0) + often
    return times


def _sends_in(node: Collective, rank: int) -> Iterator[tuple[str, int | Fraction]]:
    members, index = len(node.group), node.group.index(rank)
    match node:
        case AllReduce(reduced=blocks):
            yield from ((block, Fraction(2 * (members - 1), members)) for block in blocks)
        case AllGather(block=block):
            yield block, members - 1
        case ReduceScatter(blocks=blocks):
            yield from ((block, Fraction(members - 1, members)) for block in blocks)
        case AllToAll(blocks=blocks) | Scatter(blocks=blocks):
            yield from ((block, 1) for other, block in enumerate(blocks) if other != index)
        case Gather(block=block, root=root) if rank != root:
            yield block, 1
        case Broadcast(block=block, root=root) | Reduce(block=block, root=root):
            # A chain from the root has its end before the root, a chain to the root has it there.
            from_root = (index - node.group.index(root)) % members
            if from_root != (members - 1 if isinstance(node, Broadcast) else 0):
                yield block, 1


def sent(
    matches: Matches, rank: int, elements: Callable[[str], int]
) -> Iterator[tuple[Fraction, int]]:
    """Yield (elements, instruction) of the instructions by which elements leave a rank.

    A broadcast passes on the root's block, whatever a member calls it.
    """
    for index, node in enumerate(in_time(matches.program.programs[rank])):
        if isinstance(node, Broadcast):
            calls = matches.partners.get((rank, index, 0), ())
            # A member may name the block otherwise than the root does, and the size is that of the
            # root's.
            at_root = next((matches.node(call) for call in calls if call[0] == node.root), node)
            node = replace(node, block=getattr(at_root, "block", node.block))
        count = sum(times * elements(block) for block, times in sends(node, rank))
        if count:
            yield Fraction(count), index


def sent_by_ranks(program: Program) -> list[Fraction]:
    """Elements that leave each rank. Raises `UnknownSizeError` where a size is not defined."""
    elements, matches = Meaning(program).size, Matches(program)
    return [
        sum((count for count, _ in sent(matches, rank, elements)), Fraction(0))
        for rank in range(program.ranks)
    ]


# What a program moves, tensor by tensor: broadcasts, gathers, shifts and travelling sums.


class Move(Struct, frozen=True):
    """One way in which blocks of one tensor travel.

    `way` is a collective, `shift` for an operand that goes to one other device, or `travelling
    sum` for an output that does.
    """

    way: str
    tensor: str
    times: int
    """On the device that does it most often; a message counts where it is sent."""


def moves(program: Program) -> tuple[Move, ...]:
    """Every way in which a tensor travels in a program, in the order of its first occurrence."""
    most: dict[tuple[str, str], int] = {}
    for instructions in program.programs:
        counts = Counter(way for node in instructions for way in _ways(node))
        for key, count in counts.items():
            most[key] = max(most.get(key, 0), count)
    return tuple(Move(way, tensor, times) for (way, tensor), times in most.items())


def moves_text(kinds: tuple[Move, ...]) -> str:
    """Moves in a line, `broadcast I 6, W 6; reduce dI 3`; `nothing` where there are none."""
    ways = dict.fromkeys(move.way for move in kinds)
    tensors = (
        ", ".join(f"{move.tensor} {move.times}" for move in kinds if move.way == way)
        for way in ways
    )
    return "; ".join(f"{way} {text}" for way, text in zip(ways, tensors, strict=True)) or "nothing"


def _ways(node: Instruction) -> Iterator[tuple[str, str]]:
    match node:
        case ISend(block=block) | Send(block=block):
            tensor = _tensor(block)
            yield ("travelling sum" if tensor in OUTPUTS else "shift"), tensor
        case Group(body=body):
            yield from (way for inner in body for way in _ways(inner))
        case AllToAll(blocks=blocks):
            yield "all-to-all", _tensor(blocks[0])
        case AllReduce():
            yield from (("all-reduce", _tensor(block)) for block in node.reduced)
        case AllGather() | Broadcast() | Reduce() | ReduceScatter():
            yield str(node.__struct_config__.tag).replace("_", "-"), _tensor(node.block)


def _tensor(block: str) -> str:
    return block.partition("[")[0]
