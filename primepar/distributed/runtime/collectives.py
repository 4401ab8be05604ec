"""Maps the collectives of the IR to torch.distributed."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from primepar.distributed.runtime.memory import Slot
from primepar.distributed.runtime.mesh import Mesh, Ranks
from primepar.distributed.runtime.messages import Start
from primepar.schedule.program import (
    AllGather,
    AllReduce,
    AllToAll,
    Barrier,
    Broadcast,
    Collective,
    Program,
    Reduce,
    ReduceScatter,
)

OPTIONS: dict[type, str] = {
    AllReduce: "AllreduceOptions",
    Reduce: "ReduceOptions",
    Broadcast: "BroadcastOptions",
    AllGather: "AllgatherOptions",
    ReduceScatter: "ReduceScatterOptions",
    AllToAll: "AllToAllOptions",
    Barrier: "BarrierOptions",
}
"""Collective -> the class of its options in torch."""
OPERATIONS = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN}


def starting(
    mesh: Mesh, node: Collective, given: Slot, taken: Slot, sizes: tuple[list[int], list[int]]
) -> Start:
    """Return the function that starts a collective by the group's own method.

    The options are made once, and the checks of `torch.distributed` are left out. `given` and
    `taken` have contiguous tensors: one and the same, or for an all-gather, a reduce-scatter and an
    all-to-all flat ones, in the order of the ranks. `sizes` are the elements for and from each
    member of an all-to-all. All ranks must use one form: in gloo these calls do not match those
    with lists.
    """
    group = mesh.group(node.group, node.communicator)
    options = _options(node)
    match node:
        case AllReduce():
            return lambda: group.allreduce(given, options)
        case Broadcast():
            return lambda: group.broadcast(given, options)
        case Reduce():
            return lambda: group.reduce(given, options)
        case AllGather():
            gather = _newest("all_gather_single", "_allgather_base")
            return lambda: getattr(group, gather)(taken[0], given[0], options)
        case ReduceScatter():
            scatter = _newest("reduce_scatter_single", "_reduce_scatter_base")
            return lambda: getattr(group, scatter)(taken[0], given[0], options)
        case AllToAll():
            outgoing, incoming = sizes
            exchange = _newest("all_to_all_single", "alltoall_base")
            return lambda: getattr(group, exchange)(taken[0], given[0], incoming, outgoing, options)
        case _:
            return lambda: dist.barrier(group, async_op=True)


def run_once(mesh: Mesh, program: Program) -> None:
    """Run each kind of collective once on each communicator that has it; a collective call.

    NCCL connects the members for a kind in its first run, and holds up the host until all are
    there. All ranks do it in one order.
    """
    firsts: dict[tuple[str, Ranks, str], Collective] = {}
    for node in program.programs[mesh.rank]:
        if isinstance(node, Collective) and len(node.group) > 1:
            key = node.communicator, tuple(sorted(node.group)), type(node).__name__
            firsts.setdefault(key, node)
    for key in sorted(firsts.keys() - mesh.collectives):
        node, ones = firsts[key], [1] * len(firsts[key].group)
        sizes = 1, len(ones), len(ones)
        one, given, taken = (torch.zeros(size, device=mesh.device) for size in sizes)
        from_all = isinstance(node, ReduceScatter | AllToAll)
        to_all = isinstance(node, AllGather | AllToAll)
        operands = [given if from_all else one], [taken if to_all else one]
        starting(mesh, node, *operands, (ones, ones))().wait()
        mesh.collectives.add(key)
    mesh.synchronize()


def _newest(name: str, older: str) -> str:
    """Return the method that this torch has: the older ones are deprecated in newer torch."""
    return name if hasattr(dist.ProcessGroup, name) else older


def _options(node: Collective) -> Any:
    """Return the options of a call that returns when it is posted."""
    made: Any = getattr(distributed_c10d, OPTIONS[type(node)])()
    made.asyncOp = True
    if isinstance(node, AllReduce | Reduce | ReduceScatter):
        made.reduceOp = OPERATIONS[node.reduction]
    if isinstance(node, Reduce | Broadcast):
        made.rootRank = sorted(node.group).index(node.root)
    return made


def in_order(collective: AllGather | ReduceScatter) -> list[str]:
    """Return the members' blocks in the order of the ranks."""
    return [collective.blocks[place] for place in places(collective)]


def places(collective: Collective) -> list[int]:
    """Return the positions in the IR's group, in the order of torch: by rank."""
    return sorted(range(len(collective.group)), key=collective.group.__getitem__)
