"""Counts of the explorer: live elements of a rank, and elements that it sends.

Both depend on the instructions of one rank only. A block is live from its first appearance, a
received one from its post on. It is live until it is freed, evicted, or cut or joined in place.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from oracle.collectives import inputs, members, outputs
from oracle.names import BlockNames
from primepar.schedule.program import (
    AllGather,
    Alloc,
    AllReduce,
    AllToAll,
    Broadcast,
    Collective,
    Compute,
    Cut,
    Evict,
    Fetch,
    Free,
    Gather,
    Group,
    Instruction,
    IRecv,
    ISend,
    Join,
    Recv,
    Reduce,
    ReduceScatter,
    Scatter,
    Send,
)


class UnknownError(Exception):
    """The program does not define how many elements a block has."""


def wrong_counts(names: BlockNames) -> tuple[set[str], set[str]]:
    """Those of memory and traffic that fail, and those that need a size that is not defined."""
    failed, unknown = set(), set()
    for name, wrong in (("memory", _is_over), ("traffic", _is_unequal)):
        try:
            failed |= {name} if wrong(names) else set()
        except UnknownError:
            unknown.add(name)
    return failed, unknown


def _elements(names: BlockNames, block: str) -> int:
    count = names.meaning.elements(block)
    if count is None:
        raise UnknownError
    return count


def _is_over(names: BlockNames) -> bool:
    bound = names.program.memory
    if bound is None:
        return False
    limits = (bound.device, bound.host)
    return any(
        limit is not None and sum(_elements(names, block) for block in held) > limit
        for rank in range(names.program.ranks)
        for live in _live_blocks(names, rank)
        for held, limit in zip(live, limits, strict=True)
    )


def _live_blocks(names: BlockNames, rank: int) -> Iterator[tuple[set[str], set[str]]]:
    """Blocks on the device and on the host, at the start and after every instruction."""
    device, host = _start(names, rank)
    yield device, host
    for node in names.program.programs[rank]:
        if isinstance(node, Free | Evict):
            device.discard(node.block)
        if isinstance(node, Cut | Join) and node.in_place:
            device.difference_update(_used(node, rank))
        if isinstance(node, Evict):
            host.add(node.block)
        if isinstance(node, Fetch):
            host.discard(node.block)
        device.update(_appearing(node, rank))
        yield device, host


def _start(names: BlockNames, rank: int) -> tuple[set[str], set[str]]:
    """The initial blocks; without `initial`, those that are used before they are written."""
    if names.program.initial is not None:
        hosts = names.program.host_initial
        return set(names.program.initial[rank]), set(hosts[rank] if hosts else ())
    device, host, seen = set[str](), set[str](), set[str]()
    for node in names.program.programs[rank]:
        if isinstance(node, Fetch):
            host |= {node.block} - seen
        used = set(_used(node, rank))
        device |= used - seen
        seen |= used | set(_appearing(node, rank))
    return device, host


def _appearing(node: Instruction, rank: int) -> tuple[str, ...]:
    """Blocks that are live once an instruction has started."""
    match node:
        case Compute(accumulates=block) | Alloc(block=block) | Fetch(block=block):
            return (block,)
        case Recv(block=block) | IRecv(block=block) | Join(block=block):
            return (block,)
        case Group(body=body):
            return tuple(message.block for message in body if isinstance(message, Recv))
        case Cut(blocks=blocks):
            return blocks
        case _ if isinstance(node, Collective):
            return outputs(node, rank)
        case _:
            return ()


def _used(node: Instruction, rank: int) -> tuple[str, ...]:
    """Blocks that must be live before an instruction."""
    match node:
        case Compute(reads=reads):
            return reads
        case Send(block=block) | ISend(block=block) | Free(block=block) | Evict(block=block):
            return (block,)
        case Group(body=body):
            return tuple(message.block for message in body if isinstance(message, Send))
        case Cut(block=block):
            return (block,)
        case Join(blocks=blocks):
            return blocks
        case _ if isinstance(node, Collective):
            return inputs(node, rank)
        case _:
            return ()


def _is_unequal(names: BlockNames) -> bool:
    roots = _roots(names)
    return any(
        Fraction(stated) != sum(_leaving(names, rank, roots), Fraction(0))
        for rank, stated in enumerate(names.program.traffic or ())
    )


def _roots(names: BlockNames) -> dict[tuple[object, int], str]:
    """(communicator and ranks, number of the call) -> the block that its root broadcasts."""
    roots: dict[tuple[object, int], str] = {}
    for rank, nodes in enumerate(names.program.programs):
        for number, node in _numbered(nodes):
            if isinstance(node, Broadcast) and node.root == rank:
                roots[members(node), number] = node.block
    return roots


def _numbered(nodes: tuple[Instruction, ...]) -> Iterator[tuple[int, Instruction]]:
    """Collectives with how many calls of the same ranks came before; 0 for anything else."""
    counts: dict[object, int] = {}
    for node in nodes:
        number = 0
        if isinstance(node, Collective):
            number = counts.get(members(node), 0)
            counts[members(node)] = number + 1
        yield number, node


def _leaving(
    names: BlockNames, rank: int, roots: dict[tuple[object, int], str]
) -> Iterator[Fraction]:
    """Elements that leave a rank, instruction by instruction."""
    for number, node in _numbered(names.program.programs[rank]):
        match node:
            case Send(block=block) | ISend(block=block):
                yield Fraction(_elements(names, block))
            case Group(body=body):
                for message in body:
                    if isinstance(message, Send):
                        yield Fraction(_elements(names, message.block))
            case _ if isinstance(node, Collective) and rank in node.group:
                passed = roots.get((members(node), number))
                yield _by_collective(names, rank, node, passed)


def _by_collective(names: BlockNames, rank: int, node: Collective, passed: str | None) -> Fraction:
    """What one member of a ring, of a chain or of direct messages sends."""
    count, member_index = len(node.group), node.group.index(rank)
    match node:
        case AllReduce(reduced=blocks):
            total = sum(_elements(names, block) for block in blocks)
            return Fraction(2 * (count - 1), count) * total
        case ReduceScatter(blocks=blocks):
            return Fraction(count - 1, count) * sum(_elements(names, block) for block in blocks)
        case AllGather(block=block):
            return Fraction((count - 1) * _elements(names, block))
        case AllToAll(blocks=blocks) | Scatter(blocks=blocks):
            sent = (block for place, block in enumerate(blocks) if place != member_index)
            return Fraction(sum(_elements(names, block) for block in sent))
        case Reduce(block=block, root=root) | Gather(block=block, root=root):
            return Fraction(_elements(names, block) if rank != root else 0)
        case Broadcast(block=block, root=root):
            last = node.group[node.group.index(root) - 1]
            return Fraction(0 if rank == last else _elements(names, passed or block))
        case _:
            return Fraction(0)
