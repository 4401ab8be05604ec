"""What blocks hold in the explorer, and what collectives make of it.

A block is a set of (term, times) pairs. A term is a product, a block's own data from before the
program, or a choice by max or min.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import chain
from typing import Any

from primepar.schedule.operators import PRODUCTS, block_name, parse_block, tensor_dims
from primepar.schedule.program import (
    AllGather,
    AllReduce,
    AllToAll,
    Barrier,
    Broadcast,
    Collective,
    Compute,
    Group,
    Instruction,
    Program,
    Recv,
    Reduce,
    ReduceScatter,
    Send,
)

Content = frozenset[tuple[Any, int]]
Call = tuple[Collective, list[Content]]
"""A collective with the contents that one member brings to it."""


def outputs(program: Program) -> set[str]:
    """Tensors that the program sums into."""
    nodes = chain.from_iterable(program.programs)
    computed = {node.phase for node in nodes if isinstance(node, Compute) and node.phase}
    return {PRODUCTS[phase].writes for phase in computed | set(program.grid or {})}


def own_data(program: Program, block: str) -> Content:
    """What a block holds that the program did not make."""
    name = parse_block(block)
    before = name is not None and name.tensor in outputs(program)
    return frozenset({(("before" if before else "datum", block), 1)})


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


def results(node: Collective, rank: int, given: dict[int, list[Content]]) -> list[Content]:
    """What `rank` gets, in the order of `gets`."""
    brought = [given[member] for member in node.group]
    own = node.group.index(rank)
    match node:
        case AllReduce():
            return [_reduced(node.reduction, [contents[0] for contents in brought])]
        case Reduce(root=root):
            reduced = _reduced(node.reduction, [contents[0] for contents in brought])
            return [reduced] if root == rank else []
        case Broadcast(root=root):
            return [] if root == rank else [given[root][0]]
        case AllGather():
            return [contents[0] for contents in brought]
        case ReduceScatter():
            return [_reduced(node.reduction, [contents[own] for contents in brought])]
        case AllToAll():
            return [contents[own] for contents in brought]
        case _:
            return []


def _reduced(reduction: str, contents: list[Content]) -> Content:
    if reduction != "sum":
        chosen = frozenset(contents)
        return contents[0] if len(chosen) == 1 else frozenset({((reduction, chosen), 1)})
    total = Counter[Any]()
    for content in contents:
        total.update(dict(content))
    return frozenset(total.items())


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


def operands(node: Compute) -> list[str]:
    """Blocks that the sub-operator of a product multiplies."""
    slices, phase = node.sub_operator or {}, node.phase or "forward"
    return [
        block_name(tensor, tuple(slices[dim] for dim in tensor_dims(tensor) if dim in slices))
        for tensor in PRODUCTS[phase].reads
    ]


def body(node: Instruction) -> tuple[Send | Recv, ...]:
    """Messages that a blocking instruction starts together."""
    if isinstance(node, Group):
        return node.body
    return (node,) if isinstance(node, Send | Recv) else ()


def members(node: Collective) -> tuple[str, tuple[int, ...]]:
    """Communicator and ranks within which collectives meet in order."""
    return node.communicator, tuple(sorted(node.group))
