"""Which instructions carry a set of hops or returns: messages, or the collective that they make.

A block that one rank sends to one other is a message. One that goes to several is a broadcast;
where the members of a group all send as many blocks to all others, that is an all-gather. Partial
sums of a group whose members are each home to as many of them are a reduce-scatter.

A set is walked once for all ranks: every instruction comes with the rank that it is dealt to, and
the instructions of one rank come in the order in which it has them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Set
from dataclasses import dataclass

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
InUse = Set[tuple[int, str]]
"""Ranks, each with a block that it reads meanwhile."""
Dealt = Iterator[tuple[int, Instruction]]
"""Instructions, each with the rank that it is dealt to."""
_TAGS = {"I": 0, "W": 1, "O": 2, "dI": 3, "dW": 4, "dO": 5}


@dataclass(frozen=True)
class _Spread:
    """One block on its way from its source to the rest of a group."""

    block: str
    source: int
    group: tuple[int, ...]


def messages(hops: Iterable[Hop], label: str) -> Iterator[tuple[int, Post]]:
    """Posts with their ranks; all hops are walked in one order, so channels agree on it."""
    for hop in hops:
        block, tag = block_name(hop.tensor, hop.index), _TAGS[hop.tensor]
        request = f"{label}>{hop.target} {block}"
        yield hop.source, ISend(hop.target, block, tag, request=request)
        request = f"{label}<{hop.source} {block}"
        yield hop.target, IRecv(hop.source, block, tag, request=request)


def split(hops: tuple[Hop, ...]) -> tuple[list[Hop], list[_Spread]]:
    """Hops that go to one rank alone, and blocks that go to several."""
    targets: dict[tuple[str, int], list[Hop]] = {}
    for hop in hops:
        targets.setdefault((block_name(hop.tensor, hop.index), hop.source), []).append(hop)
    single = [same[0] for same in targets.values() if len(same) == 1]
    spread = [
        _Spread(block, source, tuple(sorted({source, *(hop.target for hop in same)})))
        for (block, source), same in targets.items()
        if len(same) > 1
    ]
    return single, spread


def collectives(
    spread: list[_Spread], label: str, in_use: Callable[[], InUse]
) -> Iterator[tuple[int, Post]]:
    """Posted all-gathers and broadcasts with their ranks, in an order that all ranks agree on.

    An all-gather writes the own block of each member too, so none has a block that is `in_use`.
    """
    groups: dict[tuple[int, ...], dict[int, list[str]]] = {}
    for each in spread:
        groups.setdefault(each.group, {}).setdefault(each.source, []).append(each.block)
    for group, by_source in groups.items():
        counts = {len(blocks) for blocks in by_source.values()}
        is_alike = set(by_source) == set(group) and len(counts) == 1
        own = {(source, block) for source, blocks in by_source.items() for block in blocks}
        if is_alike and own.isdisjoint(in_use()):
            for blocks in zip(*(by_source[member] for member in group), strict=True):
                request = f"{label}* {blocks[0]}"
                for rank, block in zip(group, blocks, strict=True):
                    yield rank, AllGather(group, block=block, blocks=blocks, request=request)
        else:
            for source, block in [(s, block) for s, sent in by_source.items() for block in sent]:
                call = Broadcast(group, block=block, root=source, request=f"{label}* {block}")
                yield from ((rank, call) for rank in group)


def go_home(returns: tuple[Return, ...], label: str) -> Dealt:
    """Finish the sums of a step: reduce-scatters first, then what is left block by block."""
    scatters, rest = _scatters(returns)
    for group, blocks in scatters:
        for rank, own in zip(group, blocks, strict=True):
            yield rank, ReduceScatter(group, blocks=blocks, block=own)
            yield from ((rank, Free(block)) for block in blocks if block != own)
    for each in rest:
        yield from _one_home(each, label)


def _scatters(
    returns: tuple[Return, ...],
) -> tuple[list[tuple[tuple[int, ...], tuple[str, ...]]], list[Return]]:
    """Returns that make reduce-scatters, as (group, one block per member), and the others."""
    groups: dict[tuple[int, ...], dict[int, list[Return]]] = {}
    rest = []
    for each in returns:
        if len(each.ranks) > 1 and len(each.homes) == 1 and each.homes[0] in each.ranks:
            groups.setdefault(each.ranks, {}).setdefault(each.homes[0], []).append(each)
        else:
            rest.append(each)
    scatters = []
    for group, by_home in groups.items():
        if set(by_home) == set(group) and len({len(own) for own in by_home.values()}) == 1:
            for line in zip(*(by_home[member] for member in group), strict=True):
                blocks = tuple(block_name(each.tensor, each.index) for each in line)
                scatters.append((group, blocks))
        else:
            rest += [each for own in by_home.values() for each in own]
    return scatters, rest


def _one_home(each: Return, label: str) -> Dealt:
    block, ranks, homes = block_name(each.tensor, each.index), each.ranks, each.homes
    if ranks == homes:
        if len(ranks) > 1:
            yield from ((rank, AllReduce(ranks, block=block)) for rank in ranks)
        return
    for home, senders in each.parts:
        yield from _reduce_to(home, senders, each, label)
    if len(homes) > 1:
        yield from ((rank, AllReduce(homes, block=block)) for rank in homes)


def _reduce_to(home: int, senders: tuple[int, ...], each: Return, label: str) -> Dealt:
    block = block_name(each.tensor, each.index)
    others = [sender for sender in senders if sender != home]
    if len(others) == 1:
        yield from _one_message(home, others[0], home in senders, each, label)
    elif others:
        group = tuple(sorted({home, *senders}))
        if home not in senders:
            yield home, Alloc(block)
        yield from ((rank, Reduce(group, block=block, root=home)) for rank in group)
        yield from ((rank, Free(block)) for rank in others)
    elif not senders:
        yield home, Alloc(block)


def _one_message(home: int, sender: int, joins: bool, each: Return, label: str) -> Dealt:
    block, tag = block_name(each.tensor, each.index), _TAGS[each.tensor]
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
