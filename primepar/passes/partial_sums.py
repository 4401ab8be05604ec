"""Replaces reduce-scatters by messages: every member sends partial sums to their owners.

Each member of the group sends to each other member the block which that member keeps. It receives
the partial sums of its own block into scratch blocks, and adds one after another. It starts with
the member before it, so the order of a sum is fixed, and no member gets all messages at once.

Why it is correct: a reduce-scatter gives every member the sum of all partial sums of one block, and
the same are added here. In each round all members post before they wait, so no member waits for a
message that is posted later. Messages between two ranks match in their order. So a reduce-scatter
is kept where the n-th message that one member sends is not the n-th that the other receives.

    reduce_scatter  x[0] x[1] -> x[0]        irecv    x[0]' <- 1
                                             isend    x[1] -> 1
                                      ->     wait     x[0]'
                                             compute  x[0] += x[0]'

The elements sent are those of the ring. Between two members a reduce-scatter is one exchange and
one addition in any case. Of more members it is one launch on NCCL, and as many messages as there
are other members here, so by default it is kept. A member has one scratch block at a time; a
reduce-scatter is kept where that would raise the peak of live elements.

Then `overlap` posts every message as soon as its block is computed. On gloo a message is posted by
the thread that computes; a reduce-scatter goes through a worker thread, and is an all-reduce of all
the blocks there.

Source: Chang et al., FLUX, arXiv 2406.06858, which sends tiles to their owners within one kernel;
as a pass it is ours.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from primepar.passes.block_uses import Rank, RankList
from primepar.passes.in_place_parts import Edits, edited
from primepar.passes.liveness import LiveBlocks, Size, sizes_of
from primepar.passes.message_order import Call, in_order
from primepar.schedule.operators import scratch_name
from primepar.schedule.program import (
    Compute,
    Free,
    Instruction,
    IRecv,
    ISend,
    Program,
    ReduceScatter,
    Wait,
)
from primepar.schedule.program_uses import initial_blocks


def partial_sums(program: Program, members: int = 2) -> Program:
    """Return the program with reduce-scatters as messages, where order and memory allow it.

    `members` is the largest group of one.
    """
    size, initial = sizes_of(program), initial_blocks(program)
    calls = [call for call in _calls(program, size) if len(call.group) <= members]
    calls = in_order(program, calls)
    lines = [
        RankList(nodes, Rank(rank), initial[rank])
        for rank, nodes in enumerate(program.programs if calls else ())
    ]
    while calls:
        edits = [_edits(line, calls) for line in lines]
        kept = [
            call
            for call in calls
            if not any(_raises_peak(lines[rank], edits[rank], place, size)
                       for rank, place in call.places.items())
        ]  # fmt: skip
        if len(kept) == len(calls):
            lists = zip(program.programs, edits, strict=True)
            return replace(program, programs=tuple(tuple(edited(*pair)) for pair in lists))
        calls = in_order(program, kept)
    return program


def _calls(program: Program, size: Size) -> Iterator[Call]:
    """Yield the reduce-scatters that all members wait for, of plain sums of equal blocks."""
    places: dict[tuple[str, tuple[int, ...]], dict[int, list[int]]] = {}
    for rank, nodes in enumerate(program.programs):
        for place, node in enumerate(nodes):
            if isinstance(node, ReduceScatter) and rank in node.group:
                by_rank = places.setdefault((node.communicator, node.group), {})
                by_rank.setdefault(rank, []).append(place)
    for (communicator, group), by_rank in places.items():
        if len({len(by_rank.get(rank, ())) for rank in group}) > 1:
            continue
        for line in zip(*by_rank.values(), strict=True):
            call = Call(communicator, group, dict(zip(by_rank, line, strict=True)))
            if all(
                _is_plain_sum(program.programs[rank][place], rank, size)
                for rank, place in call.places.items()
            ):
                yield call


def _is_plain_sum(node: Instruction, rank: int, size: Size) -> bool:
    """Return whether a member waits for the sum of its own one of several equal blocks."""
    assert isinstance(node, ReduceScatter)
    return (
        (node.request, node.reduction, node.scale) == (None, "sum", "1")
        and len(set(node.blocks)) == len(node.blocks) == len(node.group) > 1
        and node.block == node.blocks[node.group.index(rank)]
        and len({size(block) for block in node.blocks}) == 1
    )


def _raises_peak(line: RankList, edits: Edits, place: int, size: Size) -> bool:
    """Return whether the messages at a position raise the peak of live elements of their rank."""
    live = LiveBlocks(size, line.rank, line.initial)
    peak = LiveBlocks(size, line.rank, line.initial).peak(line.nodes)
    for node in edited(line.nodes[:place], edits):
        live.do(node)
    return live.peak(edits[place]) > peak


def _edits(line: RankList, calls: list[Call]) -> Edits:
    """Return the messages of one rank in place of its calls."""
    edits: Edits = {}
    for call in calls:
        if line.rank.rank in call.places:
            edits.update(_messages(line, call.places[line.rank.rank]))
    return edits


def _messages(line: RankList, place: int) -> Edits:
    """Return the messages and sums of one member, in place of its call and of later frees."""
    node, rank = line.nodes[place], line.rank.rank
    assert isinstance(node, ReduceScatter)
    group, member, scratch = node.group, node.group.index(rank), node.block
    nodes: list[Instruction] = []
    edits: Edits = {place: nodes}
    for distance in range(1, len(group)):
        scratch = _scratch(line, scratch, place)
        source, target = group[member - distance], (member + distance) % len(group)
        block = node.blocks[target]
        label = f"{node.block} sum{place}"
        received, sent = f"{label}<{source}", f"{label}>{group[target]}"
        nodes += [
            IRecv(source, scratch, communicator=node.communicator, request=received),
            ISend(group[target], block, communicator=node.communicator, request=sent),
            Wait(received),
            Compute((scratch,), node.block),
            Free(scratch),
            Wait(sent),
        ]
        use = line.after(block, place)
        if use is not None and line.nodes[use] == Free(block):
            edits[use] = []
            nodes.append(Free(block))
    return edits


def _scratch(line: RankList, block: str, place: int) -> str:
    """Return a new name of a scratch block of a block, which does not exist at a position."""
    name = scratch_name(block)
    while not line.is_absent(name, place):
        name = scratch_name(name)
    return name
