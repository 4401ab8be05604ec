"""Gives messages communicators of their own where one order per communicator would hang.

Where a communicator runs its operations in one order (NCCL), a message that is posted early holds
up later ones. A channel, that is a source and a destination, holds up nothing if it has its own
communicator: both ends post its messages in the order in which they match. So the messages of a
program that would hang are moved to communicators of their channels, `world.0>1`. First only those
are moved that were posted apart from the other direction, at one of their ends; the others stay in
their batches. If that is not enough, all messages are moved.

The program stays what it was: which message matches which does not change, as both ends move.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from msgspec.structs import replace

from primepar.schedule.communicators import batches
from primepar.schedule.one_order import out_of_order
from primepar.schedule.program import Group, Instruction, ISend, Message, Program, Send

Channel = tuple[str, int, int]
"""Communicator, source and destination."""


class PostedEnd(NamedTuple):
    """One end of a message: its rank, instruction, and position in a group (0 outside of one).

    It is apart if its batch has messages of one direction only.
    """

    rank: int
    place: int
    part: int
    is_apart: bool


def own_communicators(program: Program) -> Program:
    """Return the program with messages on communicators of their own, where NCCL demands it.

    A program that no such change lets end is returned as it is.
    """
    if out_of_order(program) is None:
        return program
    for whole in (False, True):
        changed = _moved(program, whole)
        if out_of_order(changed) is None:
            return changed
    return program


def _moved(program: Program, whole: bool) -> Program:
    """Move the messages that are posted apart to their channels, or all of a `whole` program."""
    names: dict[tuple[int, int, int], str] = {}
    for (name, source, target), (sends, receives) in _channels(program).items():
        for pair in zip(sends, receives, strict=False):
            if whole or any(end.is_apart for end in pair):
                names.update({end[:3]: f"{name}.{source}>{target}" for end in pair})
    return replace(
        program,
        programs=tuple(
            tuple(_renamed(node, rank, place, names) for place, node in enumerate(instructions))
            for rank, instructions in enumerate(program.programs)
        ),
    )


def _channels(program: Program) -> dict[Channel, tuple[list[PostedEnd], list[PostedEnd]]]:
    """Return the sends and the receives of every channel, in their order."""
    channels: dict[Channel, tuple[list[PostedEnd], list[PostedEnd]]] = {}
    for rank, instructions in enumerate(program.programs):
        place = 0
        for nodes in batches(instructions):
            ends = _ends(nodes, place)
            for message, position, part in ends:
                sends = isinstance(message, Send | ISend)
                is_apart = all(isinstance(other, Send | ISend) == sends for other, _, _ in ends)
                pair = (rank, message.peer) if sends else (message.peer, rank)
                lists = channels.setdefault((message.communicator, *pair), ([], []))
                lists[not sends].append(PostedEnd(rank, position, part, is_apart))
            place += len(nodes)
    return channels


def _ends(nodes: tuple[Instruction, ...], place: int) -> list[tuple[Message, int, int]]:
    """Return the messages of a batch, each with its instruction and its position in a group."""
    if isinstance(nodes[0], Group):
        return [(message, place, part) for part, message in enumerate(nodes[0].body)]
    return [
        (node, place + offset, 0) for offset, node in enumerate(nodes) if isinstance(node, Message)
    ]


def _renamed(
    node: Instruction, rank: int, place: int, names: dict[tuple[int, int, int], str]
) -> Instruction:
    changed: Any = node  # `replace` takes one type, and a node is of many
    if isinstance(node, Group):
        parts = (
            (message, names.get((rank, place, part), message.communicator))
            for part, message in enumerate(node.body)
        )
        body = tuple(replace(message, communicator=name) for message, name in parts)
        changed = replace(changed, body=body)
    elif (rank, place, 0) in names:
        changed = replace(changed, communicator=names[rank, place, 0])
    renamed: Instruction = changed
    return renamed
