"""The fewest slots, and the fewest communicators, with which a program comes to its end.

More slots never make a program hang, so the fewest are found by bisection. Communicators are
another question: each channel is given one of n. Messages that start together keep one, and two
channels of the same ranks keep two, so that what matches stays the same. The search is exact. It
draws an assignment, looks for a cycle of waiting operations, and learns from it: the cycle stays
as long as all operations that follow one another in it, in the order of one communicator, keep one.
So two of them need different communicators. Z3 draws the next assignment; where there is none, n is
too small.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, pairwise
from typing import Any

import z3
from msgspec.structs import replace

from primepar.schedule.matching import Matches
from primepar.schedule.program import Group, Instruction, Message, Program, Recv
from primepar.schedule.program import IRecv as PostedReceive
from primepar.schedule.transport import Order, Transport, on_pairs
from primepar.schedule.waits import NEVER, WaitGraph, cycle_of_nodes, levels
from primepar.verify.program import verify_program

Channel = tuple[str, int, int]
"""Communicator, source and destination."""
Units = dict[Channel, Channel]
"""Channel -> the first of those that some group starts together with it."""


def enough(program: Program, transport: Transport) -> Iterator[str]:
    """Yield what would be enough for a program that hangs in this transport; nothing if it is not.

    Communicators are named where the operations of one run in order.
    """
    buffered = replace(transport, slots=None)
    if verify_program(program, only="deadlock-freedom", transport=buffered).verdict == "proved":
        slots = fewest_slots(program, transport.order)
        yield f"  it would end with {slots} slot{'' if slots == 1 else 's'} or more"
    if transport.order == "free" or _hangs(program, replace(transport, order="free")):
        return
    if verify_program(program, only="deadlock-freedom", buffered=True).verdict == "proved":
        communicators = fewest_communicators(program, transport.slots)
        if communicators is not None:
            count = len(set(communicators.values()))
            yield f"  it would end with its messages on {count} communicators"


def fewest_slots(program: Program, order: Order = "free") -> int | None:
    """The fewest slots of a channel with which a program ends; None if no number is enough.

    The messages and calls of the program must have their partners.
    """
    if _hangs(program, Transport(None, order)):
        return None
    low, high = 0, max(map(len, _channels(program).values()), default=0)
    while low < high:
        middle = (low + high) // 2
        if _hangs(program, Transport(middle, order)):
            low = middle + 1
        else:
            high = middle
    return low


def fewest_communicators(program: Program, slots: int | None = 0) -> dict[Channel, int] | None:
    """Channel -> its communicator, of the fewest with which a program ends; None if it never does.

    A rank runs the messages of a communicator in the order in which it posts them. Collectives keep
    their communicators. Messages must have their partners.
    """
    units = _units(program)
    numbers = {unit: z3.Int(str(unit)) for unit in dict.fromkeys(units.values())}
    solver = z3.Solver()
    for one, two in combinations(units, 2):
        if one[1:] == two[1:]:  # one channel out of two would match other messages
            solver.add(numbers[units[one]] != numbers[units[two]])
    for count in range(1, len(numbers) + 1):
        solver.push()
        solver.add(*(z3.And(number >= 0, number < count) for number in numbers.values()))
        learnt: list[Any] = []
        while solver.check() == z3.sat:
            model = solver.model()
            drawn = {
                channel: model.eval(numbers[unit], model_completion=True).as_long()
                for channel, unit in units.items()
            }
            matches = Matches(_assigned(program, drawn))
            graph = WaitGraph(matches, Transport(slots, "communicator"))
            level = levels(graph)
            if NEVER not in level:
                return drawn
            pairs = list(_streamed(program, graph, cycle_of_nodes(graph, level), units))
            if not pairs:
                return None
            learnt.append(z3.Or([numbers[one] != numbers[two] for one, two in pairs]))
            solver.add(learnt[-1])
        solver.pop()
        solver.add(*learnt)
    return None if numbers else {}


def _hangs(program: Program, transport: Transport) -> bool:
    program = on_pairs(program) if transport.order == "peer" else program
    return NEVER in levels(WaitGraph(Matches(program), transport))


def _channels(program: Program) -> dict[Channel, list[tuple[int, int]]]:
    """Channel -> rank and place of the instructions that send in it."""
    channels: dict[Channel, list[tuple[int, int]]] = {}
    for rank, nodes in enumerate(program.programs):
        for place, node in enumerate(nodes):
            for message in _messages(node):
                if not isinstance(message, Recv | PostedReceive):
                    channels.setdefault(_channel(message, rank), []).append((rank, place))
    return channels


def _messages(node: Instruction) -> tuple[Message, ...]:
    if isinstance(node, Group):
        return node.body
    return (node,) if isinstance(node, Message) else ()


def _channel(message: Message, rank: int) -> Channel:
    receives = isinstance(message, Recv | PostedReceive)
    ends = (message.peer, rank) if receives else (rank, message.peer)
    return message.communicator, *ends


def _units(program: Program) -> Units:
    first: Units = {channel: channel for channel in _channels(program)}

    def root(channel: Channel) -> Channel:
        while first[channel] != channel:
            channel = first[channel]
        return channel

    for rank, nodes in enumerate(program.programs):
        for node in nodes:
            for one, two in pairwise(_channel(message, rank) for message in _messages(node)):
                first[root(two)] = root(one)
    return {channel: root(channel) for channel in first}


def _assigned(program: Program, numbers: dict[Channel, int]) -> Program:
    """The program with its messages on communicators of these numbers."""

    def moved(node: Instruction, rank: int) -> Instruction:
        changed: Any = node  # `replace` takes one type, and a node is of several
        if isinstance(node, Group):
            changed = replace(node, body=tuple(moved(message, rank) for message in node.body))
        elif isinstance(node, Message):
            changed = replace(changed, communicator=f"messages {numbers[_channel(node, rank)]}")
        result: Instruction = changed
        return result

    programs = (tuple(moved(node, rank) for node in nodes)
                for rank, nodes in enumerate(program.programs))  # fmt: skip
    return replace(program, programs=tuple(programs))


def _streamed(
    program: Program, graph: WaitGraph, cycle: list[int], units: Units
) -> Iterator[tuple[Channel, Channel]]:
    """Yield the units of operations of a cycle of which one follows the other in a stream."""
    for start, end in zip(cycle, cycle[1:] + cycle[:1], strict=True):
        if not (graph.is_end(end) and graph.is_end(start + 1)):
            continue
        pair = []
        for rank, place in (graph.places[start], graph.places[end]):
            pair += [units[_channel(m, rank)] for m in _messages(program.programs[rank][place])[:1]]
        if len(set(pair)) == 2:
            yield pair[0], pair[1]
