"""The attack `transports`: the graph of the proof and the run of the explorer must agree.

They have to, on every program with 0 to 3 slots, with any number of them, in every order.
"""

from __future__ import annotations

import random
from itertools import product

from long_runs import TaskResult
from oracle.traffic_run import comes_to_an_end

from primepar.schedule import Program
from primepar.schedule.program import (
    AllReduce,
    Group,
    Instruction,
    IRecv,
    ISend,
    Recv,
    Send,
    Wait,
)
from primepar.schedule.transport import Order, Transport
from primepar.verify.program import verify_program

ORDERS: tuple[Order, ...] = ("free", "communicator", "peer", "queue")
TRANSPORTS = [Transport(slots, order) for slots, order in product((0, 1, 2, 3, None), ORDERS)]


def traffic_program(seed: int) -> Program:
    """Messages and calls of two to four ranks, each with its partner, in random orders.

    The events come from one global order, which ends; then some neighbours of a rank are exchanged.
    """
    chance = random.Random(seed)
    ranks = chance.choice((2, 2, 3, 4))
    lists: list[list[Instruction]] = [[] for _ in range(ranks)]
    for number in range(chance.randint(1, 9)):
        name = chance.choice(("world", "world", "other"))
        if chance.random() < 0.12:
            group = tuple(range(ranks)) if chance.random() < 0.5 else (0, 1)
            for rank in group:
                lists[rank].append(AllReduce(group, name, block=f"g{number}"))
            continue
        source, target = chance.sample(range(ranks), 2)
        burst = chance.choice((1, 1, 1, 2, 3, 4))
        # Tags are not drawn: messages match in order. One kind of block, as data is not asked.
        for part in range(burst):
            lists[source].append(Send(target, f"s{number}.{part}", communicator=name))
            lists[target].append(Recv(source, f"r{number}.{part}", communicator=name))
        if burst > 1:
            _signal(lists, source, target, number, burst)
    groups = chance.random() < 0.5
    programs = [_varied(chance, _shuffled(chance, nodes), groups) for nodes in lists]
    return Program("primepar-program", 1, ranks, tuple(map(tuple, programs)))


def _signal(
    lists: list[list[Instruction]], source: int, target: int, number: int, burst: int
) -> None:
    """Add a message after a burst that its receiver takes before the burst."""
    lists[source].append(Send(target, f"s{number}", communicator="signal"))
    place = len(lists[target]) - burst
    lists[target].insert(place, Recv(source, f"r{number}", communicator="signal"))


def _shuffled(chance: random.Random, nodes: list[Instruction]) -> list[Instruction]:
    for _ in range(chance.choice((0, 0, 1, 2, 4))):
        if len(nodes) > 1:
            place = chance.randrange(len(nodes) - 1)
            nodes[place], nodes[place + 1] = nodes[place + 1], nodes[place]
    return nodes


def _varied(chance: random.Random, nodes: list[Instruction], groups: bool) -> list[Instruction]:
    """The same messages blocking, posted with a later wait, or some in groups."""
    result: list[Instruction] = []
    waits: list[Instruction] = []
    for number, node in enumerate(nodes):
        if not isinstance(node, Send | Recv) or chance.random() < 0.4:
            result.append(node)
        elif not groups or chance.random() < 0.5:
            kind = ISend if isinstance(node, Send) else IRecv
            request = f"q{number}"
            result.append(kind(node.peer, node.block, 0, node.communicator, request=request))
            waits.append(Wait(request))
        else:
            last = result[-1] if result else None
            body = last.body if isinstance(last, Group) else ()
            if body and chance.random() < 0.6:
                result.pop()
            else:
                body = ()
            result.append(Group((*body, node)))
        while waits and chance.random() < 0.3:
            result.append(waits.pop(chance.randrange(len(waits))))
    return result + waits


def tasks(count: int) -> range:
    """The seeds of the programs."""
    return range(count)


def decide(seed: int) -> TaskResult:
    """Compare proof and runs of one program in every transport."""
    program, numbers, differ = traffic_program(seed), {"programs": 1.0}, []
    for transport in TRANSPORTS:
        report = verify_program(program, only="deadlock-freedom", transport=transport)
        ends = report.verdict == "proved"
        numbers[f"{transport.slots} {transport.order}"] = int(ends)
        runs = {comes_to_an_end(program, transport, chance) for chance in (None, seed)}
        if runs != {ends}:
            differ.append(f"{transport}: proof {ends}, runs {runs}")
    return TaskResult({"ends": "of them"}, numbers, bool(differ), "; ".join(differ))
