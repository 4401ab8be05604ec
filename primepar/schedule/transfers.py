"""Which instructions carry a set of hops or returns: messages, or the collective that they make.

A block that one rank sends to one other is a message. One that goes to several is a broadcast.
Where the members of a group all send the same number of blocks to all others, that is an
all-gather, unless one of them multiplies its block meanwhile. Partial sums of a group whose members
are each home to the same number of them are a reduce-scatter.

A set is processed once for all ranks. Every instruction comes with its rank, and the instructions
of one rank come in the order of its list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from primepar.schedule.movement import Hop, Return
from primepar.schedule.operators import block_name, scratch_name
from primepar.schedule.program import (
    AllGather,
    Alloc,
    AllReduce,
    Broadcast,
    Compute,
    Free,
    Instruction,
    IRecv,
    ISend,
    Reduce,
    ReduceScatter,
    Wait,
)

Post = ISend | IRecv | AllGather | Broadcast
RankInstructions = Iterator[tuple[int, Instruction]]
"""Instructions, each with its rank."""
_TAGS = {"I": 0, "W": 1, "O": 2, "dI": 3, "dW": 4, "dO": 5}


@dataclass(frozen=True)
class _Spread:
    """One block that its source sends to the rest of a group."""

    block: str
    source: int
    group: tuple[int, ...]
    is_read: bool
    """Whether its source multiplies it meanwhile: an all-gather writes to all of its blocks."""


def messages(hops: Iterable[Hop], label: str) -> Iterator[tuple[int, Post]]:
    """Posts with their ranks; all hops are processed in one order, so channels agree on it."""
    for hop in hops:
        block, tag = block_name(hop.tensor, hop.index), _TAGS[hop.tensor]
        request = f"{label}>{hop.target} {block}"
        yield hop.source, ISend(hop.target, block, tag, request=request)
        request = f"{label}<{hop.source} {block}"
        yield hop.target, IRecv(hop.source, block, tag, request=request)


def split(hops: tuple[Hop, ...], is_read: Callable[[Hop], bool]) -> tuple[list[Hop], list[_Spread]]:
    """Hops that go to one rank alone, and blocks that go to several.

    `is_read` is asked whether the source of a hop multiplies the block while it is in flight.
    """
    targets: dict[tuple[str, int], list[Hop]] = {}
    for hop in hops:
        targets.setdefault((block_name(hop.tensor, hop.index), hop.source), []).append(hop)
    single = [same[0] for same in targets.values() if len(same) == 1]
    spread = [
        _Spread(block, source, tuple(sorted({source, *(hop.target for hop in same)})),
                is_read(same[0]))
        for (block, source), same in targets.items()
        if len(same) > 1
    ]  # fmt: skip
    return single, spread


class Spreading(NamedTuple):
    """An all-gather of a block of each member of a group, or with a source a broadcast of one."""

    group: tuple[int, ...]
    blocks: tuple[str, ...]
    source: int | None = None


def spreadings(spread: Iterable[_Spread]) -> Iterator[Spreading]:
    """All-gathers and broadcasts, in an order that all ranks agree on."""
    groups: dict[tuple[int, ...], dict[int, list[str]]] = {}
    busy = set()
    for way in spread:
        groups.setdefault(way.group, {}).setdefault(way.source, []).append(way.block)
        busy |= {way.group} if way.is_read else set()
    for group, by_source in groups.items():
        counts = {len(blocks) for blocks in by_source.values()}
        if set(by_source) == set(group) and len(counts) == 1 and group not in busy:
            for blocks in zip(*(by_source[member] for member in group), strict=True):
                yield Spreading(group, blocks)
        else:
            for source, blocks_of_source in by_source.items():
                yield from (Spreading(group, (block,), source) for block in blocks_of_source)


def collectives(spread: Iterable[_Spread], label: str) -> Iterator[tuple[int, Post]]:
    """Posted all-gathers and broadcasts with their ranks, in an order that all ranks agree on."""
    for group, blocks, source in spreadings(spread):
        request = f"{label}* {blocks[0]}"
        if source is None:
            for rank, block in zip(group, blocks, strict=True):
                yield rank, AllGather(group, block=block, blocks=blocks, request=request)
        else:
            call = Broadcast(group, block=blocks[0], root=source, request=request)
            yield from ((rank, call) for rank in group)


def finish_sums(returns: tuple[Return, ...], label: str) -> RankInstructions:
    """Finish the sums of a step: reduce-scatters first, then what is left block by block."""
    made, rest = scatters(returns)
    for group, blocks in made:
        for rank, kept in zip(group, blocks, strict=True):
            yield rank, ReduceScatter(group, blocks=blocks, block=kept)
            yield from ((rank, Free(block)) for block in blocks if block != kept)
    for total in rest:
        yield from _one_home(total, label)


def scatters(
    returns: tuple[Return, ...],
) -> tuple[list[tuple[tuple[int, ...], tuple[str, ...]]], list[Return]]:
    """Returns that make reduce-scatters, as (group, one block per member), and the others."""
    groups: dict[tuple[int, ...], dict[int, list[Return]]] = {}
    rest = []
    for total in returns:
        if len(total.ranks) > 1 and len(total.homes) == 1 and total.homes[0] in total.ranks:
            groups.setdefault(total.ranks, {}).setdefault(total.homes[0], []).append(total)
        else:
            rest.append(total)
    made = []
    for group, by_home in groups.items():
        if set(by_home) == set(group) and len({len(totals) for totals in by_home.values()}) == 1:
            for line in zip(*(by_home[member] for member in group), strict=True):
                blocks = tuple(block_name(total.tensor, total.index) for total in line)
                made.append((group, blocks))
        else:
            rest += [total for totals in by_home.values() for total in totals]
    return made, rest


def _one_home(total: Return, label: str) -> RankInstructions:
    block, ranks, homes = block_name(total.tensor, total.index), total.ranks, total.homes
    if ranks == homes:
        if len(ranks) > 1:
            yield from ((rank, AllReduce(ranks, block=block)) for rank in ranks)
        return
    for home, senders in total.parts:
        yield from _reduce_to(home, senders, total, label)
    if len(homes) > 1:
        yield from ((rank, AllReduce(homes, block=block)) for rank in homes)


def _reduce_to(home: int, senders: tuple[int, ...], total: Return, label: str) -> RankInstructions:
    block = block_name(total.tensor, total.index)
    others = [sender for sender in senders if sender != home]
    if len(others) == 1:
        yield from _one_message(home, others[0], home in senders, total, label)
    elif others:
        group = tuple(sorted({home, *senders}))
        if home not in senders:
            yield home, Alloc(block)
        yield from ((rank, Reduce(group, block=block, root=home)) for rank in group)
        yield from ((rank, Free(block)) for rank in others)
    elif not senders:
        yield home, Alloc(block)


def _one_message(
    home: int, sender: int, joins: bool, total: Return, label: str
) -> RankInstructions:
    block, tag = block_name(total.tensor, total.index), _TAGS[total.tensor]
    sent, received = f"{label}>{home} {block}", f"{label}<{sender} {block}"
    into = scratch_name(block) if joins else block
    yield sender, ISend(home, block, tag, request=sent)
    yield sender, Wait(sent)
    yield sender, Free(block)
    yield home, IRecv(sender, into, tag, request=received)
    yield home, Wait(received)
    if joins:
        yield home, Compute((into,), block)
        yield home, Free(into)
