"""Results of collectives in the explorer, and which calls match."""

from __future__ import annotations

from collections.abc import Mapping

from oracle.contents import CellSums, combined, scaled
from primepar.schedule.matching import Elements, dispute
from primepar.schedule.program import (
    AllGather,
    AllReduce,
    AllToAll,
    Barrier,
    Broadcast,
    Collective,
    Gather,
    Reduce,
    ReduceScatter,
    Scatter,
)

Call = tuple[Collective, list[CellSums]]
"""A collective with the contents of one member's inputs."""


def inputs(node: Collective, rank: int) -> tuple[str, ...]:
    """Blocks that a member sends."""
    match node:
        case Barrier():
            return ()
        case Scatter(blocks=blocks):
            return blocks
        case Broadcast(block=block, root=root):
            return (block,) if root == rank else ()
        case ReduceScatter(blocks=blocks) | AllToAll(blocks=blocks):
            return blocks
        case AllReduce(block=block, also=also):
            return (block, *also)
        case _:
            return (node.block,)


def outputs(node: Collective, rank: int) -> tuple[str, ...]:
    """Blocks that a member receives."""
    match node:
        case Barrier():
            return ()
        case Gather(blocks=blocks):
            return blocks
        case Reduce(block=block, root=root):
            return (block,) if root == rank else ()
        case Broadcast(block=block, root=root):
            return () if root == rank else (block,)
        case AllGather(blocks=blocks):
            return blocks
        case AllToAll(into=into):
            return into
        case AllReduce(block=block, also=also):
            return (block, *also)
        case _:
            return (node.block,)


def results(node: Collective, rank: int, given: dict[int, list[CellSums]]) -> list[CellSums]:
    """The contents that `rank` receives, in the order of `outputs`."""
    sent = [given[member] for member in node.group]
    member_index = node.group.index(rank)
    match node:
        case AllReduce():
            return [_reduced(node, list(contents)) for contents in zip(*sent, strict=True)]
        case Reduce(root=root):
            return [_reduced(node, [contents[0] for contents in sent])] if root == rank else []
        case Broadcast(root=root):
            return [] if root == rank else [given[root][0]]
        case Scatter(root=root):
            return [given[root][member_index]]
        case AllGather() | Gather():
            return [contents[0] for contents in sent if outputs(node, rank)]
        case ReduceScatter():
            return [_reduced(node, [contents[member_index] for contents in sent])]
        case AllToAll():
            return [contents[member_index] for contents in sent]
        case _:
            return []


def _reduced(node: AllReduce | Reduce | ReduceScatter, contents: list[CellSums]) -> CellSums:
    return scaled(combined(node.reduction, contents), node.scale_value)


def agree(calls: Mapping[int, Collective], elements: Elements) -> bool:
    """Whether the calls of all members match."""
    nodes = list(calls.values())
    claims = {
        (
            type(node),
            node.group,
            getattr(node, "root", None),
            getattr(node, "reduction", None),
            node.scale_value,
            len(getattr(node, "also", ())),
        )
        for node in nodes
    }
    lists = [
        len(getattr(node, name)) == len(node.group)
        for node in nodes
        for name in ("blocks", "into")
        if hasattr(node, name) and not isinstance(node, Gather | Scatter)
    ]
    return len(claims) == 1 and all(lists) and dispute([*calls.items()], elements) is None


def members(node: Collective) -> tuple[str, tuple[int, ...]]:
    """Communicator and ranks within which collectives match in order."""
    return node.communicator, tuple(sorted(node.group))
