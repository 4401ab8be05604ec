"""Links while transfers run: the messages through a port share its bandwidth evenly.

A message goes through two ports of the innermost level that joins its devices: one out, one in. A
port divides its bandwidth by the number of its messages, and gives none more than the `stream` of
its link. A message gets the smaller of its two shares; the rest of the larger share stays unused.
All messages of one collective advance at one rate. Shares change only when a transfer begins or
ends. Example: two messages leave one device at 10 GB/s for two others; each gets 5 GB/s, and once
one has ended the other gets 10 GB/s.

Which ends meet is what `schedule.matching` states. The bytes are those of the usual algorithms: a
ring for all-reduce, all-gather and reduce-scatter, a chain in group order for broadcast and reduce,
messages for all-to-all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fractions import Fraction
from heapq import heappop, heappush
from itertools import pairwise
from typing import Any, NamedTuple

from primepar.plan.cluster import Cluster, LinkTimes
from primepar.plan.cluster import Collective as RingName
from primepar.plan.simulator.work import Scalar, sent
from primepar.schedule.effects import Post
from primepar.schedule.program import (
    AllGather,
    AllReduce,
    AllToAll,
    Barrier,
    Broadcast,
    Instruction,
    Message,
    Reduce,
    ReduceScatter,
)


class Clock:
    """Actions in order of their time; those of equal time in order of their scheduling."""

    def __init__(self) -> None:
        self.now: Scalar = 0
        self._queue: list[tuple[Scalar, int, Callable[..., None], tuple[Any, ...]]] = []
        self._entries = 0

    def schedule(self, time: Scalar, action: Callable[..., None], *arguments: object) -> None:
        """Schedule an action at a time."""
        heappush(self._queue, (time, self._entries, action, arguments))
        self._entries += 1

    def run(self, settle: Callable[[], None]) -> None:
        """Call all actions; `settle` is called before each advance of the time."""
        while self._queue:
            self.now = self._queue[0][0]
            while self._queue and self._queue[0][0] == self.now:
                _, _, action, arguments = heappop(self._queue)
                action(*arguments)
            settle()


class DeviceTransfer(NamedTuple):
    """A number of bytes that one device sends to another."""

    source: int
    target: int
    size: Fraction | int
    """Bytes."""


class Port:
    """One direction, out or in, of a device's link, or of a link that a group of devices shares."""

    def __init__(self, level: int, owner: int, out: bool, bandwidth: Scalar) -> None:
        self.level, self.owner, self.out, self.bandwidth = level, owner, out, bandwidth
        self.flows: dict[ActiveTransfer, int] = {}
        self.messages = 0
        self.starting = 0
        """Messages of their own whose bytes do not move yet."""
        self.carried: Fraction | int = 0
        self.busy: Scalar = 0
        self._since: Scalar = 0

    @property
    def share(self) -> Scalar:
        """Bytes per second of each message in the port, unless it gets less even alone."""
        return self.bandwidth / self.messages

    def enter(self, flow: ActiveTransfer, now: Scalar) -> None:
        """Add one message of a flow."""
        if not self.messages:
            self._since = now
        self.messages += 1
        self.flows[flow] = self.flows.get(flow, 0) + 1

    def leave(self, flow: ActiveTransfer, now: Scalar) -> None:
        """Remove all messages of a flow."""
        messages = self.flows.pop(flow, 0)
        self.messages -= messages
        if messages and not self.messages:
            self.busy += now - self._since


class SentByAll(NamedTuple):
    """A collective: its name, the devices of its group, and the bytes that each of them sends."""

    name: RingName
    group: int
    sent: Fraction | int


class TransferPath(NamedTuple):
    """A message between two ports: what it counts in them, and the most that it gets alone."""

    out: Port
    into: Port
    size: Scalar
    alone: Scalar


class ActiveTransfer:
    """The messages of one transfer: the part `left` falls from 1 to 0, at `rate` per second."""

    __slots__ = ("done", "left", "paths", "rate", "since", "version")

    def __init__(self, paths: list[TransferPath], done: Callable[[], None]) -> None:
        self.paths, self.done = paths, done
        self.left: Scalar = 1
        self.rate: Scalar = 0
        self.since: Scalar = 0
        self.version = 0

    def share(self) -> Scalar:
        """The part of the transfer sent per second, at the present load of its ports."""
        return min(
            min(path.out.share, path.into.share, path.alone) / path.size for path in self.paths
        )


class Network:
    """The links of a cluster, and the transfers on them."""

    def __init__(self, cluster: Cluster, clock: Clock, number: Callable[[Any], Scalar]) -> None:
        self._cluster, self._clock, self._number = cluster, clock, number
        self._ports: dict[tuple[int, int, bool], Port] = {}
        self._paths: dict[tuple[int, int], tuple[Port, Port]] = {}
        self._changed: dict[ActiveTransfer, None] = {}

    @property
    def ports(self) -> list[Port]:
        """All ports that carried bytes, level by level."""
        used = (port for port in self._ports.values() if port.carried)
        return sorted(used, key=lambda port: (port.level, port.owner, not port.out))

    def start(
        self,
        hops: Iterable[DeviceTransfer],
        steps: int,
        done: Callable[[], None],
        collective: SentByAll | None = None,
    ) -> None:
        """Start a transfer: what it takes before its bytes move, then its bytes.

        `done` is called at its end. A collective uses the times that a level defines for it, where
        it does; a curve is that of the outermost level that it crosses.
        """
        messages = [(*self._path(source, target), size) for source, target, size in hops]
        ports = [] if collective else [port for message in messages for port in message[:2]]
        top = max((out.level for out, _, _ in messages), default=0)
        start, paths = self._number(0), []
        for out, into, size in messages:
            times = self._times(out.level, size, steps, collective, out.level == top)
            start = max(start, times.start)
            if size:
                out.carried += size
                into.carried += size
                slower = out.bandwidth / times.bandwidth
                paths.append(
                    TransferPath(out, into, self._number(size) * slower, times.alone * slower)
                )
        start += max((self._gaps(port) for port in ports), default=0)
        for port in ports:
            port.starting += 1
        flow = ActiveTransfer(paths, done)
        self._clock.schedule(self._clock.now + start, self._open, flow, ports)

    def _gaps(self, port: Port) -> Scalar:
        """Seconds until a port takes one more message."""
        return port.starting * self._number(self._cluster.links[port.level].gap)

    def _times(
        self,
        level: int,
        size: Fraction | int,
        steps: int,
        collective: SentByAll | None,
        is_top: bool,
    ) -> LinkTimes:
        link, number = self._cluster.links[level], self._number
        if collective is None:
            first = link.message(size, number) if steps == 1 else steps * number(link.latency)
            return LinkTimes(first, number(link.bandwidth), number(link.alone))
        if is_top and collective.sent:
            return link.collective(*collective, steps, number)
        return link.line(collective.name, steps, number)

    def settle(self) -> None:
        """Update the rates of all flows whose ports have changed."""
        now = self._clock.now
        for flow in self._changed:
            rate = flow.share()
            if rate != flow.rate:
                flow.left -= (now - flow.since) * flow.rate
                flow.since, flow.rate = now, rate
                flow.version += 1
                self._clock.schedule(now + flow.left / rate, self._close, flow, flow.version)
        self._changed.clear()

    def _open(self, flow: ActiveTransfer, ports: list[Port]) -> None:
        flow.since = self._clock.now
        for port in ports:
            port.starting -= 1
        for path in flow.paths:
            path.out.enter(flow, flow.since)
            path.into.enter(flow, flow.since)
        self._touch(flow)
        if not flow.paths:
            flow.done()

    def _close(self, flow: ActiveTransfer, version: int) -> None:
        """End a flow, unless its rate has changed since this end was scheduled."""
        if version != flow.version:
            return
        flow.version = -1
        self._touch(flow)
        for path in flow.paths:
            path.out.leave(flow, self._clock.now)
            path.into.leave(flow, self._clock.now)
        self._changed.pop(flow, None)
        flow.done()

    def _touch(self, flow: ActiveTransfer) -> None:
        for path in flow.paths:
            self._changed.update(dict.fromkeys(path.out.flows))
            self._changed.update(dict.fromkeys(path.into.flows))

    def _path(self, source: int, target: int) -> tuple[Port, Port]:
        """Ports between two devices."""
        path = self._paths.get((source, target))
        if path is None:
            level = self._cluster.level_between(source, target)
            path = self._port(level, source, True), self._port(level, target, False)
            self._paths[source, target] = path
        return path

    def _port(self, level: int, device: int, out: bool) -> Port:
        link = self._cluster.links[level]
        owner = device // self._cluster.devices_behind(level)
        if (level, owner, out) not in self._ports:
            bandwidth = self._number(link.bandwidth)
            self._ports[level, owner, out] = Port(level, owner, out, bandwidth)
        return self._ports[level, owner, out]


def exact(value: float | Fraction) -> Fraction:
    """The decimal number as a fraction: `1/200000` for `5e-6`."""
    return value if isinstance(value, Fraction) else Fraction(repr(value))


Size = Callable[[str], int]
RINGS: dict[type[Instruction], RingName] = {
    AllReduce: "all_reduce", AllGather: "all_gather", ReduceScatter: "reduce_scatter",
    AllToAll: "all_to_all",
}  # fmt: skip
"""Collectives for which a level of links may have times of its own."""


class Transfer:
    """A message or a collective: what its members post, how many have not yet, and its times.

    The members of a message are source and target, those of a collective its ranks in order.
    """

    __slots__ = ("begin", "end", "members", "missing", "posts")

    def __init__(self, members: tuple[int, ...], posts: tuple[Post, ...]) -> None:
        self.members, self.posts, self.missing = members, posts, len(posts)
        self.begin: Scalar = None
        self.end: Scalar = None

    def of(self, rank: int) -> Post:
        """What a member of a collective posts."""
        return self.posts[self.members.index(rank)]


def traffic(transfer: Transfer, size: Size) -> tuple[list[DeviceTransfer], int]:
    """The bytes that a transfer sends between devices, and the number of its latencies in a row.

    `size` returns the bytes of a block.
    """
    node = transfer.posts[0]
    if isinstance(node, Message):
        source, target = transfer.members
        return [DeviceTransfer(source, target, size(node.block))], 1
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
