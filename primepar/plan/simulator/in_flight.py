"""Messages and collectives of a simulated run: which ends belong together, and what they send.

Messages match in order for each source, destination and communicator, collectives for each group
and communicator. Bytes are counted as the usual algorithms send: a ring for all-reduce, all-gather
and reduce-scatter, a chain in group order for broadcast and reduce, messages for all-to-all.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from fractions import Fraction
from itertools import pairwise

from primepar.errors import MismatchError
from primepar.plan.cluster import Collective as RingName
from primepar.plan.simulator.links import DeviceTransfer, Scalar
from primepar.schedule.program import (
    AllGather,
    AllReduce,
    AllToAll,
    Barrier,
    Broadcast,
    Collective,
    Instruction,
    IRecv,
    ISend,
    Recv,
    Reduce,
    ReduceScatter,
    Send,
)
from primepar.schedule.program_file import instruction_line

Message = Send | Recv | ISend | IRecv
MESSAGES = (Send, Recv, ISend, IRecv)
"""The same, of which instances are told faster."""
Elements = Callable[[str], int]
RINGS: dict[type[Instruction], RingName] = {
    AllReduce: "all_reduce", AllGather: "all_gather", ReduceScatter: "all_gather"
}  # fmt: skip
"""Collectives that a level of links may have numbers of its own for."""


class Transfer:
    """A message or a collective: the ends that are there, and its times once it runs.

    `ends` are in the order of `members`, of a message source and target.
    """

    __slots__ = ("begin", "end", "ends", "members")

    def __init__(self, members: tuple[int, ...]) -> None:
        self.members = members
        self.ends: dict[int, Message | Collective] = {}
        self.begin: Scalar = None
        self.end: Scalar = None

    @property
    def complete(self) -> bool:
        """Whether all ends are there."""
        return len(self.ends) == len(self.members)

    def missing(self) -> list[int]:
        """Ranks whose end is not there."""
        return [rank for place, rank in enumerate(self.members) if place not in self.ends]

    def of(self, rank: int) -> Message | Collective:
        """The end of a member of a collective."""
        return self.ends[self.members.index(rank)]

    def __str__(self) -> str:
        """What is waited for, `rank 1 to receive I[0,0]`."""
        missing, node = self.missing(), next(iter(self.ends.values()))
        ranks = f"rank{'s' * (len(missing) > 1)} {', '.join(map(str, missing))}"
        if isinstance(node, MESSAGES):
            verb = "receive" if isinstance(node, Send | ISend) else "send"
            return f"{ranks} to {verb} {node.block}"
        return f"{ranks} to call {instruction_line(node)}"


class PendingEnds:
    """All ends that wait for another one."""

    def __init__(self) -> None:
        self._channels: dict[tuple[int, int, str], deque[tuple[bool, Transfer]]] = {}
        self._meetings: dict[tuple[str, frozenset[int]], list[Transfer]] = {}
        self._calls: dict[tuple[int, str, frozenset[int]], int] = {}

    def post(self, rank: int, node: Message | Collective) -> Transfer:
        """Post one end. Raises `MismatchError` where it does not agree with the others."""
        return self._message(rank, node) if isinstance(node, MESSAGES) else self._call(rank, node)

    def _message(self, rank: int, node: Message) -> Transfer:
        sends = isinstance(node, (Send, ISend))
        ends = (rank, node.peer) if sends else (node.peer, rank)
        waiting = self._channels.setdefault((*ends, node.communicator), deque())
        if waiting and waiting[0][0] != sends:
            _, found = waiting.popleft()
            (other,) = found.ends.values()
            if not isinstance(other, MESSAGES) or other.tag != node.tag:
                raise MismatchError(
                    f"expected {instruction_line(other)} and {instruction_line(node)}, which match "
                    "in order, to have one tag, got two: post sends and receives in one order, "
                    "tags select nothing"
                )
        else:
            found = Transfer(ends)
            waiting.append((sends, found))
        found.ends[int(not sends)] = node
        return found

    def _call(self, rank: int, node: Collective) -> Transfer:
        if rank not in node.group:
            raise MismatchError(
                f"expected rank {rank} in the group of its own collective, got "
                f"{instruction_line(node)}: name it, or leave the call out"
            )
        for names in (getattr(node, "blocks", node.group), getattr(node, "into", node.group)):
            if len(names) != len(node.group):
                raise MismatchError(
                    f"expected one block for each of {len(node.group)} members, "
                    f"got {len(names)} in {instruction_line(node)}"
                )
        key = node.communicator, frozenset(node.group)
        meetings, place = self._meetings.setdefault(key, []), (rank, *key)
        call = self._calls.get(place, 0)
        self._calls[place] = call + 1
        if call == len(meetings):
            meetings.append(Transfer(node.group))
        found = meetings[call]
        first = next(iter(found.ends.values()), node)
        if _claim(first) != _claim(node):
            other = node.group[next(iter(found.ends))]
            raise MismatchError(
                f"expected {instruction_line(first)} as on rank {other}, got "
                f"{instruction_line(node)}: call collectives in one order on every member"
            )
        found.ends[found.members.index(rank)] = node
        return found


def _claim(node: Message | Collective) -> tuple[object, ...]:
    """What all members must agree on."""
    return (type(node), getattr(node, "group", None), getattr(node, "root", None),
            getattr(node, "reduction", None))  # fmt: skip


def traffic(transfer: Transfer, elements: Elements, item: int) -> tuple[list[DeviceTransfer], int]:
    """What a transfer sends from whom to whom, in bytes, and the latencies that it takes."""
    node = next(iter(transfer.ends.values()))
    if isinstance(node, MESSAGES):
        source, target = transfer.members
        sent = transfer.ends[0]
        assert isinstance(sent, MESSAGES)
        return [DeviceTransfer(source, target, elements(sent.block) * item)], 1
    if len(node.group) == 1:
        return [], 0
    if isinstance(node, Broadcast | Reduce):
        return _chain(transfer, node, elements, item), len(node.group) - 1
    if isinstance(node, AllToAll):
        return _all_to_all(transfer, elements, item), 1
    ring = sorted(node.group)
    hops = [
        DeviceTransfer(rank, after, _in_ring(transfer.of(rank), elements) * item)
        for rank, after in zip(ring, [*ring[1:], ring[0]], strict=True)
    ]
    turns = len(ring) - 1
    return hops, 1 if isinstance(node, Barrier) else turns * (1 + isinstance(node, AllReduce))


def _in_ring(node: Message | Collective, elements: Elements) -> Fraction | int:
    """Elements that leave a member of a ring."""
    match node:
        case AllReduce(group=group, block=block):
            return Fraction(2 * (len(group) - 1) * elements(block), len(group))
        case ReduceScatter(group=group, blocks=blocks):
            return Fraction((len(group) - 1) * sum(map(elements, blocks)), len(group))
        case AllGather(group=group, block=block):
            return (len(group) - 1) * elements(block)
        case _:
            return 0


def _chain(
    transfer: Transfer, node: Broadcast | Reduce, elements: Elements, item: int
) -> list[DeviceTransfer]:
    """From the root along the group, or along the group to the root."""
    at = node.group.index(node.root)
    line = node.group[at:] + node.group[:at]
    hops = []
    for rank, after in pairwise(line):
        source, target = (rank, after) if isinstance(node, Broadcast) else (after, rank)
        given = transfer.of(node.root if isinstance(node, Broadcast) else source)
        assert isinstance(given, Broadcast | Reduce)
        hops.append(DeviceTransfer(source, target, elements(given.block) * item))
    return hops


def _all_to_all(transfer: Transfer, elements: Elements, item: int) -> list[DeviceTransfer]:
    return [
        DeviceTransfer(rank, target, elements(block) * item)
        for rank, node in ((rank, transfer.of(rank)) for rank in transfer.members)
        if isinstance(node, AllToAll)
        for target, block in zip(node.group, node.blocks, strict=True)
        if target != rank
    ]
