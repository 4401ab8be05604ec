"""The collectives of the IR on torch.distributed, and what each of them sends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction

import torch
import torch.distributed as dist

from primepar.distributed.buffers import BufferPool
from primepar.distributed.mesh import Mesh
from primepar.distributed.messages import Blocks, Pending, Start
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

Get = Callable[[Blocks], torch.Tensor]
Pieces = Sequence[tuple[slice, slice]]

GATHER = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
SCATTER = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)
"""Their older names are deprecated where these exist."""


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
        case AllGather(block=block, blocks=blocks, group=group):
            # Its own block is there already.
            return tuple(
                name
                for member, name in zip(group, blocks, strict=True)
                if (member, name) != (rank, block)
            )
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


def collective_action(mesh: Mesh, pool: BufferPool, collective: Collective) -> Start:
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
        case AllGather():
            return _all_gather(mesh, pool, collective, group)
        case ReduceScatter():
            return _reduce_scatter(collective, group)
        case AllToAll():
            return _all_to_all(pool, collective, group)
        case Barrier():
            return _started(lambda _blocks: dist.barrier(group, async_op=True))


def _started(start: Callable[[Blocks], dist.Work | None]) -> Start:
    return lambda blocks: Pending([start(blocks)])


def _alone(mesh: Mesh, collective: Collective) -> Start:
    reads = collective_reads(collective, mesh.rank)
    writes = collective_writes(collective, mesh.rank)
    pairs = [(a, b) for a, b in zip(reads, writes, strict=False) if a != b]

    def copy(blocks: Blocks) -> Pending:
        for name, into in pairs:
            blocks[into].copy_(blocks[name])
        return Pending(())

    return copy


def _reduce(mesh: Mesh, pool: BufferPool, reduce: Reduce, group: dist.ProcessGroup) -> Start:
    """A member that is not the root keeps its block: torch may leave anything in what it gives."""
    name, root, op = reduce.block, reduce.root, OPERATIONS[reduce.reduction]
    if mesh.rank == root:
        return _started(lambda blocks: dist.reduce(blocks[name], root, op, group, True))

    def give_a_copy(blocks: Blocks) -> Pending:
        given = pool.acquire(tuple(blocks[name].shape)).copy_(blocks[name])
        work = dist.reduce(given, root, op, group, True)
        return Pending([work], lambda: pool.release(given))

    return give_a_copy


def _all_gather(mesh: Mesh, pool: BufferPool, gather: AllGather, group: dist.ProcessGroup) -> Start:
    """A block that is given and gotten is left as it is: torch gets a buffer in its place."""
    given, names = gather.block, [gather.blocks[place] for place in _places(gather)]
    own = sorted(gather.group).index(mesh.rank)
    if names[own] != given:
        return _started(
            lambda blocks: dist.all_gather(
                [blocks[name] for name in names], blocks[given], group, True
            )
        )

    def start(blocks: Blocks) -> Pending:
        block = blocks[given]
        spare = pool.acquire(tuple(block.shape))
        room = [spare if place == own else blocks[name] for place, name in enumerate(names)]
        work = dist.all_gather(room, block, group, True)
        return Pending([work], lambda: pool.release(spare))

    return start


def _reduce_scatter(scatter: ReduceScatter, group: dist.ProcessGroup) -> Start:
    """torch numbers the members of a group by rank, the IR as the program lists them."""
    own, ordered = scatter.block, [scatter.blocks[place] for place in _places(scatter)]
    op = OPERATIONS[scatter.reduction]
    return _started(
        lambda blocks: dist.reduce_scatter(
            blocks[own], [blocks[name] for name in ordered], op, group, True
        )
    )


def _all_to_all(pool: BufferPool, collective: AllToAll, group: dist.ProcessGroup) -> Start:
    """One flat buffer each way: the form that gloo has too."""
    places = _places(collective)
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


def gather_whole(mesh: Mesh, node: AllGather, key: str, pieces: Pieces, own: Get) -> Start:
    """Starts an all-gather into one tensor of which every member fills a contiguous piece."""
    group, places = mesh.group(node.group, node.communicator), _places(node)
    if places == _in_memory(pieces):
        return _started(lambda blocks: GATHER(blocks[key], own(blocks), group, True))
    return _started(
        lambda blocks: dist.all_gather(
            [blocks[key][pieces[place]] for place in places], own(blocks), group, True
        )
    )


def scatter_whole(mesh: Mesh, node: ReduceScatter, key: str, pieces: Pieces, own: Get) -> Start:
    """Starts a reduce-scatter of one tensor of which every member gets a contiguous piece."""
    group, places = mesh.group(node.group, node.communicator), _places(node)
    op = OPERATIONS[node.reduction]
    if places == _in_memory(pieces):
        return _started(lambda blocks: SCATTER(own(blocks), blocks[key], op, group, True))
    return _started(
        lambda blocks: dist.reduce_scatter(
            own(blocks), [blocks[key][pieces[place]] for place in places], op, group, True
        )
    )


def _places(collective: Collective) -> list[int]:
    """Places in the IR's group in the order of torch, which is that of the ranks."""
    return sorted(range(len(collective.group)), key=collective.group.__getitem__)


def _in_memory(pieces: Pieces) -> list[int]:
    return sorted(range(len(pieces)), key=lambda place: pieces[place][0].start)
