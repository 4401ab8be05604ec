"""What collectives make in the explorer, and which calls are one."""

from __future__ import annotations

from collections.abc import Sequence

from primepar.schedule.program import (
    AllGather,
    AllReduce,
    AllToAll,
    Barrier,
    Broadcast,
    Collective,
    Group,
    Instruction,
    Recv,
    Reduce,
    ReduceScatter,
    Send,
)
from primepar.verify.explorer.contents import CellSums, combined

Call = tuple[Collective, list[CellSums]]
"""A collective with the contents that one member brings to it."""


def gives(node: Collective, rank: int) -> tuple[str, ...]:
    """Blocks that a member brings."""
    match node:
        case Barrier():
            return ()
        case Broadcast(block=block, root=root):
            return (block,) if root == rank else ()
        case ReduceScatter(blocks=blocks) | AllToAll(blocks=blocks):
            return blocks
        case _:
            return (node.block,)


def gets(node: Collective, rank: int) -> tuple[str, ...]:
    """Blocks that a member ends with."""
    match node:
        case Barrier():
            return ()
        case Reduce(block=block, root=root):
            return (block,) if root == rank else ()
        case Broadcast(block=block, root=root):
            return () if root == rank else (block,)
        case AllGather(blocks=blocks):
            return blocks
        case AllToAll(into=into):
            return into
        case _:
            return (node.block,)


def results(node: Collective, rank: int, given: dict[int, list[CellSums]]) -> list[CellSums]:
    """What `rank` gets, in the order of `gets`."""
    brought = [given[member] for member in node.group]
    own = node.group.index(rank)
    match node:
        case AllReduce():
            return [combined(node.reduction, [contents[0] for contents in brought])]
        case Reduce(root=root):
            reduced = combined(node.reduction, [contents[0] for contents in brought])
            return [reduced] if root == rank else []
        case Broadcast(root=root):
            return [] if root == rank else [given[root][0]]
        case AllGather():
            return [contents[0] for contents in brought]
        case ReduceScatter():
            return [combined(node.reduction, [contents[own] for contents in brought])]
        case AllToAll():
            return [contents[own] for contents in brought]
        case _:
            return []


def agree(nodes: Sequence[Collective]) -> bool:
    """Whether calls of several members are one collective."""
    claims = {
        (type(node), node.group, getattr(node, "root", None), getattr(node, "reduction", None))
        for node in nodes
    }
    lists = [
        len(getattr(node, name)) == len(node.group)
        for node in nodes
        for name in ("blocks", "into")
        if hasattr(node, name)
    ]
    return len(claims) == 1 and all(lists)


def body(node: Instruction) -> tuple[Send | Recv, ...]:
    """Messages that a blocking instruction starts together."""
    if isinstance(node, Group):
        return node.body
    return (node,) if isinstance(node, Send | Recv) else ()


def members(node: Collective) -> tuple[str, tuple[int, ...]]:
    """Communicator and ranks within which collectives meet in order."""
    return node.communicator, tuple(sorted(node.group))
