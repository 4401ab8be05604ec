"""Random small programs of messages and collectives, some of which hang; every block is 2 elements.

All ranks get the calls of one list, in its order; then some instructions are moved. Calls always
match: only their order may be wrong.
"""

from __future__ import annotations

from random import Random
from typing import Any

from primepar.schedule.program import (
    AllReduce,
    Broadcast,
    Group,
    Instruction,
    IRecv,
    ISend,
    Program,
    Recv,
    Send,
    Wait,
)
from primepar.schedule.signature import Tensor

RANKS = 3
NAMES = ("world", "other")


def drawn(seed: int) -> Program:
    """Return a program of up to 8 calls."""
    random = Random(seed)
    lists: list[list[Instruction]] = [[] for _ in range(RANKS)]
    for number in range(random.randint(1, 8)):
        _add_call(random, lists, number)
    for rank, instructions in enumerate(lists):
        lists[rank] = _in_order(random, instructions)
    return program_of(lists)


def _add_call(random: Random, lists: list[list[Instruction]], number: int) -> None:
    name, kind = random.choice(NAMES), random.choice(("posts", "posts", "posts", "waits", "calls"))
    block, request = f"x{number}[0]", f"r{number}"
    if kind == "calls":
        group = tuple(sorted(random.sample(range(RANKS), random.randint(2, RANKS))))
        is_posted = random.random() < 0.5
        later = request if is_posted else None
        call: Instruction = AllReduce(group, name, later, block=f"y{number}[0]")
        if random.random() < 0.3:
            call = Broadcast(group, name, later, block=f"y{number}[0]", root=group[0])
        for rank in group:
            lists[rank] += [call, *[Wait(request)] * is_posted]
        return
    source, target = random.sample(range(RANKS), 2)
    if kind == "waits":
        lists[source].append(Send(target, block, communicator=name))
        lists[target].append(Recv(source, f"{block[:-3]}.got[0]", communicator=name))
        return
    lists[source] += [ISend(target, block, communicator=name, request=request), Wait(request)]
    lists[target] += [
        IRecv(source, f"{block[:-3]}.got[0]", communicator=name, request=request), Wait(request),
    ]  # fmt: skip


def _in_order(random: Random, instructions: list[Instruction]) -> list[Instruction]:
    """Move waits down and some posts up; calls of one channel stay in their order."""
    for _ in range(random.randint(0, 2 * len(instructions))):
        if len(instructions) > 1:
            place = random.randrange(len(instructions) - 1)
            first, second = instructions[place : place + 2]
            if not _fixed(first, second):
                instructions[place : place + 2] = [second, first]
    for place in range(len(instructions) - 1):
        pair = instructions[place : place + 2]
        messages = [node for node in pair if isinstance(node, Send | Recv)]
        if len(messages) == 2 and random.random() < 0.5:
            instructions[place : place + 2] = [Group(tuple(messages))]
            break
    return instructions


def _fixed(first: Instruction, second: Instruction) -> bool:
    """Return whether two neighbours must stay: a post and its wait, or calls of one channel."""
    if isinstance(second, Wait):
        return getattr(first, "request", None) == second.request and not isinstance(first, Wait)
    return _channel(first) is not None and _channel(first) == _channel(second)


def _channel(node: Any) -> tuple[object, ...] | None:
    if isinstance(node, Send | ISend | Recv | IRecv):
        return node.communicator, node.peer, isinstance(node, Send | ISend)
    return (node.communicator, node.group) if isinstance(node, AllReduce | Broadcast) else None


def program_of(lists: list[list[Instruction]]) -> Program:
    """Return the program of these lists; all blocks that are read are there."""
    blocks = sorted({name for nodes in lists for node in nodes for name in _blocks(node)})
    given = tuple(name for name in blocks if ".got" not in name)
    return Program(
        format="primepar-program",
        version=1,
        ranks=len(lists),
        programs=tuple(map(tuple, lists)),
        initial=(given,) * len(lists),
        tensors={name.removesuffix("[0]"): Tensor(((0, 2),)) for name in blocks},
    )


def _blocks(node: Instruction) -> list[str]:
    if isinstance(node, Group):
        return [message.block for message in node.body]
    return [] if isinstance(node, Wait) else [getattr(node, "block", "")]
