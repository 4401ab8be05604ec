"""Exchanges partial sums of two ranks by messages, in place of reduce-scatters and all-reduces.

In a reduce-scatter each member sends the block that the other one keeps, in an all-reduce its own
block. It receives the other member's partial sum into a scratch block, and adds it to its own.

    reduce_scatter  x[0] x[1] -> x[0]        irecv    x[0]' <- 1
                                             isend    x[1] -> 1
                                      ->     wait     both
                                             compute  x[0] += x[0]'

Why it is correct: the sum of the same two partial sums ends at the same places. Both members of an
all-reduce get the same number to the last digit, as a + b = b + a. They post before they wait, so
neither waits for a message that is posted later. Messages between two ranks match in their order.
So a collective is kept where the n-th message that one sends is not the n-th that the other takes.

The elements sent are those of the collective. It is kept if the scratch block would raise the peak
of live elements of a rank beyond the memory that the program declares. Then `overlap` posts a
message as soon as its block is computed, and adds when the sum is needed. A message of gloo is
posted by the thread that computes; a collective goes through a worker thread, and a reduce-scatter
is an all-reduce of all blocks there. Among more members a collective has fewer messages, or is one
launch on NCCL, so it stays.

Source: Chang et al., FLUX, arXiv 2406.06858, which sends tiles to their owners within one kernel;
as a pass it is ours.
"""

from __future__ import annotations

from itertools import chain

from primepar.passes.block_uses import LiveBlocks, RankList, Size, rank_lists
from primepar.passes.calls import Call, calls, in_order
from primepar.passes.in_place_parts import Edits, rewritten
from primepar.passes.liveness import live_sizes
from primepar.schedule.meaning import Meaning, meaning_of
from primepar.schedule.operators import scratch_name
from primepar.schedule.program import (
    AllReduce,
    Compute,
    Free,
    Instruction,
    IRecv,
    ISend,
    Program,
    ReduceScatter,
    Wait,
)

Exchanged = AllReduce | ReduceScatter


def partial_sums(program: Program) -> Program:
    """Return the program with sums of two ranks exchanged, where order and memory allow it."""
    size, meaning = live_sizes(program), meaning_of(program)

    def is_plain(call: Call) -> bool:
        nodes = {rank: program.programs[rank][place] for rank, place in call.places.items()}
        return (
            len(nodes) == 2
            and len({type(node) for node in nodes.values()}) == 1
            and all(_is_plain_sum(node, rank, meaning, size) for rank, node in nodes.items())
        )

    exchanged = in_order(program, list(filter(is_plain, chain(*calls(program)))))
    lines = rank_lists(program) if exchanged else []
    room = 0 if program.memory is None else program.memory.device or 0
    # Which calls raise the peak depends on those that are exchanged before them: the memory that
    # one takes may be what the next one lacks. So all are tried, and those over the peak are kept
    # as calls, until none is over it.
    while exchanged:
        edits: list[Edits] = [{} for _ in lines]
        for call in exchanged:
            for rank, place in call.places.items():
                edits[rank] |= _messages(lines[rank], place)
        pairs = zip(lines, edits, strict=True)
        raising = [_raising(line, changed, size, room) for line, changed in pairs]
        kept = [
            call
            for call in exchanged
            if not any(place in raising[rank] for rank, place in call.places.items())
        ]
        if len(kept) == len(exchanged):
            return rewritten(program, edits)
        exchanged = in_order(program, kept)
    return program


def _is_plain_sum(node: Instruction, rank: int, meaning: Meaning, size: Size) -> bool:
    """Return whether a rank waits for an unscaled sum, of one block or of equal ones."""
    if not isinstance(node, Exchanged):
        return False
    if isinstance(node, AllReduce):
        fits = not node.also
    else:
        first, second = node.blocks
        kept = node.blocks[node.group.index(rank)]
        fits = first != second and size(first) == size(second) and node.block == kept
    # Of a maximum `x += x'` would be the larger one, not the sum of an all-reduce by sum.
    maker = meaning.maker(node.block)
    is_sum = node.reduction == "sum" and (maker is None or maker.reduction == "sum")
    return fits and is_sum and node.scale == "1" and node.request is None


def _raising(line: RankList, edits: Edits, size: Size, room: int) -> set[int]:
    """Return the positions whose messages need more memory than there is `room`, or than before."""
    peak = max(room, *line.live(size))
    live = LiveBlocks(size, line.rank, line.initial)
    return {
        place for place, node in enumerate(line.nodes) if live.peak(edits.get(place, [node])) > peak
    }


def _messages(line: RankList, place: int) -> Edits:
    """Return the messages and the sum of one member, in place of its call and of a later free."""
    node, rank = line.nodes[place], line.rank.rank
    assert isinstance(node, Exchanged)
    kept, channel = node.block, node.communicator
    (peer,) = (member for member in node.group if member != rank)
    given = kept if isinstance(node, AllReduce) else node.blocks[node.group.index(peer)]
    scratch = _scratch(line, kept, place)
    received, sent = (f"{kept} sum{place}{way}{peer}" for way in "<>")
    # The order of the two terms differs on the two members, and a + b = b + a bit for bit; with
    # three it would not be.
    total: list[Instruction] = [Wait(received), Compute((scratch,), kept), Free(scratch)]
    posts: list[Instruction] = [
        IRecv(peer, scratch, communicator=channel, request=received),
        ISend(peer, given, communicator=channel, request=sent),
    ]
    # An all-reduce sends the block that the sum goes into: it may be changed only after the send is
    # done.
    if given == kept:
        return {place: [*posts, Wait(sent), *total]}
    use = line.after(given, place)
    if use is None or line.nodes[use] != Free(given):
        return {place: [*posts, *total, Wait(sent)]}
    return {use: [], place: [*posts, *total, Wait(sent), Free(given)]}


def _scratch(line: RankList, block: str, place: int) -> str:
    """Return the name of a scratch block of a block that does not exist at a position."""
    name = scratch_name(block)
    while not line.is_absent(name, place):
        name = scratch_name(name)
    return name
