"""Small random programs, and the fewest moves that make one pass, by trying all of them."""

from __future__ import annotations

import random
from collections.abc import Iterator

from oracle.explore import explore

from primepar.schedule.program import (
    AllReduce,
    Broadcast,
    Instruction,
    IRecv,
    ISend,
    Program,
    Recv,
    Send,
    Wait,
)
from primepar.verify.repair.edits import Order, RankAccesses, moved, reordered

Lists = list[list[Instruction]]


def right(program: Program) -> bool:
    """Whether the explorer proves a program."""
    return explore(program).overall == "proved"


def random_program(rng: random.Random) -> Program:
    """A program of two or three ranks with at most four messages and calls in any order."""
    ranks = rng.choice([2, 3])
    lists: Lists = [[] for _ in range(ranks)]
    for number in range(rng.randint(2, 4)):
        if rng.random() < 0.3:
            _add_call(rng, lists, number)
        else:
            _add_message(rng, lists, number)
    return Program("primepar-program", 1, ranks, tuple(map(tuple, lists)))


def _add_call(rng: random.Random, lists: Lists, number: int) -> None:
    group = tuple(sorted(rng.sample(range(len(lists)), rng.randint(2, len(lists)))))
    reduces = rng.random() < 0.5
    call: Instruction = AllReduce(group=group, block=f"b{number}")
    call = call if reduces else Broadcast(group=group, block=f"b{number}", root=group[0])
    for rank in group:
        lists[rank].insert(rng.randint(0, len(lists[rank])), call)


def _add_message(rng: random.Random, lists: Lists, number: int) -> None:
    sender, receiver = rng.sample(range(len(lists)), 2)
    tag = rng.choice([0, 0, number])
    for rank, peer, blocking, posted in (
        (sender, receiver, Send, ISend), (receiver, sender, Recv, IRecv),
    ):  # fmt: skip
        block, nodes = f"{rng.choice('xyz')}{rank}", lists[rank]
        if rng.random() < 0.8:
            nodes.insert(rng.randint(0, len(nodes)), blocking(peer=peer, block=block, tag=tag))
            continue
        request, first = f"{posted.__name__}{number}", rng.randint(0, len(nodes))
        nodes.insert(first, posted(peer=peer, block=block, tag=tag, request=request))
        nodes.insert(rng.randint(first + 1, len(nodes)), Wait(request))


def fewest_moves(program: Program, most: int = 2) -> int | None:
    """How many moves of single instructions make a program pass; None if `most` do not."""
    level = {tuple(tuple(range(len(nodes))) for nodes in program.programs)}
    seen = set(level)
    for count in range(most + 1):
        if any(right(reordered(program, orders)) for orders in level):
            return count
        level = {later for orders in level for later in _one_move(program, orders)} - seen
        seen |= level
    return None


def _one_move(program: Program, orders: tuple[Order, ...]) -> Iterator[tuple[Order, ...]]:
    for rank, order in enumerate(orders):
        accesses = RankAccesses(program, rank)
        for source in order:
            for target in order:
                before = order.index(source) > order.index(target)
                later = moved(order, source, target, before, accesses)
                if later is not None:
                    yield (*orders[:rank], later, *orders[rank + 1 :])
