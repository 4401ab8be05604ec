"""Links while transfers run: the transfers through a port share its bandwidth evenly.

A message goes through two ports of the innermost level that joins its devices, out of one and into
the other. A port divides its bandwidth by the messages that are in it, up to what its link says of
one stream, and a message goes as fast as the slower of its two shares; what it leaves of the other
share nobody takes. All messages of one collective keep step. Shares change when a transfer begins
or ends, and at no other time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fractions import Fraction
from heapq import heappop, heappush
from typing import Any, NamedTuple

from primepar.plan.cluster import Cluster, Collective

Scalar = Any
"""A float, or a fraction where the run is exact."""


class Clock:
    """Actions in order of their time, and of their entry where they are at one time."""

    def __init__(self) -> None:
        self.now: Scalar = 0
        self._queue: list[tuple[Scalar, int, Callable[..., None], tuple[Any, ...]]] = []
        self._entries = 0

    def at(self, time: Scalar, action: Callable[..., None], *arguments: object) -> None:
        """Call an action at a time."""
        heappush(self._queue, (time, self._entries, action, arguments))
        self._entries += 1

    def run(self, settle: Callable[[], None]) -> None:
        """Call all actions; `settle` is called when time is about to go on."""
        while self._queue:
            self.now = self._queue[0][0]
            while self._queue and self._queue[0][0] == self.now:
                _, _, action, arguments = heappop(self._queue)
                action(*arguments)
            settle()


class DeviceTransfer(NamedTuple):
    """What one device sends to another one."""

    source: int
    target: int
    size: Fraction | int
    """Bytes."""


class Port:
    """The way out of a device, or of a group that shares a link, or the way in."""

    def __init__(
        self, level: int, owner: int, out: bool, bandwidth: Scalar, alone: Scalar
    ) -> None:  # fmt: skip
        self.level, self.owner, self.out = level, owner, out
        self.bandwidth, self.alone = bandwidth, alone
        self.flows: dict[ActiveTransfer, int] = {}
        self.messages = 0
        self.carried: Fraction | int = 0
        self.busy: Scalar = 0
        self._since: Scalar = 0

    @property
    def share(self) -> Scalar:
        """Bytes per second of each message that is in it."""
        return min(self.bandwidth / self.messages, self.alone)

    def enter(self, flow: ActiveTransfer, now: Scalar) -> None:
        """Let one message of a flow in."""
        if not self.messages:
            self._since = now
        self.messages += 1
        self.flows[flow] = self.flows.get(flow, 0) + 1

    def leave(self, flow: ActiveTransfer, now: Scalar) -> None:
        """Let all messages of a flow out."""
        own = self.flows.pop(flow, 0)
        self.messages -= own
        if own and not self.messages:
            self.busy += now - self._since


class ActiveTransfer:
    """The messages of one transfer, in step: `left` goes from 1 to 0, at `rate` a second."""

    __slots__ = ("done", "left", "paths", "rate", "since", "turn")

    def __init__(self, paths: list[tuple[Port, Port, Scalar]], done: Callable[[], None]) -> None:
        self.paths, self.done = paths, done
        self.left: Scalar = 1
        self.rate: Scalar = 0
        self.since: Scalar = 0
        self.turn = 0

    def share(self) -> Scalar:
        """The part of it that goes in a second, by what is in its ports now."""
        return min(min(out.share, into.share) / size for out, into, size in self.paths)


class Network:
    """The links of a cluster, and the transfers on them."""

    def __init__(self, cluster: Cluster, clock: Clock, number: Callable[[Any], Scalar]) -> None:
        self._cluster, self._clock, self._number = cluster, clock, number
        self._ports: dict[tuple[int, int, bool], Port] = {}
        self._paths: dict[tuple[int, int], tuple[Port, Port, Scalar]] = {}
        self._changed: dict[ActiveTransfer, None] = {}

    @property
    def ports(self) -> list[Port]:
        """All ports that something went through, level by level."""
        used = (port for port in self._ports.values() if port.carried)
        return sorted(used, key=lambda port: (port.level, port.owner, not port.out))

    def start(
        self,
        hops: Iterable[DeviceTransfer],
        turns: int,
        done: Callable[[], None],
        collective: Collective | None = None,
    ) -> None:
        """Start a transfer that takes the longest latency of its hops `turns` times, and its bytes.

        `done` is called at its end. A collective has the latency and the bandwidth of its own that
        a level gives it.
        """
        latency, paths = self._number(0), []
        for source, target, size in hops:
            out, into, each = self._path(source, target)
            ring = collective and getattr(self._cluster.links[out.level], collective)
            latency = max(latency, self._number(ring.latency) if ring else each)
            if size:
                out.carried += size
                into.carried += size
                slower = out.bandwidth / self._number(ring.bandwidth) if ring else 1
                paths.append((out, into, self._number(size) * slower))
        flow = ActiveTransfer(paths, done)
        self._clock.at(self._clock.now + turns * latency, self._open, flow)

    def settle(self) -> None:
        """Give all flows whose ports have changed their new shares."""
        now = self._clock.now
        for flow in self._changed:
            rate = flow.share()
            if rate != flow.rate:
                flow.left -= (now - flow.since) * flow.rate
                flow.since, flow.rate = now, rate
                flow.turn += 1
                self._clock.at(now + flow.left / rate, self._close, flow, flow.turn)
        self._changed.clear()

    def _open(self, flow: ActiveTransfer) -> None:
        flow.since = self._clock.now
        for out, into, _ in flow.paths:
            out.enter(flow, flow.since)
            into.enter(flow, flow.since)
        self._touch(flow)
        if not flow.paths:
            flow.done()

    def _close(self, flow: ActiveTransfer, turn: int) -> None:
        """End a flow, unless its share has changed since this end was reckoned."""
        if turn != flow.turn:
            return
        flow.turn = -1
        self._touch(flow)
        for out, into, _ in flow.paths:
            out.leave(flow, self._clock.now)
            into.leave(flow, self._clock.now)
        self._changed.pop(flow, None)
        flow.done()

    def _touch(self, flow: ActiveTransfer) -> None:
        for out, into, _ in flow.paths:
            self._changed.update(dict.fromkeys(out.flows))
            self._changed.update(dict.fromkeys(into.flows))

    def _path(self, source: int, target: int) -> tuple[Port, Port, Scalar]:
        """Ports and latency between two devices."""
        found = self._paths.get((source, target))
        if found is None:
            links = self._cluster.links
            level = next(
                at for at, link in enumerate(links) if source // link.joins == target // link.joins
            )
            latency = self._number(links[level].latency)
            found = self._port(level, source, True), self._port(level, target, False), latency
            self._paths[source, target] = found
        return found

    def _port(self, level: int, device: int, out: bool) -> Port:
        link = self._cluster.links[level]
        owner = device // self.devices_behind(level)
        if (level, owner, out) not in self._ports:
            bandwidth, alone = self._number(link.bandwidth), self._number(link.alone)
            self._ports[level, owner, out] = Port(level, owner, out, bandwidth, alone)
        return self._ports[level, owner, out]

    def devices_behind(self, level: int) -> int:
        """Devices that share a port of a level."""
        links = self._cluster.links
        return links[level - 1].joins if level and links[level].shared else 1


def exact(value: float | Fraction) -> Fraction:
    """The number as it is written, `1/200000` of `5e-6`."""
    return value if isinstance(value, Fraction) else Fraction(repr(value))
