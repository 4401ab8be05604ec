"""What an instruction reads, writes, frees, posts and awaits. Stated here once, for every reader.

    instruction            reads            writes          frees        posts        request
    compute a += b * c     b, c             a
    isend a -> 1           a                                             itself       its own
    irecv b <- 0                            b                            itself       its own
    wait r                                                                            (awaits r)
    group                  of its body, one after the other              its body     if it has one
    all_reduce a           a                a                            itself       if it has one
    free a, evict a        a                                a
    cut a -> b, c          a                b, c            a if in place

A block that is read must be there when the instruction starts, and what is written is there when it
is done: for what has a request, that is at its wait. A sum that starts at zero need not be there,
so `compute` reads its operands only. What a block *holds* afterwards is not stated here: the judge,
the emulator and the executor each have a semantics of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple

from primepar.schedule.program import (
    AllGather,
    Alloc,
    AllReduce,
    AllToAll,
    Barrier,
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
    Program,
    Recv,
    Reduce,
    ReduceScatter,
    Scatter,
    Send,
    Wait,
)

Post = Send | Recv | ISend | IRecv | Collective
"""One side of a message, or one member's call of a collective."""
Names = tuple[str, ...]


class Effects(NamedTuple):
    """What one instruction does to the blocks of its rank, and what it starts and awaits."""

    reads: Names = ()
    """Blocks that must be on the device when it starts."""
    writes: Names = ()
    """Blocks that it makes or replaces."""
    frees: Names = ()
    """Blocks that are not on the device afterwards."""
    posts: tuple[Post, ...] = ()
    """The sides of messages and collectives that it starts, in the order of the list."""
    request: str | None = None
    """What a wait for it names; None if what it starts is done when it returns."""
    awaits: str | None = None
    """The request that a wait finishes."""

    @property
    def blocks(self) -> bool:
        """Whether it may have to wait for another rank before it returns."""
        return self.awaits is not None or (bool(self.posts) and self.request is None)


NOTHING = Effects()


def effects(node: Instruction, rank: int) -> Effects:
    """The effects of an instruction on its rank."""
    return _OF[type(node)](node, rank)


def _message(node: Any, rank: int) -> Effects:
    request = getattr(node, "request", None)
    if isinstance(node, Send | ISend):
        return Effects((node.block,), (), (), (node,), request)
    return Effects((), (node.block,), (), (node,), request)


def _group(node: Group, rank: int) -> Effects:
    sends = tuple([message.block for message in node.body if isinstance(message, Send)])
    receives = tuple([message.block for message in node.body if isinstance(message, Recv)])
    return Effects(sends, receives, (), node.body, node.request)


def _cut(node: Cut, rank: int) -> Effects:
    return Effects((node.block,), node.blocks, (node.block,) if node.in_place else ())


def _join(node: Join, rank: int) -> Effects:
    return Effects(node.blocks, (node.block,), node.blocks if node.in_place else ())


def _collective(given: Names, gotten: Names, node: Collective) -> Effects:
    return Effects(given, gotten, (), (node,), node.request)


def _rooted(node: Broadcast | Reduce, rank: int) -> tuple[Names, Names]:
    """What the root reads of a broadcast the others write; what all read of a sum it writes."""
    block, is_root = (node.block,), rank == node.root
    if isinstance(node, Reduce):
        return block, block if is_root else ()
    return (block, ()) if is_root else ((), block)


_OF: Mapping[type, Callable[[Any, int], Effects]] = {
    Compute: lambda node, rank: Effects(node.reads, (node.accumulates,)),
    Send: _message,
    Recv: _message,
    ISend: _message,
    IRecv: _message,
    Wait: lambda node, rank: Effects(awaits=node.request),
    Group: _group,
    Alloc: lambda node, rank: Effects((), (node.block,)),
    Free: lambda node, rank: Effects((node.block,), (), (node.block,)),
    Fetch: lambda node, rank: Effects((), (node.block,)),
    Evict: lambda node, rank: Effects((node.block,), (), (node.block,)),
    Cut: _cut,
    Join: _join,
    Barrier: lambda node, rank: _collective((), (), node),
    AllReduce: lambda node, rank: _collective(node.reduced, node.reduced, node),
    Broadcast: lambda node, rank: _collective(*_rooted(node, rank), node),
    Reduce: lambda node, rank: _collective(*_rooted(node, rank), node),
    AllGather: lambda node, rank: _collective((node.block,), node.blocks, node),
    ReduceScatter: lambda node, rank: _collective(node.blocks, (node.block,), node),
    AllToAll: lambda node, rank: _collective(node.blocks, node.into, node),
    Gather: lambda node, rank: _collective((node.block,), node.blocks, node),
    Scatter: lambda node, rank: _collective(node.blocks, (node.block,), node),
}


def frees(node: Instruction) -> Names:
    """Blocks that are not on the device after an instruction; the same on every rank."""
    return effects(node, 0).frees


def initial_blocks(program: Program) -> tuple[Names, ...]:
    """What every device holds before the program: `initial`, or what it uses before a write."""
    if program.initial is not None:
        return program.initial
    return tuple(_used_first(program, rank)[0] for rank in range(program.ranks))


def host_blocks(program: Program) -> tuple[Names, ...]:
    """What every host memory holds before the program: `host_initial`, and no more with `initial`.

    Without `initial` a block whose first instruction on this rank fetches it.
    """
    if program.initial is not None:
        return program.host_initial or ((),) * program.ranks
    return tuple(_used_first(program, rank)[1] for rank in range(program.ranks))


def _used_first(program: Program, rank: int) -> tuple[Names, Names]:
    """The blocks whose first instruction on a rank reads them, and those that it fetches."""
    read, fetched = dict[str, None](), dict[str, None]()
    known: set[str] = set()
    for node in program.programs[rank]:
        of = effects(node, rank)
        first, names = (fetched, of.writes) if isinstance(node, Fetch) else (read, of.reads)
        first.update((name, None) for name in names if name not in known)
        known.update(of.reads, of.writes)
    return tuple(read), tuple(fetched)


# The fields of instructions that name blocks

_ONE, _SEVERAL = ("block", "accumulates"), ("blocks", "into", "reads", "also")


@cache
def _fields(kind: type[Instruction]) -> tuple[Names, Names]:
    """The fields of an instruction class that hold one block, and those with several."""
    one, several = (
        tuple(name for name in names if name in kind.__struct_fields__)
        for names in (_ONE, _SEVERAL)
    )
    return one, several


def blocks_named(node: Instruction) -> Iterator[str]:
    """Yield the blocks that an instruction names."""
    one, several = _fields(type(node))
    yield from (getattr(node, field) for field in one)
    for field in several:
        yield from getattr(node, field)
    if isinstance(node, Group):
        yield from (message.block for message in node.body)


def blocks_renamed(node: Instruction, block: Callable[[str], str]) -> dict[str, Any]:
    """The fields of an instruction that name blocks, with their new values."""
    one, several = _fields(type(node))
    changes: dict[str, Any] = {field: block(getattr(node, field)) for field in one}
    for field in several:
        changes[field] = tuple(map(block, getattr(node, field)))
    return changes
