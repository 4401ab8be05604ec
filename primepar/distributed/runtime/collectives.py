"""Maps the collectives of the IR to torch.distributed, and counts the elements that they send."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import torch
import torch.distributed as dist

from primepar.distributed.runtime.memory_places import Get
from primepar.distributed.runtime.mesh import Mesh
from primepar.distributed.runtime.messages import Blocks, Pending, Start, Waitable, started
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
from primepar.schedule.program_uses import gets, gives

GATHER = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
SCATTER = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)
"""The new names where torch has them: there the older ones are deprecated."""


OPERATIONS = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN}


def elements_sent(collective: Collective, rank: int, size: Callable[[str], int]) -> Fraction:
    """Return the elements that `rank` sends.

    Collectives count as rings; a broadcast or a reduce as the chain that starts or ends at its
    root.
    """
    group = collective.group
    members = len(group)
    match collective:
        case AllReduce(reduced=blocks):
            return Fraction(2 * (members - 1) * sum(map(size, blocks)), members)
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


def collective_action(mesh: Mesh, node: Collective, run: Get | None) -> Start:
    """Return the function that starts a collective; all blocks that it writes have memory.

    `run` returns the blocks of all members, in the order of the ranks, as one flat tensor. A
    reduce-scatter always has it, an all-gather if the blocks are contiguous in memory. In a group
    of one rank the input is copied to the output.
    """
    if len(node.group) == 1:
        return _alone(mesh, node)
    group = mesh.group(node.group, node.communicator)
    match node:
        case AllReduce(also=also) if also:
            return _several(node, group, run)
        case AllReduce(block=block, reduction=reduction):
            op = OPERATIONS[reduction]
            return lambda blocks: started(dist.all_reduce(blocks[block], op, group, True))
        case Broadcast(block=block, root=root):
            process = mesh.first + root
            return lambda blocks: started(dist.broadcast(blocks[block], process, group, True))
        case Reduce():
            return _reduce(mesh, node, group)
        case AllGather():
            return _all_gather(node, group, run)
        case ReduceScatter():
            return _reduce_scatter(node, group, run)
        case AllToAll():
            return _all_to_all(node, group)
        case Barrier():
            return lambda _blocks: started(dist.barrier(group, async_op=True))


def _alone(mesh: Mesh, collective: Collective) -> Start:
    reads, writes = gives(collective, mesh.rank), gets(collective, mesh.rank)
    pairs = [(a, b) for a, b in zip(reads, writes, strict=False) if a != b]

    def copy(blocks: Blocks) -> Waitable:
        for name, into in pairs:
            blocks[into].copy_(blocks[name])
        return Pending(())

    return copy


def _several(node: AllReduce, group: dist.ProcessGroup, run: Get | None) -> Start:
    """All-reduce several blocks as one flat tensor: their memory, or else a copy."""
    names, op = node.reduced, OPERATIONS[node.reduction]
    if run is not None:
        return lambda blocks: started(dist.all_reduce(run(blocks), op, group, True))

    def start(blocks: Blocks) -> Waitable:
        into = [blocks[name] for name in names]
        flat = torch.cat([block.flatten() for block in into])
        work = dist.all_reduce(flat, op, group, True)

        def take_apart() -> None:
            parts = torch.split(flat, [block.numel() for block in into])
            for block, part in zip(into, parts, strict=True):
                block.copy_(part.view_as(block))

        return Pending([work], take_apart)

    return start


def _reduce(mesh: Mesh, reduce: Reduce, group: dist.ProcessGroup) -> Start:
    """Reduce to the root. Other members send a clone: torch may overwrite what they send."""
    name, root, op = reduce.block, mesh.first + reduce.root, OPERATIONS[reduce.reduction]
    if mesh.rank == reduce.root:
        return lambda blocks: started(dist.reduce(blocks[name], root, op, group, True))
    return lambda blocks: started(dist.reduce(blocks[name].clone(), root, op, group, True))


def _all_gather(gather: AllGather, group: dist.ProcessGroup, run: Get | None) -> Start:
    """Gather into one tensor; blocks that are not contiguous in memory are then copied out of it.

    All ranks must use this form of the call: in gloo it does not match the form for lists.
    """
    given, names = gather.block, in_order(gather)
    if run is not None:
        return lambda blocks: started(
            GATHER(run(blocks), blocks[given].view(-1), group, async_op=True)
        )

    def start(blocks: Blocks) -> Waitable:
        block = blocks[given]
        everyone = block.new_empty(len(names) * block.numel())
        work = GATHER(everyone, block.view(-1), group, async_op=True)
        into = [(name, blocks[name]) for name in names]

        def take_apart() -> None:
            for (name, target), part in zip(into, everyone.view(len(names), -1), strict=True):
                if name != given:
                    target.copy_(part.view_as(target))

        return Pending([work], take_apart)

    return start


def _reduce_scatter(scatter: ReduceScatter, group: dist.ProcessGroup, run: Get | None) -> Start:
    """Reduce-scatter one tensor with all members' blocks, in the order of the ranks."""
    block, op = scatter.block, OPERATIONS[scatter.reduction]
    assert run is not None
    return lambda blocks: started(
        SCATTER(blocks[block].view(-1), run(blocks), op, group, async_op=True)
    )


def _all_to_all(collective: AllToAll, group: dist.ProcessGroup) -> Start:
    """Exchange with one flat buffer per direction, the form that gloo supports too."""
    places = _places(collective)
    given = [collective.blocks[place] for place in places]
    gotten = [collective.into[place] for place in places]

    def exchange(blocks: Blocks) -> Waitable:
        sizes = [blocks[name].numel() for name in given]
        room = [blocks[name].numel() for name in gotten]
        outgoing = torch.cat([blocks[name].flatten() for name in given])
        incoming = outgoing.new_empty(sum(room))
        work = dist.all_to_all_single(incoming, outgoing, room, sizes, group, True)
        into = [blocks[name] for name in gotten]

        def take_apart() -> None:
            for block, part in zip(into, torch.split(incoming, room), strict=True):
                block.copy_(part.view_as(block))

        return Pending([work], take_apart)

    return exchange


def in_order(collective: AllGather | ReduceScatter) -> list[str]:
    """Return the members' blocks in the order of the ranks."""
    return [collective.blocks[place] for place in _places(collective)]


def _places(collective: Collective) -> list[int]:
    """Return the positions in the IR's group, in the order of torch: by rank."""
    return sorted(range(len(collective.group)), key=collective.group.__getitem__)
