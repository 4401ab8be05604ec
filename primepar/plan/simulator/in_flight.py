"""Messages and collectives in flight in a simulated run: how their ends match, what they send.

Messages match in order for each source, destination and communicator, collectives for each group
and communicator. Bytes are those of the usual algorithms: a ring for all-reduce, all-gather and
reduce-scatter, a chain in group order for broadcast and reduce, messages for all-to-all.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import pairwise

from primepar.errors import MismatchError
from primepar.plan.cluster import Collective as RingName
from primepar.plan.simulator.events import sent
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
    Message,
    Recv,
    Reduce,
    ReduceScatter,
    Send,
)
from primepar.schedule.program_file import instruction_line

MESSAGES = (Send, Recv, ISend, IRecv)
"""The same as a tuple, for which `isinstance` is faster."""
Size = Callable[[str], int]
RINGS: dict[type[Instruction], RingName] = {
    AllReduce: "all_reduce", AllGather: "all_gather", ReduceScatter: "reduce_scatter",
    AllToAll: "all_to_all",
}  # fmt: skip
"""Collectives for which a level of links may have times of its own."""


class Transfer:
    """A message or a collective: the ends that are posted, and its times once it runs.

    `ends` are keyed by the position in `members`; the members of a message are source and target.
    """

    __slots__ = ("begin", "end", "ends", "members")

    def __init__(self, members: tuple[int, ...]) -> None:
        self.members = members
        self.ends: dict[int, Message | Collective] = {}
        self.begin: Scalar = None
        self.end: Scalar = None

    @property
    def complete(self) -> bool:
        """Whether all ends are posted."""
        return len(self.ends) == len(self.members)

    def missing(self) -> list[int]:
        """Ranks whose end is not posted."""
        return [rank for place, rank in enumerate(self.members) if place not in self.ends]

    def of(self, rank: int) -> Message | Collective:
        """The end of a member of a collective."""
        return self.ends[self.members.index(rank)]

    def __str__(self) -> str:
        """What it still waits for: `rank 1 to receive I[0,0]`."""
        missing, node = self.missing(), next(iter(self.ends.values()))
        ranks = f"rank{'s' * (len(missing) > 1)} {', '.join(map(str, missing))}"
        if isinstance(node, MESSAGES):
            verb = "receive" if isinstance(node, Send | ISend) else "send"
            return f"{ranks} to {verb} {node.block}"
        return f"{ranks} to call {instruction_line(node)}"


class PendingEnds:
    """Posted ends whose counterparts are missing.

    A message waits in a queue for its channel: source, destination, communicator. The n-th call of
    a member on a group joins the n-th collective of that group. Example: rank 1 posts two receives
    from rank 0; the first send of rank 0 completes the first of them, whatever its tag.
    """

    def __init__(self) -> None:
        self._channels: dict[tuple[int, int, str], deque[tuple[bool, Transfer]]] = {}
        self._meetings: dict[tuple[str, frozenset[int]], list[Transfer]] = {}
        self._calls: dict[tuple[int, str, frozenset[int]], int] = {}

    def post(self, rank: int, node: Message | Collective) -> Transfer:
        """Post one end. Raises `MismatchError` where it does not match the other ends."""
        return self._message(rank, node) if isinstance(node, MESSAGES) else self._call(rank, node)

    def _message(self, rank: int, node: Message) -> Transfer:
        sends = isinstance(node, (Send, ISend))
        ends = (rank, node.peer) if sends else (node.peer, rank)
        waiting = self._channels.setdefault((*ends, node.communicator), deque())
        if waiting and waiting[0][0] != sends:
            _, transfer = waiting.popleft()
            (partner,) = transfer.ends.values()
            if not isinstance(partner, MESSAGES) or partner.tag != node.tag:
                raise MismatchError(
                    f"expected {instruction_line(partner)} and {instruction_line(node)}, which "
                    "match in order, to have one tag, got two: post sends and receives in one "
                    "order, tags select nothing"
                )
        else:
            transfer = Transfer(ends)
            waiting.append((sends, transfer))
        transfer.ends[int(not sends)] = node
        return transfer

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
        meetings, caller = self._meetings.setdefault(key, []), (rank, *key)
        call = self._calls.get(caller, 0)
        self._calls[caller] = call + 1
        if call == len(meetings):
            meetings.append(Transfer(node.group))
        transfer = meetings[call]
        earliest = next(iter(transfer.ends.values()), node)
        if _agreed_fields(earliest) != _agreed_fields(node):
            earliest_rank = node.group[next(iter(transfer.ends))]
            raise MismatchError(
                f"expected {instruction_line(earliest)} as on rank {earliest_rank}, got "
                f"{instruction_line(node)}: call collectives in one order on every member"
            )
        transfer.ends[transfer.members.index(rank)] = node
        return transfer


def _agreed_fields(node: Message | Collective) -> tuple[object, ...]:
    """The fields of a collective that must be equal on all members."""
    fields = ("group", "root", "reduction", "scale")
    return (type(node), *(getattr(node, field, None) for field in fields))


def traffic(transfer: Transfer, size: Size) -> tuple[list[DeviceTransfer], int]:
    """The bytes that a transfer sends between devices, and the number of its latencies in a row.

    `size` returns the bytes of a block.
    """
    node = next(iter(transfer.ends.values()))
    if isinstance(node, MESSAGES):
        source, target = transfer.members
        message = transfer.ends[0]
        assert isinstance(message, MESSAGES)
        return [DeviceTransfer(source, target, size(message.block))], 1
    if len(node.group) == 1:
        return [], 0
    if isinstance(node, Broadcast | Reduce):
        return _chain(transfer, node, size), len(node.group) - 1
    if isinstance(node, AllToAll):
        return _all_to_all(transfer, size), 1
    ring = sorted(node.group)
    hops = [
        DeviceTransfer(rank, after, sent(transfer.of(rank), rank, size))
        for rank, after in zip(ring, [*ring[1:], ring[0]], strict=True)
    ]
    steps = len(ring) - 1
    return hops, 1 if isinstance(node, Barrier) else steps * (1 + isinstance(node, AllReduce))


def _chain(transfer: Transfer, node: Broadcast | Reduce, size: Size) -> list[DeviceTransfer]:
    """Hops of a chain: from the root along the group for a broadcast, back to it for a reduce."""
    start = node.group.index(node.root)
    line = node.group[start:] + node.group[:start]
    hops = []
    for rank, after in pairwise(line):
        source, target = (rank, after) if isinstance(node, Broadcast) else (after, rank)
        holder = transfer.of(node.root if isinstance(node, Broadcast) else source)
        assert isinstance(holder, Broadcast | Reduce)
        hops.append(DeviceTransfer(source, target, size(holder.block)))
    return hops


def _all_to_all(transfer: Transfer, size: Size) -> list[DeviceTransfer]:
    return [
        DeviceTransfer(rank, target, size(block))
        for rank, node in ((rank, transfer.of(rank)) for rank in transfer.members)
        if isinstance(node, AllToAll)
        for target, block in zip(node.group, node.blocks, strict=True)
        if target != rank
    ]
