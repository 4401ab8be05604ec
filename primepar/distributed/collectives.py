"""The collectives of the IR on torch.distributed, and what each of them sends."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import torch
import torch.distributed as dist

from primepar.distributed.buffers import BufferPool
from primepar.distributed.mesh import Mesh
from primepar.distributed.messages import Pending
from primepar.schedule.program import (
    AllGather,
    AllReduce,
    AllToAll,
    Barrier,
    Broadcast,
    Collective,
    Reduce,
    ReduceScatter,
)

Blocks = dict[str, torch.Tensor]
Action = Callable[[Blocks], Pending]

OPERATIONS = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN}


def collective_reads(collective: Collective, rank: int) -> tuple[str, ...]:
    """Blocks that `rank` gives."""
    match collective:
        case Broadcast(block=block, root=root):
            return (block,) if rank == root else ()
        case AllReduce(block=block) | Reduce(block=block) | AllGather(block=block):
            return (block,)
        case ReduceScatter(blocks=blocks) | AllToAll(blocks=blocks):
            return blocks
        case _:
            return ()


def collective_writes(collective: Collective, rank: int) -> tuple[str, ...]:
    """Blocks that `rank` gets."""
    match collective:
        case Reduce(block=block, root=root):
            return (block,) if rank == root else ()
        case Broadcast(block=block, root=root):
            return (block,) if rank != root else ()
        case AllReduce(block=block) | ReduceScatter(block=block):
            return (block,)
        case AllGather(blocks=blocks):
            return blocks
        case AllToAll(into=into):
            return into
        case _:
            return ()


def elements_sent(collective: Collective, rank: int, size: Callable[[str], int]) -> Fraction:
    """Elements that leave `rank`: rings, and for a root the chain that starts or ends there."""
    group = collective.group
    members = len(group)
    match collective:
        case AllReduce(block=block):
            return Fraction(2 * (members - 1) * size(block), members)
        case AllGather(block=block) | ReduceScatter(block=block):
            return Fraction((members - 1) * size(block))
        case Broadcast(block=block, root=root):
            last = (group.index(rank) - group.index(root)) % members == members - 1
            return Fraction(0 if last else size(block))
        case Reduce(block=block, root=root):
            return Fraction(0 if rank == root else size(block))
        case AllToAll(blocks=blocks):
            others = (name for peer, name in zip(group, blocks, strict=True) if peer != rank)
            return Fraction(sum(map(size, others)))
        case _:
            return Fraction(0)


def collective_action(mesh: Mesh, pool: BufferPool, collective: Collective) -> Action:
    """What starts a collective on blocks that are all there, those that it writes too.

    A group of one rank copies what it gives to what it gets.
    """
    if len(collective.group) == 1:
        return _alone(mesh, collective)
    group = mesh.group(collective.group, collective.communicator)
    match collective:
        case AllReduce(block=block, reduction=reduction):
            op = OPERATIONS[reduction]
            return _started(lambda blocks: dist.all_reduce(blocks[block], op, group, True))
        case Broadcast(block=block, root=root):
            return _started(lambda blocks: dist.broadcast(blocks[block], root, group, True))
        case Reduce():
            return _reduce(mesh, pool, collective, group)
        case AllGather() | ReduceScatter():
            return _started(_ring(collective, group))
        case AllToAll():
            return _all_to_all(pool, collective, group)
        case Barrier():
            return _started(lambda _blocks: dist.barrier(group, async_op=True))


def _started(start: Callable[[Blocks], dist.Work | None]) -> Action:
    return lambda blocks: Pending([start(blocks)])


def _alone(mesh: Mesh, collective: Collective) -> Action:
    reads = collective_reads(collective, mesh.rank)
    writes = collective_writes(collective, mesh.rank)
    pairs = [(a, b) for a, b in zip(reads, writes, strict=False) if a != b]

    def copy(blocks: Blocks) -> Pending:
        for name, into in pairs:
            blocks[into].copy_(blocks[name])
        return Pending(())

    return copy


def _reduce(mesh: Mesh, pool: BufferPool, reduce: Reduce, group: dist.ProcessGroup) -> Action:
    """A member that is not the root keeps its block: torch may leave anything in what it gives."""
    name, root, op = reduce.block, reduce.root, OPERATIONS[reduce.reduction]
    if mesh.rank == root:
        return _started(lambda blocks: dist.reduce(blocks[name], root, op, group, True))

    def give_a_copy(blocks: Blocks) -> Pending:
        given = pool.acquire(tuple(blocks[name].shape)).copy_(blocks[name])
        work = dist.reduce(given, root, op, group, True)
        return Pending([work], lambda: pool.release(given))

    return give_a_copy


def _ring(
    collective: AllGather | ReduceScatter, group: dist.ProcessGroup
) -> Callable[[Blocks], dist.Work | None]:
    """torch numbers the members of a group by rank, the IR as the program lists them."""
    places = sorted(range(len(collective.group)), key=collective.group.__getitem__)
    own, ordered = collective.block, [collective.blocks[place] for place in places]
    if isinstance(collective, AllGather):
        return lambda blocks: dist.all_gather(
            [blocks[name] for name in ordered], blocks[own], group, True
        )
    op = OPERATIONS[collective.reduction]
    return lambda blocks: dist.reduce_scatter(
        blocks[own], [blocks[name] for name in ordered], op, group, True
    )


def _all_to_all(pool: BufferPool, collective: AllToAll, group: dist.ProcessGroup) -> Action:
    """One flat buffer each way: the form that gloo has too."""
    places = sorted(range(len(collective.group)), key=collective.group.__getitem__)
    given = [collective.blocks[place] for place in places]
    gotten = [collective.into[place] for place in places]

    def exchange(blocks: Blocks) -> Pending:
        sizes = [blocks[name].numel() for name in given]
        room = [blocks[name].numel() for name in gotten]
        outgoing, incoming = pool.acquire((sum(sizes),)), pool.acquire((sum(room),))
        torch.cat([blocks[name].flatten() for name in given], out=outgoing)
        work = dist.all_to_all_single(incoming, outgoing, room, sizes, group, True)

        def take_apart() -> None:
            for name, part in zip(gotten, torch.split(incoming, room), strict=True):
                blocks[name].copy_(part.view_as(blocks[name]))
            pool.release(outgoing)
            pool.release(incoming)

        return Pending([work], take_apart)

    return exchange
